"""`.air` files: what is written parses with a schema of its own, and what is read is kept.

`FIELDS` is typed from the published field numbers, and `decode` reads protobuf's wire format by hand: neither knows the
package's `ge.proto`.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from samestep.graph import air, extra, ge

# message: {number: (name, type)}; "*" is repeated, "{}" a map from strings to AttrDef
FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "ModelDef": {1: ("name", "string"), 2: ("version", "uint32"), 3: ("custom_version", "string"),
                 7: ("graph", "*GraphDef"), 11: ("attr", "{}")},
    "GraphDef": {1: ("name", "string"), 4: ("input", "*string"), 5: ("output", "*string"), 6: ("op", "*OpDef"),
                 11: ("attr", "{}")},
    "OpDef": {1: ("name", "string"), 2: ("type", "string"), 5: ("input", "*string"), 10: ("attr", "{}"),
              20: ("has_out_attr", "bool"), 21: ("id", "int64"), 22: ("stream_id", "int64"),
              23: ("input_name", "*string"), 24: ("src_name", "*string"), 25: ("src_index", "*int64"),
              26: ("dst_name", "*string"), 27: ("dst_index", "*int64"), 28: ("input_i", "*int64"),
              29: ("output_i", "*int64"), 30: ("workspace", "*int64"), 31: ("workspace_bytes", "*int64"),
              32: ("is_input_const", "*bool"), 33: ("input_desc", "*TensorDescriptor"),
              34: ("output_desc", "*TensorDescriptor"), 35: ("subgraph_name", "*string")},
    "TensorDescriptor": {1: ("name", "string"), 2: ("dtype", "DataType"), 3: ("shape", "ShapeDef"),
                         4: ("layout", "string"), 5: ("attr", "{}"), 9: ("has_out_attr", "bool"), 10: ("size", "int64"),
                         11: ("weight_size", "int64"), 12: ("reuse_input", "bool"), 13: ("output_tensor", "bool"),
                         14: ("device_type", "string"), 15: ("input_tensor", "bool"), 16: ("real_dim_cnt", "int64"),
                         17: ("reuse_input_index", "int64"), 18: ("data_offset", "int64")},
    "TensorDef": {1: ("desc", "TensorDescriptor"), 2: ("data", "bytes")},
    "ShapeDef": {1: ("dim", "*int64")},
    "NamedAttrs": {1: ("name", "string"), 2: ("attr", "{}")},
    "AttrDef": {1: ("list", "ListValue"), 2: ("s", "bytes"), 3: ("i", "int64"), 4: ("f", "float"), 5: ("b", "bool"),
                7: ("bt", "bytes"), 10: ("func", "NamedAttrs"), 11: ("td", "TensorDescriptor"), 12: ("t", "TensorDef"),
                13: ("g", "GraphDef"), 14: ("list_list_int", "ListListInt"), 15: ("dt", "int64"),
                16: ("list_list_float", "ListListFloat"), 17: ("expression", "bytes")},
    "ListValue": {2: ("s", "*bytes"), 3: ("i", "*int64"), 4: ("f", "*float"), 5: ("b", "*bool"), 7: ("bt", "*bytes"),
                  8: ("td", "*TensorDescriptor"), 9: ("t", "*TensorDef"), 10: ("g", "*GraphDef"),
                  11: ("na", "*NamedAttrs"), 12: ("dt", "*int64"), 20: ("val_type", "ListValueType")},
    "ListListInt": {1: ("list_list_i", "*ListInt")}, "ListInt": {1: ("list_i", "*int64")},
    "ListListFloat": {1: ("list_list_f", "*ListFloat")}, "ListFloat": {1: ("list_f", "*float")},
}
ONEOF = {"AttrDef": "value"}
VALUE_TYPES = ["NONE", "STRING", "INT", "FLOAT", "BOOL", "BYTES", "TENSOR_DESC", "TENSOR", "GRAPH", "NAMED_ATTRS",
               "DATA_TYPE"]
NUMBERS = ("int64", "uint32", "bool", "DataType", "ListValueType")


# --- a reader of the wire format, by hand ----------------------------------------------------------------------------

def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def wire(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            yield key >> 3, 0, value
        elif key & 7 == 2:
            size, at = varint(data, at)
            assert at + size <= len(data)
            yield key >> 3, 2, data[at:at + size]
            at += size
        else:
            assert key & 7 == 5, f"wire type {key & 7}"
            yield key >> 3, 5, data[at:at + 4]
            at += 4


def decode(message: str, data: bytes) -> dict[str, Any]:
    """The fields of a message by name; a field that the table lacks, or of another wire type, is an error."""
    found: dict[str, Any] = {}
    for number, kind, value in wire(data):
        name, of = FIELDS[message][number]
        if of == "{}":
            entry = {place: part for place, _, part in wire(value)}
            assert set(entry) <= {1, 2}
            assert kind == 2
            found.setdefault(name, {})[entry.get(1, b"").decode()] = decode("AttrDef", entry.get(2, b""))
        elif of.startswith("*"):
            found.setdefault(name, []).extend(several(of[1:], kind, value))
        else:
            found[name], = several(of, kind, value)
    return found


def several(type: str, kind: int, value: Any) -> list[Any]:
    """The value of a field, or the values of a packed one."""
    if type == "float":
        assert kind in (2, 5)
        return [struct.unpack("<f", value[at:at + 4])[0] for at in range(0, len(value), 4)]
    if type in NUMBERS:
        if kind == 0:
            return [signed(value, type)]
        values, at = [], 0
        while at < len(value):
            number, at = varint(value, at)
            values.append(signed(number, type))
        return values
    assert kind == 2
    return [value if type == "bytes" else value.decode() if type == "string" else decode(type, value)]


def signed(value: int, type: str) -> Any:
    if type == "bool":
        assert value in (0, 1)
        return bool(value)
    return value - 2**64 if type == "int64" and value >= 2**63 else value


# --- what is written -------------------------------------------------------------------------------------------------

def graph(dtype: Any = np.float32, **attributes: Any) -> ge.Graph:
    made = ge.Graph("train")
    name = np.dtype(dtype).name
    tensors = {key: made.data(key, (2, -1), name) for key in ("w", "g", "a")}
    stat = made.variable("s", np.ones((2, 3), dtype))
    rate, momentum = made.constant("rate", np.array([0.5], dtype)), made.constant("momentum", np.array(0.75, dtype))
    made.output(made.sgd(tensors["w"], tensors["g"], rate, tensors["a"], momentum, stat, after=[tensors["g"]],
                         **attributes))
    return made


def strings(*values: str) -> dict[str, Any]:
    return {"list": {"s": [value.encode() for value in values]}}


def numbers(*values: int) -> dict[str, Any]:
    return {"list": {"i": list(values)}}


def tensor(name: str, number: int, shape: list[int]) -> dict[str, Any]:
    return {
        **({"name": name} if name else {}), "dtype": number, "shape": {"dim": shape} if shape else {}, "layout": "ND",
        "attr": {"format_for_int": {"i": 2}, "origin_format": {"s": b"ND"}, "origin_format_for_int": {"i": 2}},
        "device_type": "NPU",
    }


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, 1), (np.float16, 2), (ml_dtypes.bfloat16, 27)])
def test_every_field_of_an_update(dtype, number):
    made = graph(dtype, dampening=0.25, weight_decay=0.5)
    ge.infer(made)
    model = decode("ModelDef", ge.to_bytes(made))
    (root,) = model.pop("graph")
    assert model == {"name": "train", "version": 1}
    ops = {op["name"]: op for op in root.pop("op")}
    assert root == {"name": "train", "input": ["w:0", "g:0", "a:0"], "output": ["sgd:0"]}
    assert [op["type"] for op in ops.values()] == ["Data"] * 3 + ["Variable", "Const", "Const", "SGD", "NetOutput"]
    assert [op.get("id", 0) for op in ops.values()] == list(range(8))
    names = ["parameters", "gradient", "learning_rate", "accum", "momentum", "stat"]
    shapes = [[2, -1], [2, -1], [1], [2, -1], [], [2, 3]]
    assert ops["sgd"] == {
        "name": "sgd", "type": "SGD", "id": 6, "has_out_attr": True,
        "input": ["w:0", "g:0", "rate:0", "a:0", "momentum:0", "s:0", "g:-1"],
        "input_desc": [tensor(name, number, shape) for name, shape in zip(names, shapes, strict=True)],
        "output_desc": [tensor("parameters", number, [2, -1])],
        "attr": {
            "dampening": {"f": 0.25}, "weight_decay": {"f": 0.5}, "nesterov": {"b": False},
            "_ir_attr_names": strings("dampening", "weight_decay", "nesterov"),
            "_ir_inputs_key": strings(*names), "_ir_inputs_value": numbers(0, 0, 0, 0, 0, 0),
            "_ir_outputs_key": strings("parameters"), "_ir_outputs_value": numbers(0),
            "_input_name_key": strings("accum", "gradient", "learning_rate", "momentum", "parameters", "stat"),
            "_input_name_value": numbers(3, 1, 2, 4, 0, 5),
            "_output_name_key": strings("parameters"), "_output_name_value": numbers(0),
        },
    }
    assert ops["a"]["attr"]["index"] == {"i": 2}
    assert ops["a"]["output_desc"] == [tensor("y", number, [2, -1])]
    assert ops["momentum"]["attr"]["value"]["t"] == {
        "desc": tensor("", number, []), "data": np.array(0.75, dtype).tobytes()}
    assert ops["s"]["attr"]["value"]["t"] == {
        "desc": tensor("", number, [2, 3]), "data": np.ones((2, 3), dtype).tobytes()}
    assert ops["Node_Output"]["input"] == ["sgd:0"]
    assert ops["Node_Output"]["attr"]["_ir_inputs_value"] == numbers(2)  # as many as there are
    assert ops["Node_Output"]["input_desc"] == [tensor("x0", number, [2, -1])]


def test_it_reads_what_it_wrote(tmp_path):
    made = graph(nesterov=True, weight_decay=0.1)
    ge.infer(made)
    path = tmp_path / "train.air"
    ge.write(made, path)
    again = ge.read(path)
    assert again == made
    assert ge.to_bytes(again) == path.read_bytes() == ge.to_bytes(made)
    again.root.op[0].name = "another"
    assert again != made
    assert made != "train"
    with pytest.raises(TypeError):
        hash(made)
    assert repr(made) == "<Graph 'train': 8 nodes>"


def test_nan_in_an_attribute_is_equal_to_itself():
    made = graph(dampening=float("nan"))
    assert ge.from_bytes(ge.to_bytes(made)) == made


def test_the_text_holds_everything():
    from google.protobuf import text_format

    made = graph()
    assert "DT_FLOAT" in ge.dump(made)
    assert text_format.Parse(ge.dump(made), air.messages()["ModelDef"]()) == made.model


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, shorter than 128."""
    return bytes([number << 3 & 127 | 2 | 128, number >> 4, len(data)]) + data if number > 15 else bytes(
        [number << 3 | 2, len(data)]) + data


