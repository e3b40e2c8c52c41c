"""What lowering makes of one kernel."""

from __future__ import annotations

from typing import Any, NamedTuple


class Compiled(NamedTuple):
    """``function`` is its name in the code; ``files`` holds each form by its name, which is also its suffix.

    ``facts`` are what a launch needs to know and what the kernel uses, as far as the compiler says it;
    ``instructions`` are those of the form ``counted_in``, by class.
    """

    function: str
    files: dict[str, bytes]
    facts: dict[str, Any]
    instructions: dict[str, int]
    counted_in: str
