"""The operator as data, and the only place that refuses (rules O1..O4, O10..O13, S2).

Everything that can be refused is refused here, before the first byte is written. The callers hand over what they
found as plain values (`Inputs`: columns of names, dtypes, shapes, addresses); nothing here looks inside an array.
"""

from __future__ import annotations

import functools
import numbers
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from samestep.rounding import round_number

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
SCALARS = ("learning_rate", "momentum")
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}  # name: bytes per element
ORDERS = ("spec", "ascend950")
MAX_RANK = 8
UNKNOWN_DIM = -1
UNKNOWN_RANK = (-2,)
CODES = (
    "unsupported_dtype", "dtype_mismatch", "rank_out_of_range", "null_input", "shape_mismatch", "scalar_shape",
    "not_contiguous", "read_only", "overlap", "attribute_value_out_of_range", "unsupported_device", "wrong_type",
    "unsupported_format", "unknown_order", "engine_unavailable", "batch_length",
)

Shape = tuple[int, ...]


class ContractError(ValueError):
    """What the operator refuses, as data and as a sentence (rule O12).

    Attributes: ``code`` is one of `CODES`; ``input`` names the input, attribute or argument at fault
    (``gradient``, in a batch ``gradient[3]``); ``got`` is what came; ``accepted`` is what would have been taken.
    Nothing has been written when it is raised (rule O11).
    """

    def __init__(self, code: str, input: str, got: str, accepted: str) -> None:
        super().__init__(code, input, got, accepted)
        self.code, self.input, self.got, self.accepted = code, input, got, accepted

    def __str__(self) -> str:
        return f"{self.input}: got {self.got}; accepted: {self.accepted} [{self.code}]"


def refuse(code: str, input: str, got: str, accepted: str) -> NoReturn:
    """Raise `ContractError`; a code outside `CODES` is a mistake of the caller."""
    assert code in CODES, code
    raise ContractError(code, input, got, accepted)


class Attributes(NamedTuple):
    """The attributes as rule O4 sees them: rounded to float32 (held as Python floats) before anything else."""

    dampening: float
    weight_decay: float
    nesterov: bool


class Unusual(NamedTuple):
    """What sets a tensor apart from a writable C-contiguous one on the CPU; `problem` says why an object is none."""

    problem: str | None = None
    device: str = "cpu"
    contiguous: bool = True
    writable: bool = True


