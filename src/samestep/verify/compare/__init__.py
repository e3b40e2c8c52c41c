"""Observed steps against the rule, and against today's acceptance rules (`compare`)."""

from samestep.verify.compare.comparison import Comparison, compare, verdict

__all__ = ["Comparison", "compare", "verdict"]
