"""The drop-in for `torch.optim.SGD`: the same bits, faster, without the defects (rule T); needs torch."""

from __future__ import annotations

from samestep.optim.sgd import SGD

# isort: split
from samestep.optim.functional import sgd  # after the module of the same name, which it hides

__all__ = ["SGD", "sgd"]
