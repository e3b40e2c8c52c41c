"""What may be in a dump, how it is found, and what it is refused for."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import dump_files
from samestep.verify import dumps
from samestep.verify.dumps.loading import DumpError, Given
from samestep.verify.patterns import TYPES, WORDS


def facts(observation):
    """What a dump without scalars in it does not say."""
    problem = observation.problem
    return Given(rule=problem.rule, dtype=problem.dtype, shape=problem.shape, learning_rate=problem.learning_rate,
                 momentum=problem.momentum)


@pytest.mark.parametrize("form", dump_files.FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_every_format_and_dtype_comes_back_bit_for_bit(tmp_path, form, dtype):
    step = dump_files.step(dtype, rule="torch" if dtype == "float64" else "cann")
    dump_files.write(tmp_path, step, form)
    given = Given(rule=step.problem.rule)
    if form == "bin":
        given = given._replace(dtype=dtype, shape=step.problem.shape)
    if dtype == "bfloat16" and form in ("npy", "npz"):
        given = given._replace(dtype=dtype)
    [found] = dumps.load(tmp_path, given)
    assert dump_files.same(found, step)
    assert found.problem.parameters.dtype == WORDS[dtype]


@pytest.mark.parametrize("form", dump_files.CONTAINERS)
def test_one_file_with_everything(tmp_path, form):
    step = dump_files.step()
    dump_files.save(tmp_path / f"anything.{form}", dump_files.tensors(step))
    [found] = dumps.load(tmp_path)
    assert dump_files.same(found, step)


@pytest.mark.parametrize("form", dump_files.FORMATS)
def test_case_json_names_files_keys_and_offsets(tmp_path, form):
    step = dump_files.step("float16", dampening=0.5, weight_decay=0.25)
    arrays = dump_files.tensors(step, scalars=False)
    if form == "bin":
        (tmp_path / "all.bin").write_bytes(b"head" + b"".join(array.tobytes() for array in arrays.values()))
        place = {name: {"file": "all.bin", "offset": 4 + 132 * k} for k, name in enumerate(arrays)}
    elif form == "npy":
        (tmp_path / "sub").mkdir()
        for name, array in arrays.items():
            dump_files.save(tmp_path / "sub" / f"x{name}.npy", array)
        place = {name: f"sub/x{name}.npy" for name in arrays}
    else:
        dump_files.save(tmp_path / f"all.{form}", {f"net.{name}": array for name, array in arrays.items()})
        place = {name: {"file": f"all.{form}", "key": f"net.{name}"} for name in arrays}
    path = dump_files.write_case(
        tmp_path, rule="cann", order="ascend950", dtype="float16", shape=[33, 2], learning_rate=0.125, momentum=0.75,
        dampening=0.5, weight_decay=0.25, comment="a test", nesterov=False,
        inputs={name: place[name] for name in ("parameters", "gradient", "accum", "stat")},
        outputs={name: place[f"{name}_out"] for name in ("parameters", "accum", "stat")})
    for way in (path, tmp_path):
        read = dumps.read(way)
        assert dump_files.same(read.observations[0], step)
        assert read.order == "ascend950"


def test_bfloat16_in_the_ways_it_is_stored(tmp_path):
    step = dump_files.step("bfloat16")
    ways = {
        "raw": lambda array: array.view(np.uint16), "signed": lambda array: array.view(np.int16),
        "wide": lambda array: array.astype(np.float32), "own": lambda array: array,
    }
    for name, way in ways.items():
        for tensor, array in dump_files.tensors(step).items():
            (tmp_path / name).mkdir(exist_ok=True)
            np.save(tmp_path / name / f"{tensor}.npy", way(array))
        [found] = dumps.load(tmp_path / name, Given(dtype="bfloat16"))
        assert dump_files.same(found, step)
        if name != "wide":
            with pytest.raises(DumpError, match="raw words of 2 bytes; say what they are"):
                dumps.load(tmp_path / name)
            with pytest.raises(DumpError, match="raw words of 2 bytes, which float32 has not"):
                dumps.load(tmp_path / name, Given(dtype="float32"))
    np.save(tmp_path / "wide" / "accum.npy", np.full((33, 2), 0.1, np.float32))
    with pytest.raises(DumpError, match=r"'accum.npy' holds float32 values that are none of bfloat16"):
        dumps.load(tmp_path / "wide", Given(dtype="bfloat16"))


def test_torch_tensors_as_raw_words_views_and_alone(tmp_path):
    import torch

    step = dump_files.step("bfloat16", shape=(4, 3))
    arrays = dump_files.tensors(step)
    dump_files.write(tmp_path, step)
    (tmp_path / "gradient.npy").unlink()
    torch.save(dump_files.as_torch(arrays["gradient"]).view(torch.int16), tmp_path / "gradient.pt")
    (tmp_path / "accum.npy").unlink()
    transposed = dump_files.as_torch(arrays["accum"]).T.contiguous().T
    torch.save({"anything": torch.nn.Parameter(transposed)}, tmp_path / "accum.pt")
    (tmp_path / "momentum.npy").unlink()
    torch.save({"momentum": 0.75}, tmp_path / "momentum.pt")
    assert dump_files.same(dumps.load(tmp_path, Given(dtype="bfloat16"))[0], step)


def test_byte_order_and_memory_order_of_npy(tmp_path):
    step = dump_files.step()
    for name, array in dump_files.tensors(step).items():
        np.save(tmp_path / f"{name}.npy", np.asfortranarray(array.astype(array.dtype.newbyteorder(">"))))
    assert dump_files.same(dumps.load(tmp_path)[0], step)


def test_nan_payloads_and_signs_of_zero_survive(tmp_path):
    step = dump_files.step("float32", shape=(4,))
    accum = np.array([0x7FC00123, 0xFF800001, 0x80000000, 1], np.uint32)
    step = step._replace(problem=step.problem._replace(accum=accum), accum=accum)
    for form in dump_files.FORMATS:
        dump_files.write(tmp_path / form, step, form)
        [found] = dumps.load(tmp_path / form, Given(dtype="float32", shape=(4,)))
        assert found.problem.accum.tolist() == found.accum.tolist() == accum.tolist()


@pytest.mark.parametrize("name", ["{side}_{k}.npy", "{side}{k}.npy", "Functional.sgd.0.forward.{side}.{k}.npy",
                                  "SGD.op1.7.3.{side}.{k}.33x2.npy"])
def test_numbered_names_of_other_tools(tmp_path, name):
    step = dump_files.step()
    arrays = dump_files.tensors(step)
    order = {"input": ["parameters", "gradient", "learning_rate", "accum", "momentum", "stat"],
             "output": ["parameters_out", "accum_out", "stat_out"]}
    for side, tensors in order.items():
        for k, tensor in enumerate(tensors):
            np.save(tmp_path / name.format(side=side, k=k), arrays[tensor])
    (tmp_path / "notes.txt").write_text("not a tensor", encoding="utf-8")
    assert dump_files.same(dumps.load(tmp_path)[0], step)


def test_steps_in_folders(tmp_path):
    steps = [dump_files.step(seed=seed, learning_rate=0.5**seed) for seed in range(12)]
    for k, step in enumerate(steps):
        dump_files.write(tmp_path / f"step_{k}", step)
    dump_files.write_case(tmp_path, order="ascend950")
    found = dumps.load(tmp_path)
    assert len(found) == 12
    assert all(dump_files.same(one, other) for one, other in zip(found, steps, strict=True))


def test_steps_in_case_json_carry_the_state_over(tmp_path):
    first = dump_files.step(seed=1)
    after = first.problem._replace(parameters=first.parameters, accum=first.accum, stat=first.stat)
    second = dump_files.step(seed=2)
    second = second._replace(problem=after._replace(gradient=second.problem.gradient, learning_rate=0.5))
    for k, step in enumerate((first, second)):
        arrays = dump_files.tensors(step, scalars=False)
        carried = ("parameters", "accum", "stat") if k else ()
        kept = {name: array for name, array in arrays.items() if name not in carried}
        dump_files.save(tmp_path / f"{k}.npz", kept)
    path = dump_files.write_case(tmp_path, momentum=0.75, learning_rate=0.125, steps=[
        {"inputs": "0.npz", "outputs": "0.npz"},
        {"learning_rate": 0.5, "inputs": {"gradient": {"file": "1.npz", "key": "gradient"}},
         "outputs": {"parameters": {"file": "1.npz", "key": "parameters_out"}}}])
    one, two = dumps.load(path)
    assert dump_files.same(one, first)
    assert two.accum is None
    assert two.stat is None
    assert dump_files.same(two, second._replace(accum=None, stat=None))
    case = json.loads(path.read_text(encoding="utf-8"))
    case["steps"][1]["order"] = "spec"
    with pytest.raises(DumpError, match="the steps name different orders"):
        dumps.load(dump_files.write_case(tmp_path, **case))


def test_rule_torch_without_buffer_is_a_first_step(tmp_path):
    step = dump_files.step("float64", rule="torch", momentum=0.9, nesterov=True)
    step = step._replace(problem=step.problem._replace(accum=None))
    arrays = dump_files.tensors(step, scalars=False)
    np.save(tmp_path / "momentum_buffer_out.npy", arrays.pop("accum_out"))
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    given = Given(rule="torch", learning_rate=0.125, momentum=0.9, nesterov=True)
    assert dump_files.same(dumps.load(tmp_path, given)[0], step)


def refused(path, match, given=None, limit=dumps.LIMIT):
    with pytest.raises(DumpError, match=match) as caught:
        dumps.load(path, given, limit)
    assert len(str(caught.value)) < 400
    return str(caught.value)


def test_numbers_that_files_do_not_hold_are_given(tmp_path):
    step = dump_files.step("float16", dampening=0.5, weight_decay=0.25)
    for form in ("npy", "bin", "npz"):
        dump_files.write(tmp_path / form, step, form, scalars=False)
        given = facts(step)._replace(dampening=0.5, weight_decay=0.25)
        assert dump_files.same(dumps.load(tmp_path / form, given)[0], step)
        refused(tmp_path / form, "learning_rate is missing; give it in CASE.json, in a file such as learning_rate.npy",
                given._replace(learning_rate=None))
    refused(tmp_path / "bin", "'parameters.bin' is raw: its dtype and shape must be given", Given(dtype="float16"))


def test_numbers_given_twice_must_agree(tmp_path):
    step = dump_files.step("float16", learning_rate=0.1)
    dump_files.write(tmp_path, step)
    path = dump_files.write_case(tmp_path, dampening=0.5)
    dumps.load(path, Given(learning_rate=0.1, dampening=0.5))
    refused(path, r"learning_rate is 0.0999\d* in 'learning_rate.npy', but 0.2 was told", Given(learning_rate=0.2))
    refused(path, "dampening: the dump says 0.5, but 0.25 was given; give it once", Given(dampening=0.25))
    path = dump_files.write_case(tmp_path, learning_rate="learning_rate.npy")
    refused(path, "learning_rate stands twice: in 'learning_rate.npy' and in 'learning_rate.npy'")
    refused(path, "learning_rate: the dump says 'learning_rate.npy', but 0.1 was given", Given(learning_rate=0.1))


def test_hyperparameters_that_are_no_numbers(tmp_path):
    dump_files.write(tmp_path, dump_files.step(), scalars=False)
    [found] = dumps.load(dump_files.write_case(tmp_path, learning_rate="nan", momentum="-inf"))
    assert math.isnan(found.problem.learning_rate)
    assert found.problem.momentum == -math.inf
    dumps.load(tmp_path, Given(learning_rate=math.nan))
    refused(dump_files.write_case(tmp_path, learning_rate=1, momentum=1, weight_decay="nan"),
            r"weight_decay: got nan; accepted: a number >= 0 \(NaN is none\) \[attribute_value_out_of_range\]")
    refused(dump_files.write_case(tmp_path, learning_rate=1, momentum=1, dampening=1, nesterov=True),
            "dampening: got 1.0 with nesterov=True")


def test_scalars_in_files(tmp_path):
    step = dump_files.step("bfloat16", learning_rate=0.1)
    for array, text in (
        (np.array([0.1, 0.2], np.float32), "has 2 elements; accepted: one"),
        (np.array(0.1, np.float32), "which bfloat16 has not; rule O1"),
        (np.array(0.1, np.float64), None),
        (np.array([[0.1]]).astype(TYPES["bfloat16"]), None),
    ):
        dump_files.write(tmp_path, step)
        np.save(tmp_path / "learning_rate.npy", array)
        if text is None:
            assert dumps.load(tmp_path, Given(dtype="bfloat16"))[0].problem.learning_rate in (0.1, 0.10009765625)
        else:
            refused(tmp_path, text, Given(dtype="bfloat16"))


def test_what_is_missing_or_stands_twice_is_named(tmp_path):
    step = dump_files.step()
    for name, text in (
        ("parameters", "the parameters before the step are missing; expected inputs.parameters in CASE.json"),
        ("parameters_out", "the parameters after the step are missing; expected outputs.parameters"),
        ("gradient", "inputs.gradient is missing; rule cann reads it"),
        ("accum", "inputs.accum is missing; rule cann reads it"), ("stat", "inputs.stat is missing"),
        ("momentum", "momentum is missing"),
    ):
        (dump_files.write(tmp_path / name, step) / f"{name}.npy").unlink()
        refused(tmp_path / name, text)
    dump_files.write(tmp_path / "two", step)
    np.save(tmp_path / "two" / "momentum_buffer.npy", dump_files.tensors(step)["accum"])
    refused(tmp_path / "two", "inputs.accum stands twice: in 'accum.npy' and in 'momentum_buffer.npy'")
    refused(tmp_path / "nothing", "nothing: No such file or directory|'nothing': No such file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "the parameters before the step are missing")


def test_what_no_step_of_the_rule_can_be(tmp_path):
    step = dump_files.step()
    dump_files.write(tmp_path, step)
    refused(tmp_path, "rule torch has no stat", Given(rule="torch"))
    refused(tmp_path, "rule cann has no maximize", Given(maximize=True))
    dump_files.write(tmp_path / "wide", dump_files.step("float64", rule="torch"))
    refused(tmp_path / "wide", "dtype float64; accepted: float32, float16, bfloat16")
    dump_files.write(tmp_path / "rank", dump_files.step(shape=(1,) * 9))
    refused(tmp_path / "rank", "rank 9, shape .*; accepted: rank 1 to 8")
    np.save(tmp_path / "accum.npy", np.zeros((2, 33), np.float32))
    refused(tmp_path, r"inputs.accum in 'accum.npy' has the shape \[2, 33\]; accepted: \[33, 2\], or flat")
    np.save(tmp_path / "accum.npy", np.zeros(66, np.float32))
    dumps.load(tmp_path)
    np.save(tmp_path / "stat_out.npy", np.zeros((33, 2), np.float64) + 0.1)
    refused(tmp_path, "'stat_out.npy' holds float64 values that are none of float32, the dtype of the others or told")
    for narrow in (np.float16, TYPES["bfloat16"]):
        (tmp_path / "stat_out.npy").unlink(missing_ok=True)
        dump_files.save(tmp_path / "stat_out.pt", {"stat": np.zeros((33, 2), narrow)})
        refused(tmp_path, f"'stat_out.pt' holds {np.dtype(narrow).name}; accepted: float32, the dtype of the others")
    (tmp_path / "stat_out.pt").unlink()
    for name in ("parameters", "gradient", "accum", "stat", "parameters_out", "accum_out", "stat_out"):
        np.save(tmp_path / f"{name}.npy", np.zeros((0, 3), np.float32))
    refused(tmp_path, r"parameters have the empty shape \[0, 3\]")


BAD_CASES = {
    "no object": ("[1, 2]", r"holds \[1, 2\]; expected an object"),
    "no json": ('{"dtype": ', "is no JSON: Expecting value"),
    "latin-1": (b'{"comment": "\xe9"}', "is not UTF-8 text: .* at byte 13"),
    "twice": ('{"dtype": "float32", "dtype": "float16"}', "the name 'dtype' stands twice in one object"),
    "twice inside": ('{"inputs": {"stat": "a", "stat": "b"}}', "the name 'stat' stands twice"),
    "deep": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
    "deep lists": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "huge": (b" " * (1 << 20) + b"{}", "has 1,048,578 bytes; accepted: at most 1,048,576"),
    "NaN": ('{"momentum": NaN}', 'NaN is no JSON number; write "nan"'),
    "Infinity": ('{"momentum": -Infinity}', "-Infinity is no JSON number"),
    "1e999": ('{"momentum": 1e999}', "momentum: got inf; accepted: a number within float64"),
    "long int": ('{"momentum": 1' + "0" * 400 + "}", "momentum: got 1000.*accepted: a number within float64"),
    "very long int": ('{"momentum": 1' + "0" * 5000 + "}", "is no JSON: Exceeds the limit|a number of thousands"),
    "bool number": ('{"momentum": true}', "momentum: got True; accepted: a number or a file"),
    "number flag": ('{"nesterov": 1}', "nesterov: got 1; accepted: true or false"),
    "no file number": ('{"dampening": "d.npy"}', "dampening: got 'd.npy'; accepted: a number$"),
    "unknown field": ('{"lr": 1}', "has the field 'lr'; accepted: steps, rule, order"),
    "rule": ('{"rule": "keras"}', "rule: got 'keras'; accepted: 'cann' or 'torch'"),
    "order": ('{"order": ["spec"]}', r"order: got \['spec'\]; accepted: 'spec' or 'ascend950'"),
    "dtype": ('{"dtype": "int8"}', "dtype: got 'int8'; accepted: 'float32' or 'float16'"),
    "shape nan": ('{"shape": ["nan"]}', r"shape: got \['nan'\]; accepted: a list of at most 8 whole numbers"),
    "shape NaN": ('{"shape": [NaN]}', "NaN is no JSON number"),
    "shape negative": ('{"shape": [-1]}', r"shape: got \[-1\]"),
    "shape zero": ('{"shape": [3, 0]}', r"shape: got \[3, 0\]"),
    "shape float": ('{"shape": [3.0]}', r"shape: got \[3.0\]"),
    "shape bool": ('{"shape": [true]}', r"shape: got \[True\]"),
    "shape long": ('{"shape": [' + "1," * 900 + "1]}", "shape: got .*; accepted: a list of at most 8"),
    "shape overflow": ('{"shape": [' + "9" * 30 + "]}", "shape: got .*; accepted: a list of at most 8"),
    "shape text": ('{"shape": "33,2"}', "shape: got '33,2'"),
    "steps": ('{"steps": []}', r"steps: got \[\]; accepted: a list of objects"),
    "steps of steps": ('{"steps": [{"steps": []}]}', "has the field 'steps'"),
    "inputs": ('{"inputs": 3}', "inputs: got 3; accepted: a file's name, or an object of files by tensor"),
    "tensor": ('{"inputs": {"grad": "x"}}', "inputs: got 'grad'; accepted: each of parameters, gradient"),
    "alias twice": ('{"inputs": {"accum": "x", "momentum_buffer": "y"}}', "inputs: got 'momentum_buffer'"),
    "entry": ('{"inputs": {"stat": {"key": "x"}}}', "inputs.stat: got .* with at least a file"),
    "entry field": ('{"inputs": {"stat": {"file": "x", "code": "y"}}}', "inputs.stat: got "),
    "entry offset": ('{"inputs": {"stat": {"file": "x", "offset": -1}}}', "inputs.stat.offset: got -1"),
    "entry dtype": ('{"inputs": {"stat": {"file": "x", "dtype": []}}}', "inputs.stat.dtype: got"),
    "entry key": ('{"inputs": {"stat": {"file": "x", "key": 1}}}', "inputs.stat.key: got 1"),
    "entry shape": ('{"inputs": {"stat": {"file": "x", "shape": [1e9]}}}', "inputs.stat.shape: got"),
}


@pytest.mark.parametrize("name", BAD_CASES)
def test_what_case_json_may_not_say(tmp_path, name):
    text, match = BAD_CASES[name]
    dump_files.write(tmp_path, dump_files.step())
    path = tmp_path / "case.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    for way in (path, tmp_path):
        assert "case.json" in refused(way, match)


def test_an_empty_case_is_no_case_but_the_files_still_are(tmp_path):
    dump_files.write(tmp_path, dump_files.step())
    (tmp_path / "CASE.json").write_text("{}", encoding="utf-8")
    assert len(dumps.load(tmp_path)) == 1
    (tmp_path / "case.json").write_text("{}", encoding="utf-8")
    refused(tmp_path, "has 'CASE.json' and 'case.json'; expected one")


def test_tensors_are_charged_once(tmp_path):
    step = dump_files.step("float32", (1000,))
    for form in dump_files.FORMATS:
        dump_files.write(tmp_path / form, step, form, scalars=False)
        size = sum(path.stat().st_size for path in (tmp_path / form).iterdir())
        times = {"bin": 1, "npy": 1, "npz": 1, "safetensors": 2, "pt": 3}[form]  # unpacked, copied, copied and checked
        dumps.load(tmp_path / form, facts(step), limit=times * size)
        refused(tmp_path / form, "of this dump's limit of", facts(step), limit=size - 3000)


def test_the_gradient_after_the_step(tmp_path):
    step = dump_files.step()
    dump_files.write(tmp_path, step)
    assert dumps.load(tmp_path)[0].gradient is None
    np.save(tmp_path / "gradient_out.npy", dump_files.tensors(step)["accum"])
    assert dumps.load(tmp_path)[0].gradient.tolist() == step.problem.accum.tolist()


def test_state_is_carried_between_steps_of_one_kind_only(tmp_path):
    step = dump_files.step()
    dump_files.write(tmp_path, step, scalars=False)
    gradient = {"gradient": "gradient.npy"}
    for fields, match in (
        ({"dtype": "float16"}, r"step 1: inputs.parameters is not there.*were \('cann', 'float32', 66\), and now are "),
        ({"shape": [33]}, "step 1: inputs.parameters is not there"),
        ({"rule": "torch"}, "step 1: inputs.parameters is not there"),
        ({}, "step 1: inputs.accum is missing; rule cann reads it"),
    ):
        path = dump_files.write_case(tmp_path, learning_rate=0.125, momentum=0.75, dtype="float32", steps=[
            {"outputs": {"parameters": "parameters_out.npy"}},
            {"inputs": gradient, "outputs": {"parameters": "parameters_out.npy"}, **fields}])
        refused(path, match)
