"""Compilers for the tests of lowered kernels, and what they make of them.

Where a compiler is missing its tests are skipped; with SAMESTEP_COMPILERS=required they fail.
"""

from __future__ import annotations

import pytest

from lowering.missing import give_up
from samestep.contract import ORDERS
from samestep.lowering import build, tools


@pytest.fixture(scope="session")
def fresh(tmp_path_factory):
    """Triton compiles anew, and keeps nothing in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(scope="session")
def triton_compiler(fresh):
    try:
        tools.check_triton()
    except tools.MissingToolError as error:
        give_up(str(error))


@pytest.fixture(scope="session")
def ascend_compilers(triton_compiler):
    try:
        return tools.ascend()
    except tools.MissingToolError as error:
        give_up(str(error))


@pytest.fixture(scope="session")
def ascend_kernels(ascend_compilers):
    """All kernels of rule cann for Ascend 950 in both orders: 72."""
    wanted = build.kernels("cann", build.every_key("cann"), build.RULE_DTYPES["cann"], ORDERS)
    units = [build.unit_of(build.ASCEND, kernel, "plain") for kernel in wanted]
    return {unit.kernel: result for unit, result in build.lower_all(units, ascend_compilers).items()}
