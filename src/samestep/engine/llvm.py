"""What numba has no Python form for: memory by address, 16-bit floats, calls through a pointer, the FP register.

Every function here is a numba intrinsic: it works inside compiled code only and emits the LLVM instructions named in
its docstring. Addresses are int64. Loads and stores assume no alignment, so a tensor may start at any byte.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from samestep.engine import half

# How the lanes of a tensor lie in memory (the `form` argument of load and store).
FLOAT32, FLOAT16, BFLOAT16, BFLOAT16_EVEN, BFLOAT16_ODD, FLOAT64 = range(6)

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32, _F64 = ir.FloatType(), ir.DoubleType()
_MEMORY = {FLOAT32: _F32, FLOAT16: _I16, BFLOAT16: _I16, BFLOAT16_EVEN: _I32, BFLOAT16_ODD: _I32, FLOAT64: _F64}

_MXCSR_DEFAULT = 0x1F80  # round to nearest even, all exceptions masked, FTZ and DAZ off
_ARM = platform.machine().lower() in ("aarch64", "arm64")


def _element(builder: Any, address: Any, index: Any, memory: Any) -> Any:
    return builder.gep(builder.inttoptr(address, memory.as_pointer()), [index])


def _round_bfloat16(builder: Any, x: Any, *, any_nan: bool) -> Any:
    """The 32 bits of `x` rounded to nearest even at bit 16; the low half is then garbage.

    Integer arithmetic, because LLVM's own truncation to bfloat becomes an instruction that flushes subnormals. Where
    all operands are bfloat16, NaN needs no care: processors make the default NaN or hand on an operand's payload, so
    the low half is zero, adding half a unit changes nothing above, and it is no tie. A NaN of a wider operand may have
    any payload, which rounding could carry out of the NaNs (`any_nan`).
    """
    bits = builder.bitcast(x, _I32)
    up = builder.add(bits, _I32(0x8000))  # ties away from zero ...
    tie = builder.icmp_unsigned("==", builder.and_(up, _I32(0xFFFF)), _I32(0))
    rounded = builder.select(tie, builder.and_(up, _I32(0xFFFEFFFF)), up)  # ... and then to even
    if not any_nan:
        return rounded
    return builder.select(builder.fcmp_unordered("uno", x, x), builder.or_(bits, _I32(0x00400000)), rounded)


@intrinsic(prefer_literal=True)
def load(typingctx: Any, address: Any, index: Any, form: Any) -> Any:
    """load(address, index, form) -> float32 (float64 for FLOAT64): element `index`, widened exactly.

    The forms _EVEN and _ODD index 32-bit words.
    """
    kind = form.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_element(builder, args[0], args[1], _MEMORY[kind]), align=1)
        if kind in (FLOAT32, FLOAT64):
            return value
        if kind == FLOAT16:
            return half.widen(context, builder, value)
        if kind == BFLOAT16:
            value = builder.zext(value, _I32)
        if kind in (BFLOAT16, BFLOAT16_EVEN):
            return builder.bitcast(builder.shl(value, _I32(16)), _F32)
        return builder.bitcast(builder.and_(value, _I32(0xFFFF0000)), _F32)

    result = types.float64 if kind == FLOAT64 else types.float32
    return result(types.int64, types.int64, form), codegen


@intrinsic(prefer_literal=True)
def store(typingctx: Any, address: Any, index: Any, form: Any, value: Any) -> Any:
    """store(address, index, form, float32 or float64): round once to nearest even and write one element."""
    kind = form.literal_value
    wide = value == types.float64
    if wide and kind not in (FLOAT32, FLOAT64):
        raise TypingError("float64 arithmetic stores float64 or float32 only: others would round twice")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[3]
        if wide != (kind == FLOAT64):
            value = builder.fptrunc(value, _F32) if wide else builder.fpext(value, _F64)
        if kind == FLOAT16:
            value = half.narrow(context, builder, value)
        elif kind == BFLOAT16:
            value = builder.trunc(builder.lshr(_round_bfloat16(builder, value, any_nan=True), _I32(16)), _I16)
        builder.store(value, _element(builder, args[0], args[1], _MEMORY[kind]), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, form, types.float64 if wide else types.float32), codegen


@intrinsic
def store_pair(typingctx: Any, address: Any, index: Any, even: Any, odd: Any) -> Any:
    """store_pair(address, index, even, odd): two float32 rounded once to bfloat16, written as 32-bit word `index`.

    They must come of bfloat16 operands alone.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        low = builder.lshr(_round_bfloat16(builder, args[2], any_nan=False), _I32(16))
        high = builder.and_(_round_bfloat16(builder, args[3], any_nan=False), _I32(0xFFFF0000))
        builder.store(builder.or_(low, high), _element(builder, args[0], args[1], _I32), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.float32), codegen


