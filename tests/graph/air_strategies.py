"""Models that are well-formed messages and anything else besides: what hypothesis draws for the fuzz test."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from samestep.graph.air import messages

NAMES = st.sampled_from(["w", "g", "lr", "a", "m", "s", "sgd", "sgd2", "x:y", "", "é", "out"])
TYPES = st.sampled_from(["SGD"] * 6 + ["Data"] * 6 + ["Const", "Constant", "Variable", "NetOutput", "Cast", "", "If"])
DIMS = st.one_of(st.sampled_from([2, 2, 3, 1, -1, -2, 0, 2**62, -(2**63), 2**63 - 1]), st.integers(-3, 40))
SHAPES = st.one_of(st.just([2, 3]), st.just([1]), st.just([]), st.just([-2]), st.lists(DIMS, max_size=10),
                   st.just([1] * 100))
DTYPES = st.sampled_from([1] * 8 + [2, 2, 27, 0, 3, 12, 13, 99])
LAYOUTS = st.sampled_from(["ND"] * 9 + ["NCHW", "", "FRACTAL_NZ"])
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, 0.1, -1.0, float("nan"), float("inf")]), st.floats(width=32))
INDICES = st.sampled_from(["0"] * 12 + ["1", "-1", "-7", "99999999999999999999", "x", "", "00", " 0", "+0", "٣"])
EDGES = st.one_of(st.builds("{}:{}".format, NAMES, INDICES), st.sampled_from(["", ":", "w", "w:0:0"]))


@st.composite
def descriptors(draw: Any) -> Any:
    make = messages()["TensorDescriptor"]
    desc = make(dtype=draw(DTYPES), layout=draw(LAYOUTS), size=draw(DIMS))
    desc.shape.dim.extend(draw(SHAPES))
    return desc


@st.composite
def attributes(draw: Any, depth: int = 0) -> Any:
    attr = messages()["AttrDef"]()
    kind = draw(st.sampled_from(["f", "f", "b", "i", "s", "t", "t", "list", "dt", "none", "g", "func", "td"]))
    if kind == "f":
        attr.f = draw(FLOATS)
    elif kind == "b":
        attr.b = draw(st.booleans())
    elif kind in ("i", "dt"):
        setattr(attr, kind, draw(DIMS))
    elif kind == "s":
        attr.s = draw(st.binary(max_size=8))
    elif kind == "t":
        attr.t.desc.CopyFrom(draw(descriptors()))
        attr.t.data = draw(st.one_of(st.just(bytes(4)), st.just(bytes(24)), st.binary(max_size=30)))
    elif kind == "td":
        attr.td.CopyFrom(draw(descriptors()))
    elif kind == "list":
        attr.list.i.extend(draw(st.lists(DIMS, max_size=4)))
        attr.list.val_type = draw(st.integers(0, 12))
    elif kind == "g" and depth < 2:
        attr.g.CopyFrom(draw(graphs(depth + 1)))
    elif kind == "func":
        attr.func.name = draw(NAMES)
    return attr


@st.composite
def operators(draw: Any, depth: int) -> Any:
    op = messages()["OpDef"](name=draw(NAMES), type=draw(TYPES), id=draw(DIMS))
    op.input.extend(draw(st.lists(EDGES, max_size=8)))
    for name in draw(st.lists(st.sampled_from(["dampening", "weight_decay", "nesterov", "value", "index", ""]),
                              max_size=3)):
        op.attr[name].CopyFrom(draw(attributes(depth)))
    for descs in (op.input_desc, op.output_desc):
        descs.extend(draw(st.lists(descriptors(), max_size=2)))
    return op


@st.composite
def plausible(draw: Any) -> Any:
    """An update whose six inputs exist, with one thing or another that is odd about it."""
    graph = messages()["GraphDef"](name="plausible")
    for name in ("w", "g", "lr", "a", "m", "s"):
        op = graph.op.add(name=name, type=draw(st.sampled_from(["Data"] * 8 + ["Variable", "Const"])))
        op.output_desc.add(dtype=1, layout="ND").shape.dim.extend([1] if name in ("lr", "m") else [2, 3])
        if draw(st.integers(0, 9)) == 0:
            op.output_desc[0].CopyFrom(draw(descriptors()))
        if draw(st.integers(0, 9)) == 0 or op.type == "Const":
            op.attr["value"].CopyFrom(draw(attributes(2)))
    op = graph.op.add(name="sgd", type="SGD")
    op.input.extend(f"{name}:0" for name in ("w", "g", "lr", "a", "m", "s"))
    for name in ("dampening", "weight_decay", "nesterov"):
        if draw(st.booleans()):
            kind = "b" if name == "nesterov" else "f"
            setattr(op.attr[name], kind, draw(st.booleans() if kind == "b" else FLOATS))
    if draw(st.booleans()):
        op.input.append(draw(EDGES))
    return graph


@st.composite
def graphs(draw: Any, depth: int = 0) -> Any:
    graph = messages()["GraphDef"](name=draw(NAMES))
    graph.op.extend(draw(st.lists(operators(depth), max_size=8)))
    graph.output.extend(draw(st.lists(EDGES, max_size=2)))
    return graph


@st.composite
def models(draw: Any) -> Any:
    model = messages()["ModelDef"](name=draw(NAMES), version=draw(st.integers(0, 2**32 - 1)))
    anything = st.lists(st.one_of(plausible(), graphs()), max_size=3)
    model.graph.extend(draw(st.one_of(st.lists(plausible(), min_size=1, max_size=1), anything)))
    return model
