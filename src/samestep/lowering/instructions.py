"""What a compiled kernel does, counted in its text: PTX, SASS, AMDGCN or HIVM.

`count` returns how many instructions of each class stand in the text:

- ``fma``: fused multiply-adds (none is an HFMA2 that multiplies zeros, ptxas's way to load a constant, nor AMD's
  v_fma_mix_f32 that adds -0 or multiplies by 1);
- ``mul``, ``add`` (and subtract), ``convert``: arithmetic in float. What does two operations at once counts twice in
  these and in ``fma``, so that they are the operations of one thread;
- ``load_128``, ``load_64``, ... and ``store_...``: from and to memory of the device, by bits (HIVM: to and from
  vector registers, ``load`` and ``store``);
- ``spill``: loads and stores of local memory, which Triton's kernels have only where registers did not suffice;
- ``flush``: instructions or modes that flush subnormals to zero; ``approximate``: not rounded correctly;
- ``unrounded``: multiplies and adds in PTX without ``.rn``, which ptxas would be free to fuse;
- ``unknown``: in HIVM, vector instructions that are none of the above.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

_AMD_BITS = {
    "dwordx4": 128, "b128": 128, "dwordx3": 96, "b96": 96, "dwordx2": 64, "b64": 64, "dword": 32, "b32": 32,
    "ushort": 16, "short": 16, "b16": 16, "u16": 16, "ubyte": 8, "byte": 8,
}


def _ptx_bits(text: str) -> int:
    found = re.match(r"\w+(?:\.[\w:]+)*?(?:\.v(\d))?\.[bfus](\d+)\b", text)
    assert found is not None, text
    return int(found[1] or 1) * int(found[2])


def _sass_bits(text: str) -> int:
    found = re.match(r"\w+\.(?:\w+\.)*?[US]?(128|64|16|8)\b", text)
    return int(found[1]) if found else 32


def _amd_bits(text: str) -> int:
    found = re.match(r"\w+?_(?:load|store)_(?:short_|byte_)?(?:lds_)?([a-z]+\d*)", text)
    name = found[1] if found else ""
    return _AMD_BITS["short" if name.startswith("d16") else name]


class _Language(NamedTuple):
    instruction: re.Pattern[str]  # its group is mnemonic and operands
    classes: dict[str, re.Pattern[str]]  # matched against that group; an instruction may be of several
    twice: re.Pattern[str]  # does two operations
    bits: Callable[[str], int] | None = None


def _language(
    instruction: str, classes: dict[str, str], twice: str, bits: Callable[[str], int] | None = None
) -> _Language:
    compiled = {name: re.compile(pattern) for name, pattern in classes.items()}
    return _Language(re.compile(instruction, re.MULTILINE), compiled, re.compile(twice), bits)


_FLOAT = r"(?:\.\w+)*\.(?:bf|f)(?:16|16x2|32|32x2|64)\b"
# AMD's way to widen float16 operands of one operation: x*y - 0 and x*1 + y, which round as x*y and x + y do.
_MIX_MUL = r"v_fma_mix_f32 \w+, \S+, \S+, neg\(0\)"
_MIX_ADD = r"v_fma_mix_f32 \w+, \S+, 1\.0, "
LANGUAGES = {
    "ptx": _language(
        r"^\s*(?:@!?%p\d+\s+)?([a-z]\w*\.[\w.]+\b[^;\n]*)",
        {
            "fma": r"(?:fma|mad)" + _FLOAT, "mul": "mul" + _FLOAT, "add": "(?:add|sub)" + _FLOAT,
            "convert": r"cvt\S*\.(?:bf|f)\d+", "load": r"ld\.global", "store": r"st\.global",
            "spill": r"(?:ld|st)\.local", "flush": r"\S+\.ftz\b", "approximate": r"\S+\.approx\b",
            "unrounded": r"(?:add|sub|mul)(?!\S*\.rn\b)" + _FLOAT,
        },
        r"(?:fma|mul|add|sub)\S*x2\b",
        _ptx_bits,
    ),
    "sass": _language(
        r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*\b[^;\n]*);",
        {
            "fma": r"(?:FFMA2?|DFMA|HFMA2)\b(?!\S*\s+R\d+, -?RZ, -?RZ,)", "mul": r"(?:FMUL2?|DMUL|HMUL2)\b",
            "add": r"(?:FADD2?|DADD|HADD2(?!\.F32))\b", "convert": r"F2FP?\b|HADD2\.F32\b", "load": r"LDG?\.E?\b",
            "store": r"STG?\.E?\b", "spill": r"(?:LDL|STL)\b", "flush": r"\S+\.FTZ\b", "approximate": r"MUFU\b",
        },
        r"[FH](?:FMA|MUL|ADD)2\b(?!\.F32)",
        _sass_bits,
    ),
    "amdgcn": _language(
        r"^\s+([vs]_\w+[^;\n]*|(?:global|flat|buffer|scratch)_\w+[^;\n]*|\.amdhsa_float_denorm_mode\w+ \d)",
        {
            "fma": rf"(?!{_MIX_MUL}|{_MIX_ADD})v_(?:pk_)?(?:fma|mad|mac|dot|mfma)\w*_b?f(?:16|32|64)",
            "mul": rf"v_(?:pk_)?mul_\w*f(?:16|32|64)|{_MIX_MUL}",
            "add": rf"v_(?:pk_)?(?:add|sub|subrev)_f(?:16|32|64)|{_MIX_ADD}", "convert": r"v_cvt_\w*f(?:16|32|64)",
            "load": r"(?:global|flat|buffer)_load_", "store": r"(?:global|flat|buffer)_store_", "spill": r"scratch_",
            "flush": r"\.amdhsa_float_denorm_mode\w+ [012]|v_\w*_legacy_|s_denorm_mode|s_setreg",
            "approximate": r"v_(?:rcp|rsq|sqrt|exp|log|sin|cos)_",
        },
        "v_pk_",
        _amd_bits,
    ),
    "hivm": _language(
        r"intr\.hivm\.(v\w+(?:\.\w+)*)",
        {
            "mul": r"vmuls?\.", "add": r"v(?:add|sub)s?\.", "convert": r"vcvtff\.", "load": r"vldsx1\.",
            "store": r"vstsx1\.", "fma": r"v\w*(?:mula|mad|fma|axpy)\w*\.",
            "unknown": r"(?!vmuls?\.|v(?:add|sub)s?\.|vcvtff\.|vldsx1\.|vstsx1\.|vdups?\.|v\w*(?:mula|mad|fma|axpy))",
        },
        "(?!)",
    ),
}


def count(text: str, language: str) -> dict[str, int]:
    """How many instructions of each class `text` holds; `language` is a name in `LANGUAGES`."""
    instruction, classes, twice, bits = LANGUAGES[language]
    moved = ("load", "store") if bits is not None else ()
    found: Counter[str] = Counter({name: 0 for name in classes if name not in moved})
    for match in instruction.finditer(text):
        for name, pattern in classes.items():
            if not pattern.match(match[1]):
                continue
            if bits is not None and name in moved:
                found[f"{name}_{bits(match[1])}"] += 1
            else:
                found[name] += 2 if twice.match(match[1]) and name in ("fma", "mul", "add") else 1
    return dict(found)


def branches_on_momentum(hivm: str) -> bool:
    """Is there a branch on a comparison of a float32 with 0 that NaN passes, as `m != 0` does (rule O6)?"""
    zeros = re.findall(r"^\s*(%\w+) = (?:llvm\.mlir|arith)\.constant\(?\s*0\.0+e\+00 : f32", hivm, re.MULTILINE)
    compared = re.findall(r'^\s*(%\w+) = llvm\.fcmp "une" %\w+, (%\w+) : f32', hivm, re.MULTILINE)
    return any(zero in zeros and f"cf.cond_br {name}," in hivm for name, zero in compared)