@intrinsic
def fma(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """fma(x, y, z): x*y + z rounded once, all float32 or all float64; in software where the processor has none."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return x(x, x, x), codegen


@intrinsic
def load_byte(typingctx: Any, address: Any, index: Any) -> Any:
    """load_byte(address, index) -> uint8."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_element(builder, args[0], args[1], ir.IntType(8)), align=1)

    return types.uint8(types.int64, types.int64), codegen


@intrinsic
def load_int(typingctx: Any, address: Any, index: Any) -> Any:
    """load_int(address, index) -> int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_element(builder, args[0], args[1], _I64), align=8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_float(typingctx: Any, address: Any, index: Any) -> Any:
    """load_float(address, index) -> float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_element(builder, args[0], args[1], _F64), align=8)

    return types.float64(types.int64, types.int64), codegen


@intrinsic
def on_stack(typingctx: Any, values: Any) -> Any:
    """on_stack((int64 or float64, ...)) -> int64: the address of the values, eight bytes each, while the caller runs.

    An array would be freed after its last use that numba can see, which an address taken from it is not.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        memory = cgutils.alloca_once(builder, _I64, size=len(signature.args[0]))
        for k in range(len(signature.args[0])):
            value = builder.extract_value(args[0], k)
            bits = value if value.type == _I64 else builder.bitcast(value, _I64)
            builder.store(bits, builder.gep(memory, [_I64(k)]))
        return builder.ptrtoint(memory, _I64)

    return types.int64(values), codegen


@intrinsic
def store_byte(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    """store_byte(address, index, uint8)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _element(builder, args[0], args[1], ir.IntType(8)), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint8), codegen


@intrinsic
def clear_line(typingctx: Any, address: Any) -> Any:
    """clear_line(address): write 64 zero bytes past the caches; the address must be a multiple of 64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = ir.VectorType(_I32, 16)
        written = builder.store(ir.Constant(line, None), builder.inttoptr(args[0], line.as_pointer()), align=64)
        written.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def fence(typingctx: Any) -> Any:
    """fence(): stores past the caches become visible before what follows."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


def _function(builder: Any, result: Any, arguments: list[Any], name: str) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


@intrinsic(prefer_literal=True)
def vector_bits(typingctx: Any, most: Any) -> Any:
    """vector_bits(most): vectorise the function that this stands in with at most that many bits; 0 is no limit."""
    bits = most.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if bits:
            attributes = builder.function.attributes
            attributes.add("noinline")  # within another function that one's attributes count
            set.add(attributes, f'"prefer-vector-width"="{bits}"')  # llvmlite's own `add` knows none with values
        return context.get_dummy_value()

    return types.void(most), codegen


@intrinsic
def fp_control(typingctx: Any) -> Any:
    """fp_control() -> int64: the thread's floating-point control register (MXCSR on x86, FPCR on ARM)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _ARM:
            return builder.asm(ir.FunctionType(_I64, []), "mrs $0, fpcr", "=r", [], side_effect=True)
        slot = builder.alloca(_I32)
        byte = ir.IntType(8).as_pointer()
        read = _function(builder, ir.VoidType(), [byte], "llvm.x86.sse.stmxcsr")
        builder.call(read, [builder.bitcast(slot, byte)])
        return builder.zext(builder.load(slot), _I64)

    return types.int64(), codegen


@intrinsic
def set_fp_control(typingctx: Any, value: Any) -> Any:
    """set_fp_control(value): write that register."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _ARM:
            builder.asm(ir.FunctionType(ir.VoidType(), [_I64]), "msr fpcr, $0", "r", [args[0]], side_effect=True)
        else:
            slot = builder.alloca(_I32)
            builder.store(builder.trunc(args[0], _I32), slot)
            byte = ir.IntType(8).as_pointer()
            write = _function(builder, ir.VoidType(), [byte], "llvm.x86.sse.ldmxcsr")
            builder.call(write, [builder.bitcast(slot, byte)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def default_fp_control() -> int:
    """The value of that register that IEEE 754 calls the default (rule O7)."""
    return 0 if _ARM else _MXCSR_DEFAULT


@intrinsic
def call(typingctx: Any, address: Any, arguments: Any) -> Any:
    """call(address, (arguments...)): call a C function that returns nothing; LLVM cannot look through it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = [builder.extract_value(args[1], i) for i in range(len(signature.args[1]))]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), codegen
