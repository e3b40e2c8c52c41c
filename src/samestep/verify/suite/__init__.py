"""The conformance suite: cases from the rules, run on a target and judged to the bit (`run`)."""

from samestep.verify.suite.runner import run

__all__ = ["run"]
