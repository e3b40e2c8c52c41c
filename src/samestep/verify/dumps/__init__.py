"""Tensors recorded elsewhere, read from untrusted files (`load`, `read`)."""

from samestep.verify.dumps.files import LIMIT, DumpError
from samestep.verify.dumps.loading import Dump, Given, load, read

__all__ = ["LIMIT", "Dump", "DumpError", "Given", "load", "read"]
