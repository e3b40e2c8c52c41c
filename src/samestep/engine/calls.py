"""Calls of C functions that return something, and words of memory: numba intrinsics beside those of llvm.py."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BYTE, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _call(builder: Any, result: Any, arguments: Any, args: Any) -> Any:
    values = [builder.extract_value(args[1], i) for i in range(len(arguments))]
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)


@intrinsic
def call_i32(typingctx: Any, address: Any, arguments: Any) -> Any:
    """call_i32(address, (arguments...)) -> int32: call a C function that returns an int."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call(builder, _I32, signature.args[1], args)

    return types.int32(types.int64, arguments), codegen


@intrinsic
def call_i64(typingctx: Any, address: Any, arguments: Any) -> Any:
    """call_i64(address, (arguments...)) -> int64: call a C function that returns a pointer or a long."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call(builder, _I64, signature.args[1], args)

    return types.int64(types.int64, arguments), codegen


@intrinsic
def store_int(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """store_int(address, index, int64)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], builder.gep(builder.inttoptr(args[0], _I64.as_pointer()), [args[1]]), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def count(typingctx: Any, address: Any) -> Any:
    """count(address) -> int64: add one to the word there, which threads share; what it was before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _I64.as_pointer()), _I64(1), "monotonic")

    return types.int64(types.int64), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """prefetch(address): have the cache line there read; an address where nothing is does no harm."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        builder.call(function, [builder.inttoptr(args[0], pointer), _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
