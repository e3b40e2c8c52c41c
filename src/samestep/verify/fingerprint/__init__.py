"""Which rule, and which departure from it, the bits of a kernel follow (`of_callable`, `of_dump`)."""

from samestep.verify.fingerprint.hypotheses import Hypothesis
from samestep.verify.fingerprint.naming import of_callable, of_dump
from samestep.verify.fingerprint.verdict import Verdict

__all__ = ["Hypothesis", "Verdict", "of_callable", "of_dump"]
