"""Kernel selection and the split of the work into blocks (rules K1, K2). Neither changes a bit of the result."""

from __future__ import annotations

from typing import NamedTuple

from samestep.contract import DTYPES, Attributes

VARIANTS = {0: "K0", 4: "K1", 2: "K2", 6: "K3", 3: "K4", 1: "K5"}  # key >> 1: the business variant


class TilingKey(NamedTuple):
    """Which kernel: ``sch_mode`` is 0 for one block and 1 for several, the others say which terms exist."""

    sch_mode: int
    nesterov: bool
    weight_decay: bool
    dampening: bool

    @property
    def variant(self) -> str:
        """The business variant, K0 .. K5."""
        return VARIANTS[encode(self) >> 1]


def encode(key: TilingKey) -> int:
    """The key as the number of rule K1: ``sch_mode | nesterov<<1 | weight_decay<<2 | dampening<<3``."""
    if any(field not in (0, 1) for field in key) or (key.nesterov and key.dampening):
        raise ValueError(f"{key} is no legal key: each field is 0 or 1, and nesterov excludes dampening")
    return int(key.sch_mode | key.nesterov << 1 | key.weight_decay << 2 | key.dampening << 3)


def decode(number: int) -> TilingKey:
    """The key that `encode` gives `number` for; ValueError where no such kernel exists."""
    if not isinstance(number, int) or number not in range(16) or number >> 1 not in VARIANTS:
        raise ValueError(f"{number} is no legal key; legal are {sorted(map(encode, legal_keys()))}")
    return TilingKey(number & 1, bool(number & 2), bool(number & 4), bool(number & 8))


def legal_keys() -> list[TilingKey]:
    """The 12 keys: 6 business variants, each for one block and for several."""
    return [decode(number << 1 | sch_mode) for number in VARIANTS for sch_mode in (0, 1)]


def legal_kernels() -> list[tuple[TilingKey, str]]:
    """The 36 kernels: every legal key in every dtype."""
    return [(key, dtype) for dtype in DTYPES for key in legal_keys()]


def select(sch_mode: int, attributes: Attributes) -> TilingKey:
    """The key of a call; momentum is a device value and no part of it."""
    return TilingKey(sch_mode, attributes.nesterov, attributes.weight_decay != 0, attributes.dampening != 0)


class Split(NamedTuple):
    """How `dim0` elements fall into blocks (one thread or core each) and a block into runs of at most `ub_former`.

    All blocks but the last hold `block_former` elements. Units are elements, but for the loop counts and `block_num`.
    """

    dim0: int
    core_num: int
    sch_mode: int
    block_num: int
    block_former: int
    ub_former: int
    ub_loop_of_former_block: int
    ub_tail_of_former_block: int
    ub_loop_of_tail_block: int
    ub_tail_of_tail_block: int


def split(total: int, core_num: int, *, block_least: int, block_align: int, ub_former: int) -> Split:
    """Split `total` >= 1 elements over at most `core_num` blocks.

    A block holds a multiple of `block_align` elements (the last one what is left), and there are no more blocks than
    ones of `block_least` elements would make. A block's runs hold `ub_former` elements, its last run the tail.
    """
    block_former = block(total, core_num, block_least, block_align)
    block_num = -(-total // block_former)
    block_tail = total - (block_num - 1) * block_former
    block_former = min(block_former, total)
    loops, tails = zip(*(_runs(length, ub_former) for length in (block_former, block_tail)), strict=True)
    return Split(total, core_num, int(block_num > 1), block_num, block_former, ub_former,
                 loops[0], tails[0], loops[1], tails[1])


def block(total: int, core_num: int, block_least: int, block_align: int) -> int:
    """The elements of each block of a split but the last; compiled as well, where Python would take too long."""
    wanted = max(1, min(core_num, total // block_least))
    elements = -(-total // wanted)
    return elements + -elements % block_align


def _runs(length: int, ub_former: int) -> tuple[int, int]:
    loop = -(-length // ub_former)
    return loop, length - (loop - 1) * ub_former