class Inputs(NamedTuple):
    """What is known of all tensors of a call, as columns; rows in the order of `INPUTS`, each input's batch together.

    ``counts`` holds the number of rows per input (1 for learning_rate and momentum). ``unusual`` is None for a plain
    tensor. ``addresses`` and ``sizes`` are in bytes, ``shapes`` in elements; ``owners`` keep the memory alive.
    """

    batch: bool
    counts: tuple[int, ...]
    unusual: tuple[Unusual | None, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    owners: tuple[Any, ...]

    def name(self, row: int) -> str:
        """The name a user knows row `row` by."""
        for name, count in zip(INPUTS, self.counts, strict=True):
            if row < count:
                return f"{name}[{row}]" if self.batch and name not in SCALARS else name
            row -= count
        raise IndexError(row)


def check_order(order: Any) -> None:
    """Refuse an evaluation order that is not one of `ORDERS`."""
    if not isinstance(order, str) or order not in ORDERS:
        refuse("unknown_order", "order", _value(order), " or ".join(map(repr, ORDERS)))


def check_engine(name: Any, reasons: dict[str, str | None]) -> None:
    """Refuse an engine that does not exist, or is unavailable for the reason given in `reasons`."""
    usable = [known for known, reason in reasons.items() if reason is None]
    if not isinstance(name, str) or name not in reasons:
        refuse("engine_unavailable", "engine", _value(name), f"None or one of {usable}")
    if reasons[name] is not None:
        refuse("engine_unavailable", "engine", f"{name!r}, which is unavailable here: {reasons[name]}", f"{usable}")


def check_sequence(name: str, value: Any) -> list[Any]:
    """The tensors of one input of a batch as a list; an array is no sequence of tensors."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        refuse("wrong_type", name, f"an object of type {type(value).__name__}", "a list or tuple of tensors")
    return list(value)


def check_inputs(inputs: Inputs, device: str = "cpu", reason: str = "") -> None:
    """Rules O1, O2, O3, O12 in the order of rule O12, up to the scalars' shapes.

    All tensors have to lie on `device`; `reason` says why no other would do.
    """
    unusual = [(row, facts) for row, facts in enumerate(inputs.unusual) if facts] if any(inputs.unusual) else ()
    if unusual or device != "cpu":
        _check_kinds(inputs, unusual, device, reason)
    n = inputs.counts[0]
    for k in (1, 3, 5):
        if inputs.counts[k] != n:
            refuse("batch_length", INPUTS[k], f"{inputs.counts[k]} tensors", f"{n} tensors, as many as parameters")
    names = _Names(inputs) if inputs.batch else INPUTS
    check_dtypes(names, inputs.dtypes)
    for row, facts in unusual:
        if not facts.contiguous:
            refuse("not_contiguous", names[row], f"a non-contiguous view of shape {tuple(inputs.shapes[row])}",
                   "a C-contiguous tensor (a copy would lose the write-back)")
    if inputs.batch:
        check_shapes(names, inputs.shapes, n)
    else:
        _check_single(inputs.shapes)


def _check_kinds(inputs: Inputs, unusual: Sequence[tuple[int, Unusual]], device: str, reason: str) -> None:
    for row, facts in unusual:
        if facts.problem:
            kinds = "a NumPy array, a torch tensor or a CPU object with DLPack"
            kinds += ", or a Python number" if inputs.name(row) in SCALARS else ""
            refuse("wrong_type", inputs.name(row), facts.problem, kinds)
    for row, found in enumerate(facts.device if facts else "cpu" for facts in inputs.unusual):
        if found != device:
            refuse("unsupported_device", inputs.name(row), f"a tensor on device {found!r}",
                   f"one on {device!r}{reason}")


@functools.lru_cache(maxsize=256)
def _check_single(shapes: tuple[Shape, ...]) -> None:
    """`check_shapes` remembers what it found good: the same few shapes come at every step."""
    check_shapes(INPUTS, shapes, 1)


class _Names(Sequence[str]):
    """The names of all rows of a batch, made only when one is needed."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._inputs.shapes)

    def __getitem__(self, row: Any) -> Any:
        return self._inputs.name(row)


def check_dtypes(names: Sequence[str], dtypes: Sequence[str]) -> None:
    """Rule O1 over dtype names, parameters first."""
    first = dtypes[0]
    if first in DTYPES and dtypes.count(first) == len(dtypes):
        return
    for row, dtype in enumerate(dtypes):
        if dtype not in DTYPES:
            refuse("unsupported_dtype", names[row], f"dtype {dtype}",
                   f"{first}, the dtype of parameters" if first in DTYPES else ", ".join(DTYPES))
        if dtype != first:
            refuse("dtype_mismatch", names[row], f"dtype {dtype}", f"{first}, the dtype of {names[0]}")


def check_shapes(names: Sequence[str], shapes: Sequence[Shape], n: int) -> None:
    """Rule O2, and S2 for shapes with unknown dimensions; rows as in `Inputs`, for a batch of `n`."""
    for row in range(n):
        if not 1 <= len(shapes[row]) <= MAX_RANK:
            refuse("rank_out_of_range", names[row], f"rank {len(shapes[row])}, shape {tuple(shapes[row])}",
                   f"rank 1 to {MAX_RANK}")
    for row in range(n):
        if 0 in shapes[row]:
            refuse("null_input", names[row], f"the empty shape {tuple(shapes[row])}", "no axis of length 0")
    known = shapes[:n]
    for start in (n, 2 * n + 1, 3 * n + 2):
        if shapes[start:start + n] != known:
            known = [_agree(names[start + k], shapes[start + k], known[k]) for k in range(n)]
    for row in (2 * n, 3 * n + 1):
        shape = shapes[row]
        if shape != UNKNOWN_RANK and any(dim not in (1, UNKNOWN_DIM) for dim in shape):
            refuse("scalar_shape", names[row], f"shape {tuple(shape)}",
                   "exactly one element, of any rank: (), (1,), (1, 1), ...")


def _agree(name: str, shape: Shape, known: Shape) -> Shape:
    """What is known of a shape after both: they must agree wherever both are known, and be possible at all."""
    impossible = 0 in shape or (not 1 <= len(shape) <= MAX_RANK)
    pairs = list(zip(shape, known, strict=False))
    if shape == UNKNOWN_RANK or (known == UNKNOWN_RANK and not impossible):
        return known if shape == UNKNOWN_RANK else shape
    if impossible or len(shape) != len(known) or any(a != b and UNKNOWN_DIM not in (a, b) for a, b in pairs):
        refuse("shape_mismatch", name, f"shape {tuple(shape)}",
               f"{tuple(known)}, the one shape of parameters, gradient, accum and stat, without broadcasting")
    return tuple(b if a == UNKNOWN_DIM else a for a, b in pairs)


@functools.lru_cache(maxsize=256, typed=True)
def _checked(dampening: Any, weight_decay: Any, nesterov: Any) -> Attributes:
    d, wd = _number("dampening", dampening), _number("weight_decay", weight_decay)
    if type(nesterov).__name__ not in ("bool", "bool_"):
        refuse("wrong_type", "nesterov", _shown(nesterov), "True or False")
    if nesterov and d != 0:
        refuse("attribute_value_out_of_range", "dampening", f"{_value(dampening)} with nesterov=True",
               "0 when nesterov is True")
    if not wd >= 0:
        refuse("attribute_value_out_of_range", "weight_decay", _value(weight_decay),
               "a number >= 0 (NaN is none)")
    return Attributes(d, wd, bool(nesterov))


def check_attributes(dampening: Any, weight_decay: Any, nesterov: Any) -> Attributes:
    """Rule O4: round the attributes to float32, to nearest even, then compare."""
    try:
        return _checked(dampening, weight_decay, nesterov)
    except TypeError:  # not hashable, so neither a number nor a bool
        return _checked.__wrapped__(dampening, weight_decay, nesterov)


def _number(name: str, value: Any) -> float:
    """An int, a float or a NumPy scalar no wider than float64, rounded to float32."""
    exact = isinstance(value, (int, float)) or (isinstance(value, numbers.Real) and getattr(value, "nbytes", 9) <= 8)
    if isinstance(value, bool) or not exact:
        refuse("wrong_type", name, _shown(value), "a number: int, float or a NumPy scalar")
    return round_number(int(value) if isinstance(value, numbers.Integral) else float(value), "float32")[0]


def _shown(value: Any) -> str:
    return f"{_value(value)} of type {type(value).__name__}"


def _value(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # ints of thousands of digits have no repr, and a stranger's object may raise anything
        text = "a value"
    return text if len(text) <= 40 else text[:37] + "..."


def check_memory(inputs: Inputs) -> None:
    """Read-only arrays in a written place, then rule O10."""
    if any(inputs.unusual):
        for row in _written_rows(inputs.counts):
            facts = inputs.unusual[row]
            if facts and not facts.writable:
                refuse("read_only", inputs.name(row), "a read-only tensor", "a writable one: it is updated in place")
    # No two tensors meet exactly if each ends before the next begins, ends and beginnings sorted each for themselves.
    starts = sorted(inputs.addresses)
    if not all(map(operator.le, sorted(map(operator.add, inputs.addresses, inputs.sizes)), starts[1:])):
        _check_overlap(inputs)


def _written_rows(counts: tuple[int, ...]) -> list[int]:
    starts = [sum(counts[:k]) for k in range(len(counts))]
    return [row for k in (0, 3, 5) for row in range(starts[k], starts[k] + counts[k])]


def _check_overlap(inputs: Inputs) -> None:
    """Some tensors share memory: that is allowed only between tensors that are all read."""
    written = set(_written_rows(inputs.counts))
    highest = highest_written = 0  # one past the last byte of any tensor so far, and of any written one
    owner = owner_written = -1
    for start, row in sorted(zip(inputs.addresses, range(len(inputs.sizes)), strict=True)):
        if start < highest and (start < highest_written or row in written):
            other = owner_written if start < highest_written else owner
            refuse("overlap", inputs.name(row), f"memory that is also {inputs.name(other)}'s",
                   "no shared memory between tensors of which one is written")
        stop = start + inputs.sizes[row]
        if stop > highest:
            highest, owner = stop, row
        if stop > highest_written and row in written:
            highest_written, owner_written = stop, row