def test_unknown_fields_are_kept_everywhere():
    strange = field(99, b"kept")
    desc = field(4, b"ND") + b"\x10\x01" + strange
    attr = field(10, field(1, b"color") + field(2, field(2, b"blue") + strange))
    op = field(1, b"w") + field(2, b"Data") + attr + field(34, desc) + strange
    data = field(7, field(1, b"g") + field(6, op) + strange) + strange
    graph = ge.from_bytes(data)
    assert ge.to_bytes(graph).count(strange) == data.count(strange) == 5
    ge.infer(graph)
    assert ge.lint(graph).clean
    assert ge.to_bytes(graph).count(strange) == 5
    assert ge.dump(graph).count('99: "kept"') == 5


# --- the schema ------------------------------------------------------------------------------------------------------

def described() -> dict[str, dict[int, tuple[str, str]]]:
    """The package's schema in the form of `FIELDS`."""
    from google.protobuf.descriptor import FieldDescriptor as Field

    types = {getattr(Field, f"TYPE_{name.upper()}"): name for name in ("string", "bytes", "float", "bool", "int64",
                                                                       "uint32")}
    found = {}

    def add(message: Any) -> None:
        for nested in message.nested_types:
            if not nested.GetOptions().map_entry:
                add(nested)
        found[message.name] = {}
        for entry in message.fields:
            of = types.get(entry.type) or (entry.message_type or entry.enum_type).name
            if entry.message_type and entry.message_type.GetOptions().map_entry:
                assert entry.message_type.fields_by_name["value"].message_type.name == "AttrDef"
                of = "{}"
            elif entry.is_repeated if hasattr(entry, "is_repeated") else entry.label == Field.LABEL_REPEATED:
                of = f"*{of}"
            assert (entry.containing_oneof and entry.containing_oneof.name) == ONEOF.get(message.name)
            found[message.name][entry.number] = (entry.name, of)

    for kind in air.messages().values():
        add(kind.DESCRIPTOR)
    return found


