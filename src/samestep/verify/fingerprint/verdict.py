"""The fingerprint's answer, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from samestep.verify.fingerprint.evaluate import Case, Flags
from samestep.verify.fingerprint.hypotheses import Hypothesis
from samestep.verify.fingerprint.residual import residual
from samestep.verify.fingerprint.rivals import minimal

SHOWN = 12  # alternatives given in words
NEAREST = 2  # of them in the sentence


class Verdict(NamedTuple):
    """Which rule observed bits follow.

    Fields:
        sentence: the answer in one sentence.
        certain: everything is explained, and by one class of hypotheses only: they expect the same of any tensors (for
            dumps: with the hyperparameters of the dumps).
        hypotheses: all that explain everything, the simplest first; one for each part where parts of the tensor or
            kinds of step follow different ones; the nearest one where none explains everything.
        explained: for each tensor the elements explained by the first hypothesis (or by all parts), and all elements.
        alternatives: what else explains the data, in words.
        differing: for each tensor the elements in which the reference rule differs from what was observed.
        residual: the unexplained elements, grouped by where they lie and what kind of numbers they are.
    """

    sentence: str
    certain: bool
    hypotheses: tuple[Hypothesis, ...]
    explained: dict[str, tuple[int, int]]
    alternatives: tuple[str, ...]
    differing: dict[str, int]
    residual: tuple[str, ...]


class Part(NamedTuple):
    """What follows one hypothesis: some cases, in words (``where``), and all hypotheses that explain them."""

    cases: Sequence[Case]
    hypotheses: Sequence[Hypothesis]
    where: str = "all"


def counted(cases: Sequence[Case], h: Hypothesis) -> tuple[dict[str, tuple[int, int]], int, int]:
    """(explained and all elements by tensor, elements explained in every tensor, all elements)."""
    found: dict[str, tuple[int, int]] = {}
    good = 0
    for case in cases:
        everywhere: Flags = np.ones(case.size, bool)
        for name, flags in case.explained(h).items():
            label = "momentum_buffer" if name == "accum" and case.problem.rule == "torch" else name
            one, all_ = found.get(label, (0, 0))
            found[label] = (one + int(flags.sum()), all_ + flags.size)
            everywhere &= flags
        good += int(everywhere.sum())
    return found, good, sum(case.size for case in cases)


def conclude(parts: Sequence[Part], reference: Hypothesis, *, single: bool, notes: Sequence[str] = ()) -> Verdict:
    """The verdict of a search that ended with these parts; `single` says that each has one class of hypotheses."""
    explained: dict[str, tuple[int, int]] = {}
    differing: dict[str, int] = {}
    good = total = astray = 0
    left: list[str] = []
    for part in parts:
        tensors, some, all_ = counted(part.cases, part.hypotheses[0])
        usual, same, _ = counted(part.cases, reference)
        good, total, astray = good + some, total + all_, astray + all_ - same
        for name, (one, count) in tensors.items():
            before = explained.get(name, (0, 0))
            explained[name] = (before[0] + one, before[1] + count)
            differing[name] = differing.get(name, 0) + usual[name][1] - usual[name][0]
        left += residual(part.cases, part.hypotheses[0])
    parts = [part._replace(hypotheses=minimal(part.hypotheses)) for part in parts]
    first = tuple(h._replace(where=part.where) for part in parts for h in part.hypotheses[:1])
    others = tuple(h._replace(where=part.where) for part in parts for h in part.hypotheses[1:])
    complete = good == total
    sentence = _sentence(first, reference, explained, (good, total, astray))
    if complete and not single and others:
        sentence += f"; the data do not exclude {_counted(others)}"
    words = [f"{h}" for h in others[:SHOWN]] + ([f"and {len(others) - SHOWN:,} more"] if len(others) > SHOWN else [])
    hypotheses = first if len(parts) > 1 or not complete else (*first, *others)
    return Verdict(sentence, complete and single, hypotheses, explained, (*words, *notes), differing, tuple(left))


def _joined(hypotheses: Sequence[Hypothesis]) -> str:
    """The sentences of parts as one."""
    texts = [h.sentence for h in hypotheses]
    return (", and " if any("," in text for text in texts[:-1]) else " and ").join(texts)


def _counted(others: Sequence[Hypothesis]) -> str:
    """How many there are, and the first of them."""
    named = "; ".join(h.sentence for h in others[:NEAREST])
    if len(others) <= NEAREST:
        return named
    return f"{len(others):,} other explanations, nearest {named}"


def _sentence(first: Sequence[Hypothesis], reference: Hypothesis, explained: dict[str, tuple[int, int]],
              counts: tuple[int, int, int]) -> str:
    good, total, astray = counts
    named = f"{reference.rule} / {reference.order}" if reference.order else reference.rule
    amount = f"{good:,} of {total:,} elements"
    if good < total:
        return (f"not everything is explained; nearest is {_joined(first)}: {amount}; "
                f"{named} differs in {astray:,}")
    if len(first) == 1 and first[0] == reference:
        return f"follows {named} exactly; {amount}"
    names = [name for name in explained if name != "gradient"]
    tensors = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    follow = "follows" if len(names) == 1 and names[0] != "parameters" else "follow"
    return f"{tensors} {follow} {_joined(first)}; {amount}; {named} would differ in {astray:,}"
