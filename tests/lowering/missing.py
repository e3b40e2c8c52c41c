"""What a test does without the compiler it needs."""

from __future__ import annotations

import os

import pytest


def give_up(reason: str) -> None:
    """Skip; with SAMESTEP_COMPILERS=required fail."""
    if os.environ.get("SAMESTEP_COMPILERS") == "required":
        pytest.fail(reason)
    pytest.skip(reason)