def test_the_schema_is_the_published_one():
    assert described() == FIELDS
    values = air.messages()["AttrDef"].DESCRIPTOR.nested_types_by_name["ListValue"].enum_types_by_name["ListValueType"]
    assert [(value.name, value.number) for value in values.values] == [
        (f"VT_LIST_{name}", k) for k, name in enumerate(VALUE_TYPES)]
    dtypes = air.messages()["TensorDescriptor"].DESCRIPTOR.fields_by_name["dtype"].enum_type.values_by_name
    assert (dtypes["DT_FLOAT"].number, dtypes["DT_FLOAT16"].number, dtypes["DT_BF16"].number) == (1, 2, 27)


def test_the_compiled_schema_is_that_of_the_proto_file():
    """Every field and enum value of ge.proto is in ge.binpb, and no other."""
    text = re.sub(r"//.*", "", Path(air.__file__).with_name("ge.proto").read_text(encoding="utf-8"))
    assert 'syntax = "proto3";' in text
    assert "package ge.proto;" in text
    words = re.findall(r"map<string, AttrDef>|[\w.]+|[{}=;]", text)
    written: dict[str, dict[int, tuple[str, str]]] = {}
    stack: list[str] = []
    at = words.index("enum")
    while at < len(words):
        if words[at] in ("message", "enum", "oneof"):
            stack.append(words[at + 1] if words[at] != "oneof" else stack[-1])
            written.setdefault(stack[-1], {})
            at += 3
        elif words[at] == "}":
            stack.pop()
            at += 1
        else:
            end = words.index(";", at)
            *kinds, name, equals, number = words[at:end]
            assert equals == "="
            kind = "".join(kinds).replace("repeated", "*").replace("map<string, AttrDef>", "{}")
            written[stack[-1]][int(number)] = (name, kind)
            at = end + 1
    enums = {name: written.pop(name) for name in ("DataType", "ListValueType")}
    assert written == described()
    compiled = air.messages()["TensorDescriptor"].DESCRIPTOR.fields_by_name["dtype"].enum_type
    assert {value.number: (value.name, "") for value in compiled.values} == enums["DataType"]
    assert [name for name, _ in enums["ListValueType"].values()] == [f"VT_LIST_{name}" for name in VALUE_TYPES]


