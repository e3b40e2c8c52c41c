"""The conformance suite as data: items in families, drawn when they are needed, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from samestep.verify.suite import families, families_cann
from samestep.verify.suite.draw import Item
from samestep.verify.suite.variants import DTYPES_OF, VARIANTS_OF, Variant

Family = Callable[[Sequence[Variant], str, int], Iterator[Item]]


# How often a level goes through the families, with newly drawn values every time; those of large tensors less often.
TURNS = {"quick": {"cann": 1, "torch": 1}, "full": {"cann": 19, "torch": 14}}
LARGE_TURNS = {"quick": 1, "full": 4}
LARGE = ("ttk", "patterns")
BOTH = ("kernels", "training", "rounding", "specials", "patterns", "tails", "alignment", "determinism", "shapes",
        "bounds", "steps")
FAMILIES = {"cann": (*BOTH, "mask", "stat", "hyperparameters", "ttk"), "torch": (*BOTH, "hyperparameters", "ttk")}


def items(rule: str = "cann", *, level: str = "quick", order: str = "spec", dtypes: Sequence[str] | None = None,
          seed: int = 0) -> Iterator[Item]:
    """The items of a level, dtype by dtype, lazily; names are unique.

    `order` says which evaluation order carries the state from step to step. `dtypes` are those of
    `variants.DTYPES_OF[rule]` unless given.
    """
    for dtype in dtypes or DTYPES_OF[rule]:
        for turn in range(TURNS[level][rule]):
            for family in FAMILIES[rule]:
                if family not in LARGE or turn < LARGE_TURNS[level]:
                    for item in _family(family, order)(VARIANTS_OF[rule], dtype, turn):
                        yield item._replace(seed=seed)


def _family(name: str, order: str) -> Family:
    if name == "steps":
        return partial(families.steps, order=order)
    found: Family = getattr(families if name in BOTH else families_cann, name)
    return found
