"""What a run of the conformance suite found, as data: printed, exported and drawn elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from samestep.verify.observation import Observation, Problem

# Upper ends of the histogram's bins, in ULPs; the last bin is open, and holds "a NaN against a number" too.
BINS = (0, 1, 2, 4, 16, 256, 65536)


class Failure(NamedTuple):
    """One element that breaks a rule: the first one of an item, and the smallest input that still shows it.

    `expected` and `got` are patterns of `dtype`; `ulps` is their distance. `found` counts the differing elements of the
    item. `problem` is the shrunk input, and the other fields are about its element; only the first failures of a rule
    and dtype are shrunk, of the others it is None. `observed` is what the target made of it.
    """

    tensor: str
    position: int
    expected: int
    got: int
    dtype: str
    ulps: float
    found: int
    problem: Problem | None
    observed: Observation | None = None


class Check(NamedTuple):
    """One item of the suite: a named check of one rule on one set of tensors (or of one refusal).

    `family` says what kind of case it is, `rule` is the id of SEMANTICS it checks. `message` is empty when the item
    passed. `elements` counts the judged elements of all written tensors; `ulps` is the largest distance among them.
    """

    name: str
    family: str
    rule: str
    dtype: str
    passed: bool
    elements: int = 0
    message: str = ""
    failure: Failure | None = None
    ulps: float = 0.0


class Results(NamedTuple):
    """All items of one run.

    `histogram` maps (dtype, tensor) to counts of elements by distance in ULPs, one count for each of `BINS` and one for
    what lies beyond. `sentences` are the fingerprint's, by dtype, where something failed.
    """

    subject: str
    rule: str
    order: str
    level: str
    seed: int
    seconds: float
    versions: dict[str, str]
    checks: list[Check]
    histogram: dict[tuple[str, str], list[int]]
    sentences: dict[str, str]

    @property
    def failed(self) -> list[Check]:
        """The items that did not pass."""
        return [check for check in self.checks if not check.passed]
