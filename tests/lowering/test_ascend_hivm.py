"""What the compiler for Ascend 950 makes of each kernel, before the step that only CANN has (rules O5, O6)."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest

from samestep.contract import DTYPES, ORDERS
from samestep.engine.batch import Kernel
from samestep.lowering import ascend, build
from samestep.lowering.instructions import branches_on_momentum, count
from samestep.tiling import TilingKey, encode, legal_keys

KERNELS = [Kernel(*names) for names in itertools.product(ORDERS, DTYPES, legal_keys())]
IDS = [f"{kernel.order}-{kernel.dtype}-{encode(kernel.key)}" for kernel in KERNELS]
ANY = Kernel("spec", "bfloat16", TilingKey(1, False, True, True))


def faults(hivm):
    """What is wrong with a kernel's HIVM."""
    counts = count(hivm, "hivm")
    found = [name for name in ("fma", "unknown") if counts[name]]
    found += [f"no {name}" for name in ("mul", "add", "load", "store") if not counts[name]]
    return found if branches_on_momentum(hivm) else [*found, "no branch on momentum"]


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_nothing_is_fused_and_momentum_is_a_branch(kernel, ascend_kernels):
    compiled = ascend_kernels[kernel]
    hivm = compiled.files["hivm"].decode()
    assert faults(hivm) == []
    assert compiled.facts["branches_on_momentum"]
    assert bool(compiled.instructions["convert"]) == (kernel.dtype != "float32")
    assert compiled.files["linalg"].count(b"scf.if") == 1
    assert b"math.fma" not in compiled.files["linalg"]


def test_a_fused_multiply_add_would_be_noticed(ascend_kernels):
    hivm = ascend_kernels[ANY].files["hivm"].decode()
    product = re.search(r'"hivm_regbaseintrins\.intr\.hivm\.vmuls?\.s\.x"', hivm)
    assert faults(hivm.replace(product[0], '"hivm_regbaseintrins.intr.hivm.vmula.s.m"', 1)) == ["fma"]
    assert faults(hivm.replace(product[0], '"hivm_regbaseintrins.intr.hivm.vrec.s.x"', 1)) == ["unknown"]


@pytest.mark.parametrize("predicate", ["one", "ueq", "ugt"])
def test_another_mask_would_be_noticed(predicate, ascend_kernels, ascend_compilers):
    linalg = ascend_kernels[ANY].files["linalg"].decode()
    hivm, _ = ascend.to_hivm(linalg.replace("arith.cmpf une", f"arith.cmpf {predicate}"), ascend_compilers)
    assert faults(hivm) == ["no branch on momentum"]


def test_a_mask_that_is_no_branch_would_be_noticed(ascend_kernels, ascend_compilers):
    ttir = ascend_kernels[ANY].files["ttir"].decode()
    always = re.sub(r"scf\.if %\w+ \{", "scf.if %true {", ttir)
    always = always.replace("{\n    %cst", "{\n    %true = arith.constant true\n    %cst", 1)
    hivm, _ = ascend.to_hivm(ascend.to_linalg(always, ascend_compilers), ascend_compilers)
    assert faults(hivm) == ["no branch on momentum"]


def test_a_fused_operation_of_triton_becomes_two(ascend_kernels, ascend_compilers):
    """Why rule torch is refused: the compiler rounds twice where math.fma rounds once."""
    ttir = ascend_kernels[ANY].files["ttir"].decode()
    fused, made = re.subn(r"(%\w+) = arith\.addf %\w+, (%\w+) ", r"\1 = math.fma \2, \2, \2 ", ttir)
    assert made
    hivm, _ = ascend.to_hivm(ascend.to_linalg(fused, ascend_compilers), ascend_compilers)
    assert count(hivm, "hivm")["fma"] == 0
    with pytest.raises(ValueError, match="rule torch is not lowered"):
        ascend.to_ttir(ANY._replace(rule="torch"))


def test_the_same_again_and_no_path_of_this_machine(ascend_kernels, ascend_compilers):
    again = build.lower_all([build.unit_of(build.ASCEND, ANY, "plain")], ascend_compilers)
    assert list(again.values()) == [ascend_kernels[ANY]]
    for form, content in ascend_kernels[ANY].files.items():
        for path in (str(Path.cwd()), str(ascend_compilers.compile.parent), os.environ["TRITON_CACHE_DIR"], "/tmp/"):
            assert path.encode() not in content, form


def test_the_compiler_of_cann_is_called_where_it_is_installed(ascend_kernels, ascend_compilers, tmp_path):
    real = tmp_path / "hivmc-a5"  # only what is known of it: it takes HIVM, and -o names its result
    real.write_text('#!/bin/sh\nfor word; do [ "$last" = -o ] && out=$word; last=$word; done\n'
                    'wc -c < "$1" > "$out.o"\n')
    real.chmod(0o755)
    hivm, binary = ascend.to_hivm(ascend_kernels[ANY].files["linalg"].decode(), ascend_compilers._replace(hivmc=real))
    assert hivm == ascend_kernels[ANY].files["hivm"].decode()
    assert int(binary) > 10_000
