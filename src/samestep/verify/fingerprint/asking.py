"""Asking a callable: inputs on which the hypotheses left disagree, until one class of them is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from samestep.verify.fingerprint.evaluate import Case
from samestep.verify.fingerprint.hypotheses import Hypothesis, complexity
from samestep.verify.fingerprint.probe import (
    MAIN,
    Setting,
    apart,
    cancelling,
    problem,
    setting_of,
    settings,
    tensors,
    unobserved,
)
from samestep.verify.fingerprint.regions import Split, parts, splits, unexplained
from samestep.verify.fingerprint.rivals import alive, explaining, others, rivals
from samestep.verify.fingerprint.scoring import Facts
from samestep.verify.fingerprint.verdict import Part, Verdict, conclude
from samestep.verify.observation import Observation, Target, TargetError, observe
from samestep.verify.patterns import Words

SIZE = 1024  # a multiple of every vector width looked for
LONG = 3071  # leaves a tail of width-1 for every one of them
ASKED = 512  # elements of a question
SHORT = 3  # all tail, of vectors of any width
ROUNDS = 6


class Asking:
    """A conversation with `target`."""

    def __init__(self, target: Target, dtype: str, rule: str, reference: Hypothesis, seed: int) -> None:
        self.target, self.dtype, self.rule, self.reference = target, dtype, rule, reference
        self.rng = np.random.default_rng(seed)
        self.settings = settings(rule)
        self.refused: dict[Setting, Exception] = {}

    def observe(self, setting: Setting, columns: Sequence[Words]) -> Case | None:
        """One step of the target; None where it refuses the hyperparameters."""
        if setting in self.refused:
            return None
        try:
            return Case(observe(self.target, problem(setting, self.dtype, self.rule, columns)))
        except TargetError:
            raise
        except Exception as error:
            self.refused[setting] = error
            return None

    def rich(self, setting: Setting, size: int, h: Hypothesis) -> list[Words]:
        """Tensors of which one half is of all kinds, and in the other half the sums of `h` almost cancel."""
        one = tensors(self.rng, self.dtype, size // 2)
        other = cancelling(self.rng, self.dtype, self.rule, setting, size - size // 2, h)
        return [np.concatenate(pair) for pair in zip(one, other, strict=True)]

    def first(self) -> list[Case]:
        """A step of every kind; what the target raises passes through if it refuses all ordinary ones."""
        cases = [self.observe(setting, self.rich(setting, SIZE, self.reference)) for setting in self.settings]
        if all(setting in self.refused for setting in MAIN):
            raise self.refused[MAIN[0]]
        return [case for case in cases if case]

    def verdict(self) -> Verdict:
        """Everything asked and concluded."""
        cases = self.first()
        live, nearest = explaining(cases, self.reference)
        live, single = self.refined(live, cases)
        if not live:
            return self.by_key(cases) or self.concluded([Part(cases, [nearest])], False)
        telling = evidence(live[0], cases)
        short = [case for setting, columns in telling.items() if (case := self.pieces(setting, columns, SHORT))]
        wrong = {setting_of(case.problem): _taken(case, places) for case in short
                 if (places := unexplained(case, live[0])).size}
        long = [case for setting in dict.fromkeys((*MAIN, *telling))
                if (case := self.long(setting, wrong.get(setting) or telling.get(setting), live[0]))]
        if all(case.matches(live[0]) for case in (*short, *long)):
            return self.concluded([Part([*cases, *short, *long], live)], single)
        return self.divided(live, single, cases, long, short)

    def concluded(self, parts_: Sequence[Part], single: bool) -> Verdict:
        """The verdict, with a note of what was refused."""
        notes = []
        if self.refused:
            error = next(iter(self.refused.values()))
            notes.append(f"the target refused {len(self.refused)} of {len(self.settings)} kinds of step, so nothing is "
                         f"said of them: {type(error).__name__}: {error}"[:300])
        return conclude(parts_, self.reference, single=single, notes=notes)

    def refined(self, live: list[Hypothesis], cases: list[Case]) -> tuple[list[Hypothesis], bool]:
        """Ask about what the hypotheses disagree on; (those left, whether they agree on everything tried).

        The answers are added to `cases`. What is left may have rivals of its own, which are then asked about too.
        """
        known, searched = set(live), len(cases)
        for _ in range(ROUNDS):
            live, single = self.asked(live, cases)
            if not live:
                if len(cases) == searched:
                    break
                live, searched = explaining(cases, self.reference)[0], len(cases)
            more = others(live[:1], list(known | set(live)), cases)
            if single and live and not more and known >= set(live):
                return live, True
            known |= set(live) | set(more)
            live = sorted([*live, *more], key=lambda h: complexity(h, self.reference))
        return live, False

    def asked(self, live: list[Hypothesis], cases: list[Case]) -> tuple[list[Hypothesis], bool]:
        """One round of questions about every setting; (those left, whether they agree on everything tried)."""
        single = True
        for setting in self.settings:
            for _ in range(ROUNDS):
                question = None if setting in self.refused else self.question(setting, live)
                case = None if question is None else self.observe(setting, question)
                if case is None:
                    break
                cases.append(case)
                live = alive(live, [case])
            else:
                single = False
        return live, single

    def question(self, setting: Setting, live: Sequence[Hypothesis]) -> list[Words] | None:
        """Tensors on which the hypotheses disagree; None if none were found."""
        if len(live) < 2:
            return None
        columns = self.rich(setting, 4096, live[0])
        differing = apart(unobserved(problem(setting, self.dtype, self.rule, columns)), live)[1]
        places = np.flatnonzero(differing)
        if not places.size:
            return None
        places = np.sort(self.rng.permutation(places)[:ASKED])
        filled = np.concatenate([places, self.rng.integers(0, 4096, SIZE - places.size)])
        return [words[filled] for words in columns]

    def long(self, setting: Setting, telling: Sequence[Words] | None, h: Hypothesis) -> Case | None:
        """A long tensor, at whose end elements `telling` come again and again, or such as nearly cancel."""
        columns = tensors(self.rng, self.dtype, LONG)
        telling = telling or cancelling(self.rng, self.dtype, self.rule, setting, 64, h)
        order = self.rng.permutation(telling[0].size)
        end = LONG - LONG % SIZE
        return self.observe(setting, [np.concatenate([words[:end], np.resize(some[order], LONG - end)])
                                      for words, some in zip(columns, telling, strict=True)])

    def divided(self, live: list[Hypothesis], single: bool, cases: list[Case], long: list[Case],
                short: list[Case]) -> Verdict:
        """The verdict where the ends of tensors follow another rule than their bodies."""
        found = splits(long, live[0])
        if not found:
            return self.concluded([Part([*cases, *short, *long], live[:1])], False)
        split, which = found[0]
        if which == "body":
            tails = [case for setting in self.settings if (case := self.tails(setting, split))]
            others = [*tails, *short, *parts(long, split, "tail")]
            mine = [*cases, *parts(long, split, "body")]
        else:
            others, mine = parts(long, split, "body"), [*cases, *parts(long, split, "tail")]
        rest = explaining(others, self.reference)[0]
        rest.sort(key=lambda h: (h.rule != live[0].rule, complexity(h, self.reference)))
        rest, agreed = self.separated(rest, others, split.width - 1 if which == "body" else SIZE)
        if not rest:
            return self.concluded([Part([*cases, *short, *long], live[:1])], False)
        body = f"body of vectors of {split.width}"
        both = [Part(mine, live, body), Part(others, rest, "tail")]
        if which == "tail":
            both = [Part(others, rest, body), Part(mine, live, "tail")]
        return self.concluded(both, single and agreed)

    def separated(self, live: list[Hypothesis], cases: list[Case], length: int) -> tuple[list[Hypothesis], bool]:
        """Ask by pieces of `length`, which add to `cases`; (the hypotheses left, whether they agree on all tried)."""
        for _ in range(ROUNDS):
            questions = [(setting, self.question(setting, live))
                         for setting in self.settings if setting not in self.refused]
            asked = [case for setting, columns in questions
                     if columns and (case := self.pieces(setting, columns, length))]
            if not asked:
                return live, True
            cases += asked
            live = alive(live, asked)
        return live, False

    def tails(self, setting: Setting, split: Split) -> Case | None:
        """Many steps of tensors that are shorter than a vector, as one case."""
        length = split.width - 1
        return self.pieces(setting, self.rich(setting, -(-256 // length) * length, self.reference), length)

    def pieces(self, setting: Setting, columns: Sequence[Words], length: int) -> Case | None:
        """Steps of tensors of at most `length` elements, as one case."""
        answers = []
        for start in range(0, columns[0].size, length):
            case = self.observe(setting, [words[start:start + length] for words in columns])
            if case is None:
                return None
            answers.append(case.observation)
        joined = [None if any(words is None for words in column) else np.concatenate(column)
                  for column in zip(*(answer[1:] for answer in answers), strict=True)]
        return Case(Observation(problem(setting, self.dtype, self.rule, columns), *joined))  # type: ignore[arg-type]

    def by_key(self, cases: Sequence[Case]) -> Verdict | None:
        """The verdict where keys (dampening, weight decay, nesterov) follow different rules."""
        groups = {name: [case for case in cases if _key(case) == name] for name in dict.fromkeys(map(_key, cases))}
        found: dict[Hypothesis, list[str]] = {}
        lives: dict[str, list[Hypothesis]] = {}
        for name, group in groups.items():
            lives[name] = explaining(group, self.reference)[0]
            if not lives[name]:
                return None
        for name, live in lives.items():
            known = next((h for h in found if h in live), live[0])
            found.setdefault(known, []).append(name)
        parts_ = [Part([case for name in names for case in groups[name]], [h], "steps with " + ", ".join(names))
                  for h, names in found.items()]
        return self.concluded(parts_, False)


def evidence(h: Hypothesis, cases: Sequence[Case]) -> dict[Setting, list[Words]]:
    """By setting: of everything asked in `cases` a few elements that together tell `h` from all its rivals."""
    chosen: dict[int, set[int]] = {}
    for rival in dict.fromkeys(rivals(h, Facts(cases))):
        for k, case in enumerate(cases):
            wrong = unexplained(case, rival)
            if wrong.size:
                mine = chosen.setdefault(k, set())
                if mine.isdisjoint(wrong.tolist()):
                    mine |= set(wrong[np.linspace(0, wrong.size - 1, SHORT).astype(int)].tolist())
                break
    found: dict[Setting, list[Words]] = {}
    for k, mine in chosen.items():
        setting, columns = setting_of(cases[k].problem), _taken(cases[k], sorted(mine))
        known = found.get(setting, [words[:0] for words in columns])
        found[setting] = [np.concatenate(pair) for pair in zip(known, columns, strict=True)]
    return found


def _taken(case: Case, places: Any) -> list[Words]:
    """The inputs of some elements; what a first step lacks as zeros."""
    q = case.problem
    absent = np.zeros_like(q.parameters)
    return [(absent if words is None else words)[places] for words in (q.parameters, q.gradient, q.accum, q.stat)]


def _key(case: Case) -> str:
    q = case.problem
    terms = [("dampening", q.dampening), ("weight decay", q.weight_decay), ("nesterov", q.nesterov),
             ("maximize", q.maximize)]
    return " and ".join(name for name, there in terms if there) or "neither term"
