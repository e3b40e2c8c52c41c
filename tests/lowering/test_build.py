"""Which kernels there are, what is written of them, and that it is the same each time."""

from __future__ import annotations

import hashlib
import json

import pytest

from samestep.contract import DTYPES, ORDERS
from samestep.engine import gpu as engine
from samestep.engine.batch import Kernel
from samestep.engine.cpu import kernel_name
from samestep.lowering import build, gpu
from samestep.tiling import TilingKey, decode, encode


def test_rule_cann_has_thirty_six_kernels_in_each_order():
    kernels = build.kernels("cann", build.every_key("cann"), DTYPES, ("spec",))
    assert len(set(kernels)) == len(kernels) == 36
    assert len(build.kernels("cann", build.every_key("cann"), DTYPES, ORDERS)) == 72


def test_rule_torch_has_every_set_of_terms_once():
    kernels = build.kernels("torch", build.every_key("torch"), ("float64",), ())
    assert len(set(map(kernel_name, kernels))) == len(kernels) == 12
    assert kernels == build.kernels("torch", build.every_key("cann"), ("float64",), ORDERS)


def test_names_of_files_tell_all_units_apart():
    wanted = [*build.kernels("cann", build.every_key("cann"), DTYPES, ORDERS),
              *build.kernels("torch", build.every_key("torch"), build.RULE_DTYPES["torch"], ())]
    units = {build.unit_of("sm_90", kernel, entry) for kernel in wanted for entry in gpu.ENTRIES}
    assert len({unit.name for unit in units}) == len(units) == 2 * (36 + 48)
    units = {build.unit_of(build.ASCEND, kernel, "plain") for kernel in wanted[:72]}
    assert len({unit.name for unit in units}) == 72


def test_on_gpus_the_number_of_blocks_is_no_constant(triton_compiler):
    """So schMode 1 needs no code of its own."""
    kernel = Kernel("spec", "float32", decode(12))
    several = kernel._replace(key=decode(13))
    assert build.unit_of("sm_90", several, "one") == build.unit_of("sm_90", kernel, "one")
    assert engine.constants_of(several) == engine.constants_of(kernel)


@pytest.fixture(scope="module")
def folders(triton_compiler, tmp_path_factory):
    """The same kernels built twice, the second time from nothing too."""
    wanted = build.kernels("cann", [decode(12), decode(13)], ["float16"], ["spec"])
    made = []
    for name in ("first", "second"):
        folder = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
            manifests = [build.build(target, wanted, folder / target) for target in ("sm_90", "gfx942")]
        made.append((folder, manifests))
    return made


def test_progress_is_told(triton_compiler):
    seen = []
    kernel = Kernel("spec", "float32", decode(0))
    build.lower_all([build.unit_of("gfx942", kernel, entry) for entry in gpu.ENTRIES],
                    watch=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_the_manifest_names_every_kernel_and_its_files(folders):
    folder, manifests = folders[0]
    for manifest, forms in zip(manifests, ({"ptx", "cubin", "sass"}, {"amdgcn", "hsaco"}), strict=True):
        at = folder / manifest["target"]
        assert json.loads((at / build.MANIFEST).read_text()) == manifest
        assert [(k["key"]["number"], k["entry"]) for k in manifest["kernels"]] == [
            (12, "list"), (12, "one"), (13, "list"), (13, "one")]
        assert manifest["compilers"]["triton"]
        for kernel in manifest["kernels"]:
            assert set(kernel["files"]) == forms
            assert kernel["dtype"] == "float16" and kernel["order"] == "spec" and kernel["registers"] > 8
            assert kernel["instructions"]["fma"] == 0
            for file in kernel["files"].values():
                content = (at / file["file"]).read_bytes()
                assert (len(content), hashlib.sha256(content).hexdigest()) == (file["bytes"], file["sha256"])
        assert len(list(at.iterdir())) == 2 * len(forms) + 1


def test_the_name_in_the_manifest_is_in_the_code(folders):
    folder, manifests = folders[0]
    for manifest, form in zip(manifests, ("ptx", "amdgcn"), strict=True):
        for kernel in manifest["kernels"]:
            text = (folder / manifest["target"] / kernel["files"][form]["file"]).read_text()
            pattern = f".entry {kernel['function']}(" if form == "ptx" else f"\t.globl\t{kernel['function']} "
            assert pattern in text


def test_every_file_is_the_same_again_and_holds_no_path(folders):
    (first, _), (second, _) = folders
    for target in ("sm_90", "gfx942"):
        for path in (first / target).iterdir():
            content = path.read_bytes()
            assert content == (second / target / path.name).read_bytes(), path.name
            for word in (str(first), "site-packages", "triton_kernels.py", "/tmp/"):
                assert word.encode() not in content, path.name


def test_units_of_ascend_are_told_apart_by_their_blocks():
    one, several = (Kernel("spec", "float32", TilingKey(mode, False, False, False)) for mode in (0, 1))
    assert build.unit_of(build.ASCEND, one, "plain") != build.unit_of(build.ASCEND, several, "plain")
    assert encode(several.key) == encode(one.key) + 1
