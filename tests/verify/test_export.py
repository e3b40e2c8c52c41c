"""Exported cases: right, reproducible, complete, and usable where samestep is not."""

from __future__ import annotations

import ast
import csv
import ctypes
import hashlib
import json
import platform
import subprocess
import sys

import numpy as np
import pytest

from samestep.contract import ORDERS
from samestep.verify import dumps, oracle
from samestep.verify.compare.comparison import compare
from samestep.verify.export import ttk
from samestep.verify.export import writing as export
from samestep.verify.export.golden_files import FORMS
from samestep.verify.export.writing import Choice, ExportError
from samestep.verify.patterns import WORDS, number_of, word_of
from samestep.verify.suite.cases import items
from samestep.verify.vectorised import cann

SMALL = Choice(at_most=45, max_elements=100)
TENSORS = ("parameters", "accum", "stat")
# Runs in a process that has NumPy and, if told so, ml_dtypes, but nothing of this package, numba or torch.
APART = """
import json, sys
absent = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(absent))
import importlib.util
import numpy as np
if "ml_dtypes" not in absent:
    import ml_dtypes
spec = importlib.util.spec_from_file_location("plugin", sys.argv[2])
plugin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin)
assert plugin.__golden__ == {"kernel": {"sgd": "sgd"}}
wrong = []
for path in sys.argv[3:]:
    with np.load(path, allow_pickle=False) as case:
        names = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
        given = [case[name] for name in names]
        if case["dtype"] == "bfloat16" and "ml_dtypes" not in absent:
            given = [array.view(ml_dtypes.bfloat16) for array in given]
        before = [array.tobytes() for array in given]
        attributes = {name: case[name].item() for name in ("dampening", "weight_decay", "nesterov")}
        function = getattr(plugin, plugin.__golden__["kernel"]["sgd"])
        results = function(*given, **attributes, input_formats=None)
        assert isinstance(results, list) and len(results) == 3
        assert [array.tobytes() for array in given] == before
        for name, result, like in zip(("parameters", "accum", "stat"), results, (given[0], given[3], given[5])):
            right = case["golden_" + name]
            assert result.shape == like.shape and result.dtype == like.dtype, (path, name)
            bits = {2: np.uint16, 4: np.uint32}[like.itemsize]
            got, expected = result.view(bits), right.view(bits)
            nan = np.isnan(plugin.widened(result)) & np.isnan(plugin.widened(right.view(result.dtype)))
            kept = float(plugin.widened(given[4])[0]) == 0 and name != "parameters"
            if not ((got == expected) | (False if kept else nan)).all():
                wrong.append((path, name))
heavy = [name for name in ("samestep", "numba", "torch") if sys.modules.get(name)]
print(json.dumps([wrong, heavy]))
"""


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_choice_writes_the_same_bytes_and_another_seed_others(tmp_path, form):
    for name in "ab":
        export.write(form, tmp_path / name, SMALL)
    export.write(form, tmp_path / "other", SMALL._replace(seed=1))
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert files(tmp_path / "a") != files(tmp_path / "other")


def test_the_caller_s_floating_point_environment_changes_nothing(tmp_path):
    program = ctypes.CDLL(None)
    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    if upward is None or not hasattr(program, "fesetround"):
        pytest.skip("knows how to round upward on x86-64 and aarch64 only")
    export.write("npz", tmp_path / "usual", SMALL)
    program.fesetround(upward)
    try:
        assert np.float32(1) + np.float32(1e-9) > 1
        export.write("npz", tmp_path / "upward", SMALL)
    finally:
        program.fesetround(0)
    assert files(tmp_path / "usual") == files(tmp_path / "upward")


