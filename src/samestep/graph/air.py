"""GE `.air` files: the bytes, their messages, and how GE numbers dtypes.

A file is one serialized ``ge.proto.ModelDef``. Its schema is ``ge.proto`` beside this file. The message classes
are made from its compiled form in a descriptor pool of their own, so that they neither depend on the version of a code
generator nor collide with other packages that register the same names.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from samestep.graph.extra import module

DTYPES = {  # name: (number in a TensorDescriptor, number in ge::DataType, bytes per element)
    "float32": (1, 0, 4), "float16": (2, 1, 2), "bfloat16": (27, 27, 2), "float64": (12, 11, 8),
    "int8": (3, 2, 1), "uint8": (4, 4, 1), "int16": (5, 6, 2), "uint16": (6, 7, 2), "int32": (7, 3, 4),
    "int64": (8, 9, 8), "uint32": (9, 8, 4), "uint64": (10, 10, 8), "bool": (11, 12, 1), "complex64": (16, 16, 8),
    "complex128": (17, 17, 16),
}
_NAMES = {number: name for name, (number, _, _) in DTYPES.items()}
_GE_NAMES = {number: name for name, (_, number, _) in DTYPES.items()}
_LARGEST = 2**31 - 1  # bytes of one protobuf message


class AirError(ValueError):
    """The bytes are no graph, the graph hangs together wrongly, or it cannot be run; the message says where and why."""


@functools.cache
def messages() -> dict[str, Any]:
    """The message classes of ``ge.proto`` by name: ``ModelDef``, ``GraphDef``, ``OpDef``, ..."""
    package = "protobuf>=5.26"
    pool = module("google.protobuf.descriptor_pool", package).DescriptorPool()
    factory = module("google.protobuf.message_factory", package)
    files = module("google.protobuf.descriptor_pb2", package).FileDescriptorSet()
    files.ParseFromString(Path(__file__).with_name("ge.binpb").read_bytes())
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for file in files.file for message in file.message_type]
    return {name: factory.GetMessageClass(pool.FindMessageTypeByName(f"ge.proto.{name}")) for name in names}


def parse(data: bytes) -> Any:
    """The ModelDef that `data` holds; `AirError` if it holds none, or one without a graph."""
    make = messages()["ModelDef"]
    try:
        model = make.FromString(data)
    except Exception as problem:  # DecodeError of the usual protobuf; the one in plain Python has others besides
        raise AirError(f"{len(data):,} bytes that are no ge.proto.ModelDef ({problem}); a .air file is exactly one, as "
                       "written by GE, atc or samestep.graph.ge.write") from None
    if not model.graph:
        raise AirError(f"{len(data):,} bytes that hold no graph: a ModelDef has at least one")
    return model


def serialize(model: Any) -> bytes:
    """The bytes of a ModelDef, the same for the same model: maps are written in the order of their keys."""
    if model.ByteSize() > _LARGEST:
        raise AirError(f"a model of {model.ByteSize():,} bytes; a protobuf message, and so a .air file, holds at most "
                       f"{_LARGEST:,}: make large constants data")
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def text(model: Any) -> str:
    """A ModelDef in protobuf's text format, unknown fields included."""
    form = module("google.protobuf.text_format", "protobuf")
    shown: str = form.MessageToString(model, print_unknown_fields=True)
    return shown


def dtype_name(number: int) -> str:
    """The name of a TensorDescriptor's dtype: NumPy's, or what says that there is none."""
    return _NAMES.get(number, "undefined" if number == 0 else f"GE dtype {number}")


def ge_dtype_name(number: int) -> str:
    """The name of a dtype that an attribute holds as ge::DataType, which is numbered otherwise."""
    return _GE_NAMES.get(number, f"ge::DataType {number}")


def set_list(attr: Any, values: list[str] | list[int]) -> None:
    """Let an AttrDef hold a list of strings or of integers; an empty list is a list, too."""
    attr.list.SetInParent()
    for value in values:
        if isinstance(value, str):
            attr.list.s.append(value.encode())
        else:
            attr.list.i.append(value)
