"""Several faults at once: the first check of rule O12 wins, whatever else is wrong, and not a byte changes.

A call is described by plain data (`Thing`), spoiled by faults, and judged twice: by a small model of the rule that
knows nothing of arrays, and by the operator itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samestep

INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")
TENSORS = ("parameters", "gradient", "accum", "stat")
SCALARS = ("learning_rate", "momentum")
WRITTEN = ("parameters", "accum", "stat")
SUPPORTED = ("float32", "float16")


@dataclasses.dataclass(eq=False)
class Thing:
    """One tensor to be; the same object in two places is one tensor in two places."""

    shape: tuple[int, ...]
    kind: str = "array"  # or none, meta
    dtype: str = "float32"
    strided: bool = False
    frozen: bool = False

    def made(self) -> Any:
        if self.kind == "none":
            return None
        if self.kind == "meta":
            return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device="meta")
        array = np.ones((*self.shape, 2), self.dtype)[..., 0] if self.strided else np.ones(self.shape, self.dtype)
        array.flags.writeable = not self.frozen
        return array

    @property
    def contiguous(self) -> bool:
        """Strides are seen only where there are two elements to be apart."""
        return not self.strided or int(np.prod(self.shape)) < 2


class Plan:
    """A call as data. Faults change it; `model` says what must come of it."""

    def __init__(self, count: int | None) -> None:
        self.batch = count is not None
        self.columns = {name: [Thing((1,))] if name in SCALARS else [Thing((2, 3)) for _ in range(count or 1)]
                        for name in INPUTS}
        self.options: dict[str, Any] = {"engine": "reference"}

    def rows(self, *names: str) -> Iterator[tuple[str, Thing]]:
        for name in names:
            for k, thing in enumerate(self.columns[name]):
                yield f"{name}[{k}]" if self.batch and name in TENSORS else name, thing

    def model(self) -> set[tuple[str, str]]:
        """The codes and names that may come: those of the first check of rule O12 that finds anything."""
        return next(filter(None, self._checks()), set())

    def _checks(self) -> Iterator[set[tuple[str, str]]]:
        everything = list(self.rows(*INPUTS))
        first = self.columns["parameters"][0]
        yield {("unknown_order", "order")} if self.options.get("order", "spec") != "spec" else set()
        yield {("engine_unavailable", "engine")} if self.options["engine"] != "reference" else set()
        yield {("wrong_type", name) for name, thing in everything if thing.kind == "none"}
        yield {("unsupported_device", name) for name, thing in everything if thing.kind == "meta"}
        n = len(self.columns["parameters"])
        yield {("batch_length", name) for name in TENSORS if len(self.columns[name]) != n}
        for names in (("parameters",), INPUTS[1:]):
            yield {("unsupported_dtype" if thing.dtype not in SUPPORTED else "dtype_mismatch", name)
                   for name, thing in self.rows(*names) if thing.dtype != first.dtype or thing.dtype not in SUPPORTED}
        yield {("not_contiguous", name) for name, thing in everything if not thing.contiguous}
        ours = list(self.rows("parameters"))
        yield {("rank_out_of_range", name) for name, thing in ours if not 1 <= len(thing.shape) <= 8}
        yield {("null_input", name) for name, thing in ours if 0 in thing.shape}
        yield {("shape_mismatch", name) for other in TENSORS[1:]
               for (name, thing), (_, owner) in zip(self.rows(other), ours, strict=True) if thing.shape != owner.shape}
        yield {("scalar_shape", name) for name, thing in self.rows(*SCALARS) if any(dim != 1 for dim in thing.shape)}
        d, wd, nesterov = (self.options.get(name, 0) for name in ("dampening", "weight_decay", "nesterov"))
        yield {("attribute_value_out_of_range", name)
               for name, bad in (("dampening", nesterov and d != 0), ("weight_decay", wd < 0)) if bad}
        yield {("read_only", name) for name, thing in self.rows(*WRITTEN) if thing.frozen}
        written = {name for name, _ in self.rows(*WRITTEN)}
        yield {("overlap", name) for one, other in itertools.combinations(everything, 2)
               if one[1] is other[1] and written & {one[0], other[0]} for name in (one[0], other[0])}

    def judged(self) -> tuple[str, str] | None:
        """What the operator says to it; every byte is the same if it refuses."""
        made = {id(thing): thing.made() for column in self.columns.values() for thing in column}
        tensors = {name: [made[id(thing)] for thing in column] for name, column in self.columns.items()}
        arguments = [tensors[name] if self.batch and name in TENSORS else tensors[name][0] for name in INPUTS]
        call = samestep.sgd_batch_ if self.batch else samestep.sgd_
        arrays = [x for x in made.values() if isinstance(x, np.ndarray)]
        before = [x.tobytes() for x in arrays]
        refusal: samestep.ContractError | None = None
        try:
            call(*arguments, **self.options)
        except samestep.ContractError as error:
            refusal = error
        if refusal is None:
            return None
        assert [x.tobytes() for x in arrays] == before
        assert all(part in str(refusal) for part in (refusal.input, refusal.got, refusal.accepted))
        return refusal.code, refusal.input


# The faults in the order of rule O12, each with the input it names. Where two could get into each other's way they sit
# on different inputs; they are laid on from the last to the first.
def _set(name: str, **fields: Any) -> Callable[[Plan], None]:
    def fault(plan: Plan) -> None:
        for field, value in fields.items():
            setattr(plan.columns[name][-1], field, value)
    return fault


def _deepen(plan: Plan) -> None:
    thing = plan.columns["parameters"][-1]
    thing.shape += (1,) * (9 - len(thing.shape))


def _share(plan: Plan) -> None:
    plan.columns["accum"][-1] = plan.columns["gradient"][-1]


FAULTS: dict[tuple[str, str], Callable[[Plan], None]] = {
    ("unknown_order", "order"): lambda plan: plan.options.update(order="nope"),
    ("engine_unavailable", "engine"): lambda plan: plan.options.update(engine="nope"),
    ("wrong_type", "momentum"): _set("momentum", kind="none"),
    ("unsupported_device", "learning_rate"): _set("learning_rate", kind="meta"),
    ("batch_length", "stat"): lambda plan: plan.columns["stat"].pop(0),
    ("unsupported_dtype", "parameters"): _set("parameters", dtype="float64"),
    ("dtype_mismatch", "stat"): _set("stat", dtype="float16"),
    ("not_contiguous", "gradient"): _set("gradient", strided=True),
    ("rank_out_of_range", "parameters"): _deepen,
    ("null_input", "parameters"): _set("parameters", shape=(0, 3)),
    ("shape_mismatch", "stat"): _set("stat", shape=(3, 2)),
    ("scalar_shape", "learning_rate"): _set("learning_rate", shape=(2,)),
    ("attribute_value_out_of_range", "weight_decay"): lambda plan: plan.options.update(weight_decay=-1.0),
    ("read_only", "accum"): _set("accum", frozen=True),
    ("overlap", "accum"): _share,
}


@pytest.mark.parametrize("count", [None, 3])
@pytest.mark.parametrize(
    ("winner", "loser"), list(itertools.combinations_with_replacement(FAULTS, 2)), ids=lambda fault: fault[0]
)
def test_the_earlier_fault_wins(count: int | None, winner: tuple[str, str], loser: tuple[str, str]) -> None:
    if count is None and "batch_length" in (winner[0], loser[0]):
        count = 3  # a single call has no lengths
    plan = Plan(count)
    FAULTS[loser](plan)
    FAULTS[winner](plan)
    code, name = winner
    listed = plan.batch and name in TENSORS and code != "batch_length"
    names = {f"{name}[{len(plan.columns[name]) - 1}]" if listed else name}
    if code == "overlap":
        names |= {name.replace("accum", "gradient") for name in names}
    judged = plan.judged()
    assert judged in {(code, name) for name in names}
    assert judged in plan.model()


def test_all_faults_but_the_first_few() -> None:
    """Everything wrong at once, repaired from the front one by one."""
    faults = list(FAULTS)
    for k, (code, _) in enumerate(faults):
        plan = Plan(3)
        for fault in reversed(faults[k:]):
            FAULTS[fault](plan)
        judged = plan.judged()
        assert judged is not None
        assert judged[0] == code


@pytest.mark.parametrize(
    "options", [{"order": "nope"}, {"engine": "nope"}, {"order": "nope", "engine": "nope"}], ids=str
)
@pytest.mark.parametrize("name", TENSORS)
def test_order_and_engine_come_before_the_lists_of_a_batch(name: str, options: dict[str, str]) -> None:
    lists: dict[str, Any] = {tensor: [np.ones(1, np.float32)] for tensor in TENSORS}
    lists[name] = None
    with pytest.raises(samestep.ContractError) as caught:
        samestep.sgd_batch_(**lists, learning_rate=0.1, momentum=0.9, **options)
    assert caught.value.code == ("unknown_order" if "order" in options else "engine_unavailable")


def test_types_come_before_devices_across_inputs() -> None:
    plan = Plan(2)
    plan.columns["parameters"][0].kind = "meta"
    plan.columns["stat"][1].kind = "none"
    assert plan.judged() == ("wrong_type", "stat[1]")


FIELDS = {
    "kind": ["none", "meta"],
    "dtype": ["float16", "float64", "int32"],
    "strided": [True],
    "frozen": [True],
    "shape": [(), (3, 2), (0, 3), (1,) * 9, (2,), (1, 1), (2, 3, 1), (2, 3)],
}
OPTIONS = [("order", "nope"), ("engine", "nope"), ("weight_decay", -1.0), ("weight_decay", 0.5), ("dampening", 0.5),
           ("nesterov", True)]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A good call with up to five random faults, each anywhere; some of them hide or undo others, or are none."""
    plan = Plan(draw(st.sampled_from([None, 1, 3])))
    for _ in range(draw(st.integers(0, 5))):
        what = draw(st.sampled_from(["set", "set", "set", "everywhere", "option", "drop", "share"]))
        column = plan.columns[draw(st.sampled_from(INPUTS))]
        if what in ("set", "everywhere"):
            field = draw(st.sampled_from(list(FIELDS)))
            value = draw(st.sampled_from(FIELDS[field]))
            things = [draw(st.sampled_from(column))] if what == "set" else itertools.chain(*plan.columns.values())
            for thing in things:
                setattr(thing, field, value)
        elif what == "option":
            plan.options.update([draw(st.sampled_from(OPTIONS))])
        elif what == "drop":
            del column[1:2]
        else:
            column[draw(st.integers(0, len(column) - 1))] = draw(st.sampled_from(plan.columns[draw(
                st.sampled_from(INPUTS))]))
    return plan


@settings(max_examples=1500, deadline=None)
@given(plans())
def test_any_combination_of_faults(plan: Plan) -> None:
    expected, judged = plan.model(), plan.judged()
    assert judged in expected if expected else judged is None