@pytest.mark.parametrize("form", FORMS)
def test_the_manifest_names_and_hashes_every_file(tmp_path, form):
    returned = export.write(form, tmp_path, SMALL)
    found = files(tmp_path)
    manifest = json.loads(found.pop("manifest.json"))
    assert manifest["sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
    assert manifest["bytes"] == sum(map(len, found.values()))
    assert manifest["cases"] == 45 == sum(manifest["families"].values()) == sum(manifest["dtypes"].values())
    assert manifest["choice"] == {**SMALL._asdict(), "dtypes": []}
    assert returned["sha256"] == manifest["sha256"]
    assert set(manifest["dtypes"]) == {"float32", "float16", "bfloat16"}
    assert min(manifest["families"].values()) >= 1
    assert str(tmp_path).encode() not in b"".join(found.values())


def read_npz(path):
    with np.load(path, allow_pickle=False) as case:
        return {name: case[name] for name in case.files}


@pytest.mark.parametrize("order", ORDERS)
def test_golden_outputs_are_those_of_the_exact_oracle(tmp_path, order):
    export.write("npz", tmp_path, Choice(order=order, at_most=60, max_elements=80))
    checked = 0
    for path in sorted(tmp_path.glob("*.npz")):
        case = read_npz(path)
        dtype = str(case["dtype"])
        word = WORDS[dtype]
        given = [case[name].view(word).ravel() for name in
                 ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")]
        golden = [case[f"golden_{name}"].view(word).ravel() for name in TENSORS]
        for i in range(0, given[0].size, 7):
            p, g, lr, a, m, s = (int(words[i if words.size > 1 or not i else 0]) for words in given)
            right = oracle.cann(p, g, lr, a, m, s, dtype=dtype, order=order, nesterov=bool(case["nesterov"]),
                                dampening=float(case["dampening"]), weight_decay=float(case["weight_decay"]))
            for one, words in zip(right, golden, strict=True):
                assert one == words[i] or (np.isnan(number_of(int(one), dtype)) and
                                           np.isnan(number_of(int(words[i]), dtype)))
            checked += 1
    assert checked > 300


def test_all_forms_hold_the_same_cases(tmp_path):
    for form in FORMS:
        export.write(form, tmp_path / form, SMALL)
    whole = json.loads((tmp_path / "json" / "cases.json").read_text(), parse_constant=pytest.fail)
    archives = sorted((tmp_path / "npz").glob("*.npz"))
    assert len(whole["cases"]) == len(archives) == 45
    for told, path in zip(whole["cases"], archives, strict=True):
        case = read_npz(path)
        assert str(case["name"]) == told["name"]
        folders = [tmp_path / form / path.stem for form in ("bin", "ttk")]
        word = np.dtype(WORDS[told["dtype"]])
        for kind, prefix in (("inputs", ""), ("golden", "golden_")):
            assert len(told[kind]) == {"inputs": 6, "golden": 3}[kind]
            for name, text in told[kind].items():
                words = np.array([int(digits, 16) for digits in text.split()], word)
                assert words.tobytes() == case[prefix + name].tobytes()
                raw = words.astype(word.newbyteorder("<")).tobytes()
                assert all((folder / kind / f"{name}.bin").read_bytes() == raw for folder in folders)
        assert told["nesterov"] == case["nesterov"]
        assert float(told["dampening"]) == case["dampening"] or told["dampening"] == "nan"


def wrong_in(folder):
    """The tensors of a case folder in which compare finds a wrong bit."""
    dump = dumps.read(folder)
    (seen,) = dump.observations
    compared = compare(seen, dump.order or "spec")
    assert not compared.missing
    assert not compared.unexpected
    return [tensor.name for tensor in compared.tensors if tensor.differing]


@pytest.mark.parametrize("rule", ["cann", "torch"])
def test_a_bin_case_is_judged_by_compare_when_the_outputs_are_dropped_in(tmp_path, rule):
    export.write("bin", tmp_path, Choice(rule, order="ascend950", at_most=60, max_elements=300))
    folders = sorted(path.parent for path in tmp_path.rglob("CASE.json"))
    assert len(folders) == 60
    damaged = []
    for folder in folders:
        with pytest.raises(dumps.DumpError, match="outputs"):
            dumps.read(folder)
        (folder / "golden").rename(folder / "outputs")
        assert not wrong_in(folder)
        path = folder / "outputs" / "parameters.bin"
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
        damaged += wrong_in(folder)
    assert damaged.count("parameters") == len(damaged) > 50  # a damaged NaN is still one


def test_ttk_case_file_has_the_columns_and_types_that_the_kit_reads(tmp_path):
    export.write("ttk", tmp_path, SMALL)
    with (tmp_path / "sgd_cases.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert tuple(reader.fieldnames) == ttk.COLUMNS
    assert len(rows) == 45 == len({row["testcase_name"] for row in rows})
    for row in rows:
        shapes, dtypes, inplace = (ast.literal_eval(row[column]) for column in
                                   ("input_shapes", "input_dtypes", "output_inplace_indexes"))
        assert len(shapes) == len(dtypes) == 6
        assert inplace == (0, 3, 5)
        assert shapes[0] == shapes[1] == shapes[3] == shapes[5]
        assert shapes[2] == shapes[4] == (1,)
        values = {"nan": float("nan"), "inf": float("inf"), "__builtins__": {}}
        attributes = eval(row["attributes"], values)  # bare inf and nan, as the kit's own files have them
        assert set(attributes) == {"dampening", "weight_decay", "nesterov"}
        assert len(eval(row["input_data_ranges"], values)) == 6
        size = np.dtype(WORDS[dtypes[0]]).itemsize
        for column, shape_of in (("manual_input_binaries", shapes),
                                 ("manual_golden_binaries", [shapes[k] for k in inplace])):
            for name, shape in zip(ast.literal_eval(row[column]), shape_of, strict=True):
                assert (tmp_path / name).stat().st_size == size * int(np.prod(shape))


@pytest.mark.parametrize(("order", "absent"), [
    ("spec", ["samestep", "numba", "torch"]), ("ascend950", ["samestep", "numba", "torch", "ml_dtypes"]),
], ids=["with ml_dtypes", "NumPy alone"])
def test_the_golden_plugin_gives_the_golden_bits_where_nothing_else_is_installed(tmp_path, order, absent):
    (tmp_path / "sgd_golden.py").write_text(ttk.plugin(order))
    export.write("npz", tmp_path / "cases", Choice(order=order, at_most=300, max_elements=300))
    paths = sorted(map(str, (tmp_path / "cases").glob("*.npz")))
    keys = {(str(case["dtype"]), bool(case["nesterov"]), bool(case["dampening"]), bool(case["weight_decay"]))
            for case in map(read_npz, paths)}
    assert len(keys) == 18
    done = subprocess.run([sys.executable, "-I", "-W", "error", "-c", APART, json.dumps(absent),
                           str(tmp_path / "sgd_golden.py"), *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], []]


def test_the_golden_plugin_differs_by_order_and_would_be_found_out(tmp_path):
    """The check above bites: the plugin of the other order fails it."""
    (tmp_path / "sgd_golden.py").write_text(ttk.plugin("spec"))
    export.write("npz", tmp_path / "cases", Choice(order="ascend950", at_most=200, max_elements=300))
    done = subprocess.run([sys.executable, "-I", "-c", APART, "[]", str(tmp_path / "sgd_golden.py"),
                           *map(str, (tmp_path / "cases").glob("*.npz"))], capture_output=True, text=True, check=True)
    wrong, _ = json.loads(done.stdout)
    assert 5 < len(wrong) < 100


def test_the_plugin_takes_every_form_of_its_arguments():
    scope = {}
    exec(ttk.plugin("spec"), scope)
    rng = np.random.default_rng(0)
    p, g, a, s = (rng.standard_normal((3, 4)).astype(np.float32) for _ in range(4))
    for lr, m in ((np.float32(0.1), np.float32(0.9)), (np.full((1, 1), 0.1, np.float32), np.array(0.9, np.float32))):
        results = scope["sgd"](p, g, lr, a, m, s, 0.3, 0.01)
        bits = [array.view(np.uint32).ravel() for array in (p, g, a, s)]
        right = cann(bits[0], bits[1], word_of(0.1, "float32"), bits[2], word_of(0.9, "float32"), bits[3],
                     dtype="float32", dampening=0.3, weight_decay=0.01)
        for result, words in zip(results, right, strict=True):
            assert result.shape == (3, 4)
            assert result.tobytes() == words.tobytes()


def test_a_count_is_spread_and_limits_are_kept():
    for_all, left_out = export.chosen(Choice(at_most=45))
    assert left_out == 0
    assert {(item.dtype, item.family) for item in for_all} == {(item.dtype, item.family) for item in items()}
    chosen, left_out = export.chosen(Choice(max_elements=300, dtypes=("float16",)))
    assert {item.dtype for item in chosen} == {"float16"}
    assert max(item.problem().parameters.size for item in chosen) <= 300
    assert len(chosen) + left_out == len(list(items(dtypes=["float16"])))
    assert left_out > 50


def test_refusals_come_before_anything_is_written(tmp_path):
    for form, choice, text in (("ttk", Choice("torch"), "rule cann"), ("zip", SMALL, "npz, bin, json, ttk"),
                               ("npz", Choice(max_elements=0), "no case is left")):
        with pytest.raises(ExportError, match=text):
            export.write(form, tmp_path / "new", choice)
        assert not (tmp_path / "new").exists()
    (tmp_path / "old.txt").write_text("mine")
    with pytest.raises(ExportError, match="not empty"):
        export.write("npz", tmp_path, SMALL)
    assert files(tmp_path) == {"old.txt": b"mine"}


# The header of a case file of the operator's sister, as its test kit has it.
HEADER = (
    "testcase_name network_name op_name input_shapes input_dtypes input_formats output_shapes output_dtypes "
    "output_formats input_ori_shapes input_ori_formats output_ori_shapes output_ori_formats attributes "
    "input_data_ranges precision_tolerances absolute_precision output_inplace_indexes "
    "output_shape_unknown_indexes is_enabled remark soc_series priority dump_file_prefix manual_input_binaries "
    "manual_golden_binaries"
)


def test_the_columns_are_those_of_the_kits_own_case_files():
    assert " ".join(ttk.COLUMNS) == HEADER
