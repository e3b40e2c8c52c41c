"""float16 to float32 and back in LLVM, with or without the processor's own conversion.

Where the processor has none, LLVM would call a C function that the process may not hold, and crash; so the conversion
is then made of integer operations and one float32 operation that is exact. Both give the same bits (any NaN for NaN).
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_F16, _F32 = ir.HalfType(), ir.FloatType()


def _in_hardware(context: Any) -> bool:
    """Has the processor compiled for a conversion? (Every ARM64 has one, x86 since F16C.)"""
    return platform.machine() not in ("x86_64", "AMD64") or "+f16c" in context.codegen().magic_tuple()[2]


def widen(context: Any, builder: Any, bits: Any) -> Any:
    """The float32 value of the float16 with the i16 pattern `bits`, exactly."""
    if _in_hardware(context):
        return builder.fpext(builder.bitcast(bits, _F16), _F32)
    wide = builder.zext(bits, _I32)
    magnitude = builder.shl(builder.and_(wide, _I32(0x7FFF)), _I32(13))
    # Exponent and significand now stand where float32 has them; 2**112 makes up for the other bias, also below the
    # normal numbers, and is exact.
    value = builder.fmul(builder.bitcast(magnitude, _F32), ir.Constant(_F32, 2.0**112))
    special = builder.icmp_unsigned(">=", magnitude, _I32(0x7C00 << 13))
    finite = builder.bitcast(value, _I32)
    pattern = builder.select(special, builder.or_(magnitude, _I32(0x7F800000)), finite)
    sign = builder.shl(builder.and_(wide, _I32(0x8000)), _I32(16))
    return builder.bitcast(builder.or_(pattern, sign), _F32)


def narrow(context: Any, builder: Any, value: Any) -> Any:
    """The i16 pattern of the float32 `value` rounded to nearest even to float16."""
    if _in_hardware(context):
        return builder.bitcast(builder.fptrunc(value, _F16), _I16)
    bits = builder.bitcast(value, _I32)
    magnitude = builder.and_(bits, _I32(0x7FFFFFFF))
    # Normal: move the bias, then round at bit 13; a carry may run into the exponent, up to infinity.
    moved = builder.sub(magnitude, _I32(112 << 23))
    odd = builder.and_(builder.lshr(moved, _I32(13)), _I32(1))
    normal = builder.lshr(builder.add(moved, builder.add(odd, _I32(0xFFF))), _I32(13))
    # Below 2**-14: adding 0.5 rounds at 2**-24, the smallest subnormal, and leaves the count of them in the low bits.
    half = ir.Constant(_F32, 0.5)
    added = builder.fadd(builder.bitcast(magnitude, _F32), half)
    subnormal = builder.sub(builder.bitcast(added, _I32), builder.bitcast(half, _I32))
    small = builder.icmp_unsigned("<", magnitude, _I32(113 << 23))
    pattern = builder.select(small, subnormal, normal)
    large = builder.icmp_unsigned(">=", magnitude, _I32(143 << 23))  # 65536 and more, infinity, NaN
    is_nan = builder.icmp_unsigned(">", magnitude, _I32(0x7F800000))
    pattern = builder.select(large, builder.select(is_nan, _I32(0x7E00), _I32(0x7C00)), pattern)
    sign = builder.and_(builder.lshr(bits, _I32(16)), _I32(0x8000))
    return builder.trunc(builder.or_(pattern, sign), _I16)
