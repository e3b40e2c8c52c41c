"""CASE.json: what it may say, read strictly. Documented in docs/dumps.md."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, NoReturn

from samestep.contract import MAX_RANK, ORDERS
from samestep.verify.dumps.files import DumpError
from samestep.verify.patterns import TYPES

SIZE = 1 << 20  # bytes that a CASE.json may have
RULES = ("cann", "torch")
INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
OUTPUTS = ("parameters", "accum", "stat", "gradient")
ALIASES = {"momentum_buffer": "accum"}
NUMBERS = ("learning_rate", "momentum", "dampening", "weight_decay")
FLAGS = ("nesterov", "maximize")
_FIELDS = ("rule", "order", "dtype", "shape", *NUMBERS, *FLAGS, "inputs", "outputs", "comment")
_ENTRY = ("file", "key", "dtype", "shape", "offset")
_SPELLED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Entry(NamedTuple):
    """Where one tensor lies: a file, in a file of several its key, and for raw words what they are."""

    file: str
    key: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    offset: int | None = None


def parse(data: bytes, name: str) -> list[dict[str, Any]]:
    """The steps of a CASE.json, each with the fields it shares with the others; checked, files not yet opened.

    Numbers are floats, shapes tuples; learning_rate and momentum may be an `Entry`; inputs and outputs are a file's
    name or a dict of `Entry` by tensor. Raises `DumpError` that names the field.
    """
    try:
        case = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise DumpError(f"{name!r} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise DumpError(f"{name!r} is nested too deeply; a case needs four levels") from None
    except ValueError as error:
        raise DumpError(f"{name!r} is no JSON: {error}") from None
    if not isinstance(case, dict):
        raise DumpError(f"{name!r} holds {_shown(case)}; expected an object: {{\"dtype\": ..., \"inputs\": ...}}")
    steps = case.pop("steps", [{}])
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        _refuse(name, "steps", steps, "a list of objects, one a step")
    return [check({**case, **step}, name) for step in steps]


def check(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields of one step in their Python types; `DumpError` for a field or value that does not exist."""
    checked: dict[str, Any] = {}
    for field, value in fields.items():
        if field not in _FIELDS:
            raise DumpError(f"{name!r} has the field {field!r}; accepted: steps, {', '.join(_FIELDS)}")
        if field == "comment":
            continue
        checked[field] = _value(field, value, name)
    return checked


def _value(field: str, value: Any, name: str) -> Any:
    if field in ("rule", "order", "dtype"):
        names = {"rule": RULES, "order": ORDERS, "dtype": tuple(TYPES)}[field]
        if value not in names:
            _refuse(name, field, value, " or ".join(map(repr, names)))
        return value
    if field == "shape":
        return _shape(value, name, field)
    if field in FLAGS:
        if not isinstance(value, bool):
            _refuse(name, field, value, "true or false")
        return value
    if field in NUMBERS:
        return _number(value, name, field)
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        _refuse(name, field, value, "a file's name, or an object of files by tensor")
    known = INPUTS if field == "inputs" else OUTPUTS
    entries = {}
    for tensor, place in value.items():
        role = ALIASES.get(tensor, tensor)
        if role not in known or role in entries:
            _refuse(name, field, tensor, f"each of {', '.join(known)} once (momentum_buffer is rule torch's accum)")
        entries[role] = _entry(place, name, f"{field}.{tensor}")
    return entries


def _number(value: Any, name: str, field: str) -> Any:
    """A number, also one spelled "nan", "inf" or "-inf"; for learning_rate and momentum also a file."""
    if isinstance(value, str) and value in _SPELLED:
        return _SPELLED[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            _refuse(name, field, value, 'a number within float64, or "nan", "inf" or "-inf" as text')
        return number
    if field in ("learning_rate", "momentum") and isinstance(value, (str, dict)):
        return _entry(value, name, field)
    _refuse(name, field, value, "a number" + (" or a file" if field in ("learning_rate", "momentum") else ""))


def _shape(value: Any, name: str, field: str) -> tuple[int, ...]:
    fits = isinstance(value, (list, tuple)) and len(value) <= MAX_RANK
    if not fits or not all(type(dim) is int and 1 <= dim < 1 << 48 for dim in value):
        _refuse(name, field, value, f"a list of at most {MAX_RANK} whole numbers of 1 or more")
    return tuple(value)


def _entry(value: Any, name: str, field: str) -> Entry:
    if isinstance(value, str):
        return Entry(value)
    if not isinstance(value, dict) or not isinstance(value.get("file"), str) or set(value) - set(_ENTRY):
        _refuse(name, field, value, f"a file's name, or an object of {', '.join(_ENTRY)} with at least a file")
    key, dtype, shape, offset = (value.get(part) for part in _ENTRY[1:])
    if key is not None and not isinstance(key, str):
        _refuse(name, f"{field}.key", key, "the tensor's name in the file")
    if dtype is not None and dtype not in tuple(TYPES):
        _refuse(name, f"{field}.dtype", dtype, " or ".join(map(repr, TYPES)))
    if offset is not None and (type(offset) is not int or offset < 0):
        _refuse(name, f"{field}.offset", offset, "bytes, 0 or more")
    return Entry(value["file"], key, dtype, None if shape is None else _shape(shape, name, f"{field}.shape"), offset)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} stands twice in one "
                         "object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number; write \"nan\", \"inf\" or \"-inf\" as text")


def _refuse(name: str, field: str, value: Any, accepted: str) -> NoReturn:
    raise DumpError(f"{name!r}: {field}: got {_shown(value)}; accepted: {accepted}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
