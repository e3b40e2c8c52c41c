"""The suite's cases with golden outputs, as files for use elsewhere (`write`)."""

from samestep.verify.export.writing import Choice, ExportError, write

__all__ = ["Choice", "ExportError", "write"]