def test_every_type_of_field_is_written_as_the_table_says():
    """All fields of all messages, filled by their names, read back by hand."""
    classes = air.messages()
    model = classes["ModelDef"](name="n", version=2**32 - 1, custom_version="v")
    root = model.graph.add(name="g", input=["a:0"], output=["b:0"])
    op = root.op.add(name="o", type="T", has_out_attr=True, id=-1, stream_id=2, input=["", "x:-1"], input_name=["i"],
                     src_name=["s"], src_index=[-3], dst_name=["d"], dst_index=[2**62], input_i=[1], output_i=[2],
                     workspace=[3], workspace_bytes=[4], is_input_const=[True, False], subgraph_name=["sub"])
    desc = op.input_desc.add(name="d", dtype=27, layout="ND", has_out_attr=True, size=1, weight_size=2,
                             reuse_input=True, output_tensor=True, device_type="NPU", input_tensor=True,
                             real_dim_cnt=-1, reuse_input_index=5, data_offset=6)
    desc.shape.dim.extend([-2])
    attr = op.attr
    attr["s"].s, attr["i"].i, attr["f"].f, attr["b"].b, attr["bt"].bt = b"\xff", -7, -0.5, True, b"\x00"
    attr["func"].func.name, attr["dt"].dt, attr["expression"].expression = "f", 27, b"s0 + 1"
    attr["td"].td.CopyFrom(desc)
    attr["t"].t.data = b"data"
    attr["g"].g.name = "inner"
    attr["ints"].list_list_int.list_list_i.add(list_i=[1, -1])
    attr["floats"].list_list_float.list_list_f.add(list_f=[0.5, -2.0])
    held = attr["list"].list
    held.s.append(b"s"), held.i.append(-9), held.f.append(1.5), held.b.append(False), held.bt.append(b"\xfe")
    held.td.add(name="td"), held.t.add(data=b"t"), held.g.add(name="lg"), held.na.add(name="na"), held.dt.append(3)
    held.val_type = 10
    found = decode("ModelDef", ge.to_bytes(ge.Graph.of(model)))
    (graph,) = found["graph"]
    (node,) = graph["op"]
    (shape,) = node["input_desc"]
    lists = node["attr"].pop("list")["list"]
    assert (found["version"], found["custom_version"]) == (2**32 - 1, "v")
    assert (node["id"], node["src_index"], node["dst_index"]) == (-1, [-3], [2**62])
    assert (node["is_input_const"], node["input"], node["subgraph_name"]) == ([True, False], ["", "x:-1"], ["sub"])
    assert shape == node["attr"].pop("td")["td"] == {
        "name": "d", "dtype": 27, "shape": {"dim": [-2]}, "layout": "ND", "has_out_attr": True, "size": 1,
        "weight_size": 2, "reuse_input": True, "output_tensor": True, "device_type": "NPU", "input_tensor": True,
        "real_dim_cnt": -1, "reuse_input_index": 5, "data_offset": 6}
    assert node["attr"] == {
        "s": {"s": b"\xff"}, "i": {"i": -7}, "f": {"f": -0.5}, "b": {"b": True}, "bt": {"bt": b"\x00"},
        "func": {"func": {"name": "f"}}, "dt": {"dt": 27}, "expression": {"expression": b"s0 + 1"},
        "t": {"t": {"data": b"data"}}, "g": {"g": {"name": "inner"}},
        "ints": {"list_list_int": {"list_list_i": [{"list_i": [1, -1]}]}},
        "floats": {"list_list_float": {"list_list_f": [{"list_f": [0.5, -2.0]}]}}}
    assert lists == {"s": [b"s"], "i": [-9], "f": [1.5], "b": [False], "bt": [b"\xfe"], "td": [{"name": "td"}],
                     "t": [{"data": b"t"}], "g": [{"name": "lg"}], "na": [{"name": "na"}], "dt": [3], "val_type": 10}


