"""The suite's cases with golden outputs, as files for use elsewhere: on a device, in a test kit, in another language.

The same arguments write the same bytes: nothing depends on the time, the machine or the caller's floating-point
environment. manifest.json, written last, holds the hash of every other file, so a folder without it is not complete.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import samestep
from samestep.engine import fpenv
from samestep.verify.export import golden_files
from samestep.verify.export.golden_files import Case, Sink
from samestep.verify.suite import cases, judge
from samestep.verify.suite.draw import Item

FORMAT = 1  # of the manifest


class Choice(NamedTuple):
    """Which cases: those of a `level`, at most `at_most` of them, none of more than `max_elements` elements."""

    rule: str = "cann"
    order: str = "spec"
    level: str = "quick"
    dtypes: tuple[str, ...] = ()
    seed: int = 0
    at_most: int | None = None
    max_elements: int | None = None


class ExportError(ValueError):
    """An export that cannot be made: its text says what was asked for and what would be accepted."""


def write(form: str, folder: Path, choice: Choice, watch: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Write the chosen cases in the form ``npz``, ``bin``, ``json`` or ``ttk`` into `folder`; return the manifest.

    The folder must not exist, or be empty. `watch` is called with the number of cases written and of all. Raises
    `ExportError` before anything is written, and OSError.
    """
    if form not in golden_files.FORMS:
        raise ExportError(f"format {form!r}: accepted: {', '.join(golden_files.FORMS)}")
    if form == "ttk" and choice.rule != "cann":
        raise ExportError(f"format ttk describes the operator, which is rule cann; got rule {choice.rule!r}")
    if folder.is_dir() and any(folder.iterdir()):
        raise ExportError(f"folder {folder} is not empty; give a new or an empty one, so that no old case is mistaken "
                          "for a new one")
    with fpenv.default(), np.errstate(all="ignore"):
        items, left_out = chosen(choice)
        if not items:
            raise ExportError(f"no case is left: {left_out:,} have more than {choice.max_elements} elements")
        folder.mkdir(parents=True, exist_ok=True)
        sink = Sink(folder)
        golden_files.FORMS[form](_drawn(items, choice.order, watch), sink, choice.rule, choice.order)
        return _manifest(sink, form, choice, items, left_out)


def chosen(choice: Choice) -> tuple[list[Item], int]:
    """The cases in the suite's order, and how many were left out for their size.

    `at_most` is spread evenly over dtypes and families; which cases of a family are taken depends on the seed.
    """
    pool = list(cases.items(choice.rule, level=choice.level, order=choice.order, dtypes=choice.dtypes or None,
                            seed=choice.seed))
    taken: list[int] = []
    left_out = 0
    for place in range(len(pool)) if choice.at_most is None else _spread(pool, choice.seed):
        if len(taken) == choice.at_most:
            break
        if choice.max_elements is not None and pool[place].problem().parameters.size > choice.max_elements:
            left_out += 1
        else:
            taken.append(place)
    return [pool[place] for place in sorted(taken)], left_out


def _spread(pool: list[Item], seed: int) -> list[int]:
    """The places of all items: one of each dtype and family in turn."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, item in enumerate(pool):
        groups[item.dtype, item.family].append(place)
    turns = []
    for number, places in enumerate(groups.values()):
        shuffled = np.random.default_rng([seed, number]).permutation(places).tolist()
        turns += [(turn, place) for turn, place in enumerate(shuffled)]
    return [place for _, place in sorted(turns)]


def _drawn(items: list[Item], order: str, watch: Callable[[int, int], None] | None) -> Iterator[Case]:
    for number, item in enumerate(items):
        problem = item.problem()
        text = re.sub(r"[^A-Za-z0-9.+-]+", "_", item.name)
        yield Case(f"{number:05d}_{text}"[:120], item, problem, judge.expected(problem, order))
        if watch:
            watch(number + 1, len(items))


def _manifest(sink: Sink, form: str, choice: Choice, items: list[Item], left_out: int) -> dict[str, Any]:
    whole = {
        "format": FORMAT, "kind": "samestep cases", "form": form, "samestep": samestep.__version__,
        "numpy": np.__version__, "choice": choice._asdict(), "cases": len(items), "left_out": left_out,
        "families": dict(sorted(Counter(item.family for item in items).items())),
        "dtypes": dict(sorted(Counter(item.dtype for item in items).items())), "bytes": sink.size,
        "sha256": dict(sorted(sink.hashes.items())),
    }
    sink.write("manifest.json", (json.dumps(whole, indent=1) + "\n").encode())
    return whole
