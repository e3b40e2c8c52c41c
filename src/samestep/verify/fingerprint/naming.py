"""Which rule do observed bits follow? Of a callable, by asking it; of recorded steps, by what they can tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samestep.verify.fingerprint.asking import Asking
from samestep.verify.fingerprint.evaluate import Case, part_of
from samestep.verify.fingerprint.hypotheses import Hypothesis, complexity, plain
from samestep.verify.fingerprint.probe import apart, cancelling, problem, setting_of, tensors, unobserved
from samestep.verify.fingerprint.regions import WIDTHS, Split, parts, splits
from samestep.verify.fingerprint.rivals import explaining
from samestep.verify.fingerprint.scoring import SAMPLE
from samestep.verify.fingerprint.verdict import Part, Verdict, conclude
from samestep.verify.observation import Observation, Target

MOST = 1 << 18  # elements of one tensor that are looked at

__all__ = ["Hypothesis", "Verdict", "of_callable", "of_dump"]


def of_callable(target: Target, *, dtype: str, rule: str = "cann", order: str = "spec", seed: int = 0) -> Verdict:
    """Name the rule that `target` follows, with tensors of `dtype`.

    The target is called as `samestep.verify.observation` says for the convention `rule` ("cann" or "torch"), some
    hundred times: first with every kind of step, then with inputs on which the hypotheses left disagree, until they
    agree on everything. `order` is the reference's for rule cann. What the target raises for single probes (values that
    it refuses) is noted; if it refuses all ordinary steps the error passes through.
    """
    asking = Asking(target, dtype, rule, plain(rule, order, dtype), seed)
    with np.errstate(all="ignore"):
        return asking.verdict()


def of_dump(observations: Sequence[Observation], *, order: str = "spec") -> Verdict:
    """Name the rule that recorded steps follow: all steps of one kernel, with tensors of one dtype.

    `accum` and `stat` of an observation may be None where they were not recorded. Only what the data can tell is told:
    the verdict is certain if every hypothesis left expects the same of any tensors with these hyperparameters.
    Of tensors with more than `MOST` elements a part is looked at, their end among it, and the verdict is not certain.
    Raises ValueError without observations, and if dtypes or conventions differ.
    """
    kinds = sorted({(o.problem.dtype, o.problem.rule) for o in observations})
    if len(kinds) != 1:
        raise ValueError(f"got steps of {kinds or 'no kind'}; accepted: one dtype and one convention at a time")
    dtype, rule = kinds[0]
    reference = plain(rule, order if rule == "cann" else "", dtype)
    with np.errstate(all="ignore"):
        cases = [_manageable(observation) for observation in observations]
        left_out = sum(o.problem.parameters.size for o in observations) - sum(case.size for case in cases)
        verdict = _verdict(cases, reference)
    if left_out:
        note = f"{left_out:,} elements of the dump were not looked at"
        return verdict._replace(certain=False, alternatives=(*verdict.alternatives, note))
    return verdict


def _manageable(observation: Observation) -> Case:
    """The step, or a part of it: evenly from the whole, and the end as it is, so that a tail is where it was."""
    size = observation.problem.parameters.size
    if size <= MOST:
        return Case(observation)
    end = size - size % 1024 - 4096
    evenly = np.linspace(0, end - 1, MOST // 2).astype(np.int64)
    return part_of(observation, np.concatenate([evenly, np.arange(end, size)]))


def _verdict(cases: Sequence[Case], reference: Hypothesis) -> Verdict:
    live, nearest = explaining(cases, reference)
    if live:
        hidden = live[0] != reference and _hides_a_tail(cases, reference)
        notes = [f"the tensors' tails may follow {reference}: they do not show the difference"] if hidden else []
        single = not hidden and _one_class(live, cases, reference)
        return conclude([Part(cases, live)], reference, single=single, notes=notes)
    return _divided(cases, nearest, reference) or conclude([Part(cases, [nearest])], reference, single=False)


def _hides_a_tail(cases: Sequence[Case], reference: Hypothesis) -> bool:
    """Whether a tail of some vector width looks as the reference rule would have left it."""
    tails = (parts(cases, split, "tail") for split in map(Split, WIDTHS))
    return any(tail and all(case.matches(reference) for case in tail) for tail in tails)


def _one_class(live: Sequence[Hypothesis], cases: Sequence[Case], reference: Hypothesis) -> bool:
    """Whether the hypotheses expect the same of fresh tensors with the cases' hyperparameters."""
    rng = np.random.default_rng(0)
    q = cases[0].problem
    settings = dict.fromkeys(setting_of(case.problem) for case in cases)
    fresh = (unobserved(problem(setting, q.dtype, q.rule, columns)) for setting in settings for columns in (
        tensors(rng, q.dtype, 4096), cancelling(rng, q.dtype, q.rule, setting, 4096, reference)))
    return not any(apart(case, live)[0] for case in fresh)


def _divided(cases: Sequence[Case], nearest: Hypothesis, reference: Hypothesis) -> Verdict | None:
    """The verdict where body and tail follow different rules; at last, where only the parameters of one part do."""
    head = [case.part(np.arange(max(1, min(case.size // 2, SAMPLE)))) for case in cases]
    for h in (nearest, explaining(head, reference)[1]):
        found = _split(cases, cases, h, reference)
        if found:
            return found
    loose = [Case(case.observation._replace(accum=None, stat=None)) for case in cases]
    still = reference.with_fault("parameters not updated")
    return _split(cases, loose, still, reference) or _split(cases, loose, explaining(loose, reference)[1], reference)


def _split(cases: Sequence[Case], shown: Sequence[Case], h: Hypothesis, reference: Hypothesis) -> Verdict | None:
    """The verdict of the first split by which `h` explains one part of what is `shown`, and something the other."""
    fitting = splits(shown, h)
    for split, which in fitting[:2]:
        other = "tail" if which == "body" else "body"
        live = explaining(parts(cases, split, other), reference)[0]
        if not live:
            continue
        live.sort(key=lambda one: (one.rule != h.rule, complexity(one, reference)))
        mine = parts(cases, split, which)
        body = f"body of vectors of {split.width}"
        both = {which: Part(mine, explaining(mine, reference)[0] or [h], body if which == "body" else "tail"),
                other: Part(parts(cases, split, other), live, body if other == "body" else "tail")}
        single = all(_one_class(part.hypotheses, part.cases, reference) for part in both.values())
        widths = [str(one.width) for one, part in fitting if part == which]
        notes = [f"vectors of {', '.join(widths)} fit equally"] if len(widths) > 1 else []
        return conclude([both["body"], both["tail"]], reference, single=single and not notes, notes=notes)
    return None
