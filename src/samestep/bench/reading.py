"""Reading results files that others may have written: whatever is not one is refused, and says where."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samestep.bench.summary import Results

SCHEMA = 1
LIMIT = 256 << 20  # bytes; a file of 200 cases has one million
ACCEPTED = "accepted: a results.json that `samestep bench` wrote"
Form = Callable[[Any, str], None]


class ReadingError(ValueError):
    """A file that is no results file of this schema; the message says what was found and where."""


def read(path: Path) -> Results:
    """The results in the file, every field that this package uses checked. Raises `ReadingError`."""
    try:
        if path.exists() and not path.is_file():  # a folder, or a device that never ends
            raise ReadingError(f"{path} is no regular file; {ACCEPTED}")
        if path.exists() and path.stat().st_size > LIMIT:
            raise ReadingError(f"{path} has more than {LIMIT >> 20} MiB; {ACCEPTED}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReadingError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ReadingError(f"{path} is not text in UTF-8; {ACCEPTED}") from None
    try:
        found = json.loads(text, parse_constant=_constant)
    except RecursionError:
        raise ReadingError(f"{path} is nested too deep; {ACCEPTED}") from None
    except ValueError as error:
        raise ReadingError(f"{path} is not JSON, or was cut short ({error}); {ACCEPTED}") from None
    try:
        check(found)
    except ReadingError as error:
        raise ReadingError(f"{path}: {error}") from None
    return dict(found)


def check(found: Any) -> None:
    """Raise `ReadingError` if `found` is not what a results file of schema 1 holds."""
    if not isinstance(found, dict) or "schema" not in found:
        raise ReadingError(f"it has no field \"schema\"; {ACCEPTED}")
    if found["schema"] != SCHEMA or isinstance(found["schema"], bool):
        raise ReadingError(f"schema {_short(found['schema'])}; this version reads schema {SCHEMA}, so use the version "
                           "that wrote it, or measure again")
    _RESULTS(found, "")
    _named(_text)(found.get("left out", {}), "left out")


def _constant(name: str) -> None:
    raise ValueError(f"the number {name}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _refuse(value: Any, place: str, wanted: str) -> None:
    raise ReadingError(f"{place.lstrip('.')} is {_short(value)}; accepted: {wanted}")


def _text(value: Any, place: str) -> None:
    if not isinstance(value, str):
        _refuse(value, place, "text")


def _flag(value: Any, place: str) -> None:
    if not isinstance(value, bool):
        _refuse(value, place, "true or false")


def _number(value: Any, place: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
        _refuse(value, place, "a number")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _positive(value: Any, place: str) -> None:
    _number(value, place)
    if not 1e-30 < value < 1e30:  # beyond that, ratios of two could overflow
        _refuse(value, place, "a number above 0")


def _count(value: Any, place: str) -> None:
    _number(value, place)
    if not isinstance(value, int) or value < 0:
        _refuse(value, place, "a whole number")


def _counts(value: Any, place: str) -> None:
    _count(value, place)
    if value == 0:
        _refuse(value, place, "a whole number above 0")


def _distance(value: Any, place: str) -> None:
    """ULPs: an infinite distance is the word inf."""
    if value != "inf":
        _number(value, place)


def _one_of(*words: str) -> Form:
    def form(value: Any, place: str) -> None:
        if value not in words:
            _refuse(value, place, ", ".join(words))
    return form


def _list(each: Form) -> Form:
    def form(value: Any, place: str) -> None:
        if not isinstance(value, list):
            _refuse(value, place, "a list")
        for number, item in enumerate(value):
            each(item, f"{place}[{number}]")
    return form


def _named(each: Form) -> Form:
    def form(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            _refuse(value, place, "an object")
        for name, item in value.items():
            each(item, f"{place}.{_short(name)}")
    return form


def _fields(**forms: Form) -> Form:
    def form(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            _refuse(value, place, "an object")
        for name, each in forms.items():
            if name not in value:
                raise ReadingError(f"{place.lstrip('.') or 'it'} has no field \"{name}\"; {ACCEPTED}")
            each(value[name], f"{place}.{name}")
    return form


def _case(value: Any, place: str) -> None:
    """A case; its fields must fit together as well."""
    _CASE(value, place)
    _named(_text)(value.get("left out", {}), f"{place}.left out")
    if value["best"] not in value["ratios"] or value["best"] not in value["times"]:
        _refuse(value["best"], f"{place}.best", "a peer that \"times\" and \"ratios\" have")
    if "samestep" not in value["times"]:
        raise ReadingError(f"{place.lstrip('.')}.times has no \"samestep\"; {ACCEPTED}")


def _cost(value: Any, place: str) -> None:
    """A start-up cost; its median is null where it could not be measured."""
    _fields(name=_text, unit=_one_of("s", "us"))(value, place)
    if "median" not in value:
        raise ReadingError(f"{place.lstrip('.')} has no field \"median\"; {ACCEPTED}")
    if value["median"] is not None:
        _positive(value["median"], f"{place}.median")
    for name in ("counted", "left out"):
        _text(value.get(name, ""), f"{place}.{name}")


def _run(value: Any, place: str) -> None:
    _fields(threads=_counts, cases=_list(_case))(value, place)
    _named(_text)(value.get("skipped", {}), f"{place}.skipped")


def _line(value: Any, place: str) -> None:
    _LINE(value, place)
    _named(_text)(value.get("left out", {}), f"{place}.left out")
    _number(value.get("most per tensor", 0), f"{place}.most per tensor")


_TIME = _fields(median=_positive, p10=_positive, p90=_positive)
_RATIO = _fields(median=_positive, p10=_positive, p90=_positive, low=_positive, high=_positive)
_GRADE = _fields(grade=_one_of("same bits", "rounding", "wrong"), differing=_count, checked=_count, ulps=_distance)
_CASE = _fields(
    name=_text, suite=_one_of("op", "optim"), dtype=_text, setting=_text, shape=_text, tensors=_counts,
    elements=_counts, bytes=_counts, rounds=_count, repeated=_count, times=_named(_TIME), ratios=_named(_RATIO),
    grades=_named(_GRADE), best=_text, ratio=_positive, low=_positive, high=_positive,
    verdict=_one_of("faster", "tie", "slower"))
_POINT = _fields(tensors=_counts, elements=_counts, median=_positive, p10=_positive, p90=_positive)
_LINE = _fields(threads=_counts, kind=_text, points=_list(_POINT),
                fit=_fields(fixed=_number, slope=_number, residual=_number))
_RESULTS = _fields(
    created=_text, seconds=_number, quick=_flag,
    machine=_fields(processor=_text, cores=_count, system=_text, caches=_named(_count)), versions=_named(_text),
    runs=_list(_run), scaling=_list(_line),
    startup=_list(_cost))