def test_the_two_numberings_of_dtypes():
    assert {air.dtype_name(number): number for number in (1, 2, 27)} == {"float32": 1, "float16": 2, "bfloat16": 27}
    ge_numbers = {"float32": 0, "float16": 1, "int32": 3, "int64": 9, "bfloat16": 27}
    assert {air.ge_dtype_name(number): number for number in ge_numbers.values()} == ge_numbers
    for name, (_, _, size) in air.DTYPES.items():
        assert np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name).itemsize == size
    assert air.dtype_name(0) == "undefined"
    assert air.dtype_name(13) == "GE dtype 13"
    assert air.ge_dtype_name(40) == "ge::DataType 40"


# --- what is refused -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("data", "said"), [
    (b"", "hold no graph"), (b"\x0a\x01n", "hold no graph"), (b"\xff", "no ge.proto.ModelDef"),
    (b"PK\x03\x04 a zip", "no ge.proto.ModelDef"), (b"\x3a\x05\x0a", "no ge.proto.ModelDef"),
    (b"\x0a\x02\xff\xfe", "no ge.proto.ModelDef"),  # a name that is no UTF-8
])
def test_what_is_no_graph(data, said, tmp_path):
    with pytest.raises(ge.AirError, match=said):
        ge.from_bytes(data)
    path = tmp_path / "broken.air"
    path.write_bytes(data)
    with pytest.raises(ge.AirError, match=said) as caught:
        ge.read(path)
    assert str(caught.value).startswith(f"{path}: {len(data)} bytes")
    with pytest.raises(FileNotFoundError):
        ge.read(tmp_path / "none.air")


def test_a_model_that_no_file_can_hold(monkeypatch):
    monkeypatch.setattr(air, "_LARGEST", 100)
    with pytest.raises(ge.AirError, match="at most 100"):
        ge.to_bytes(graph())


def test_without_protobuf_it_says_how_to_get_it(monkeypatch):
    air.messages.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor_pool", None)
    try:
        with pytest.raises(extra.MissingExtraError, match=r"need protobuf>=5\.26.*pip install 'samestep\[graph\]'"):
            ge.Graph("train")
    finally:
        air.messages.cache_clear()


def test_beside_another_package_of_the_same_names():
    """Vendors' packages register ge.proto in protobuf's own pool; the package has one to itself."""
    script = (
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "file = descriptor_pb2.FileDescriptorProto(name='ge.proto', package='ge.proto')\n"
        "file.message_type.add(name='ModelDef')\n"
        "descriptor_pool.Default().AddSerializedFile(file.SerializeToString())\n"
        "from samestep.graph import ge\n"
        "graph = ge.Graph('train')\n"
        "print(ge.from_bytes(ge.to_bytes(graph)) == graph, ge.lint(graph).clean)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_importing_loads_neither_protobuf_nor_matplotlib():
    script = ("import sys; from samestep.graph import ge\n"
              "print([name for name in ('google.protobuf', 'matplotlib', 'torch', 'onnx') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
