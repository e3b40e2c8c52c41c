"""Packages that only graphs need, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtraError(ImportError):
    """A package that only graphs need is not installed; the message says how to get it."""


def module(name: str, package: str) -> Any:
    """The module `name` of the optional `package`; `MissingExtraError` without it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = f"graphs need {package} ({error}); install with: pip install 'samestep[graph]'"
        raise MissingExtraError(reason) from None
