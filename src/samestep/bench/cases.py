"""The 200 cases: 100 of the operator, 100 of the optimizer, spread over dtypes, hyperparameters and shapes by rule.

A full grid would take a day. So each shape of the operator takes five of the eighteen pairs of dtype and key, each
shape of the optimizer four of the 24 pairs of dtype and hyperparameters, whole lists of parameters up to 14; the next
shape begins one pair further on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import resources

from samestep.bench import models
from samestep.bench.peer import Case, Settings

Shapes = tuple[tuple[int, ...], ...]
DECAY = 1e-4
OP_DTYPES = ("float32", "float16", "bfloat16")
OPTIM_DTYPES = ("float32", "float64", "bfloat16", "float16")
KEYS = {  # of the operator's kernels
    "K0": Settings(0.9),
    "K1": Settings(0.9, dampening=0.1),
    "K2": Settings(0.9, weight_decay=DECAY),
    "K3": Settings(0.9, dampening=0.1, weight_decay=DECAY),
    "K4": Settings(0.9, weight_decay=DECAY, nesterov=True),
    "K5": Settings(0.9, nesterov=True),
}
HYPERPARAMETERS = {  # of the optimizer, the most usual first
    "decay": Settings(0.9, weight_decay=DECAY),
    "momentum": Settings(0.9),
    "nesterov": Settings(0.9, weight_decay=DECAY, nesterov=True),
    "dampened": Settings(0.9, dampening=0.1, weight_decay=DECAY),
    "maximize": Settings(0.9, weight_decay=DECAY, maximize=True),
    "plain": Settings(),
}
SIZES = {"1": 1, "7": 7, "64": 64, "1000": 1000, "65,537": 65_537, "1,000,003": 1_000_003}
MANY: dict[str, Shapes] = {"1000 x 64": ((64,),) * 1000, "10,000 x 16": ((16,),) * 10_000}
RESNET, VIT, GPT2, LLAMA = ("ResNet-50 (512, 512, 3, 3)", "ViT-B/16 (3072, 768)", "GPT-2 (768, 2304)",
                            "Llama (2048, 5632)")
LAYERS = {RESNET: (512, 512, 3, 3), VIT: (3072, 768), GPT2: (768, 2304), LLAMA: (2048, 5632)}
LIST_CASES = {"1000 x 64": 14, "10,000 x 16": 14, "ResNet-50": 14, "ViT-B/16": 8, "GPT-2 small": 6,
              "Llama, 4 blocks": 4}
_SHORT = dict.fromkeys(("64", "65,537"), OP_DTYPES)
QUICK: dict[str, dict[str, tuple[str, ...]]] = {  # lists in few dtypes: JAX takes seconds to compile a step of one
    "op": {**_SHORT, "4M": OP_DTYPES, "1000 x 64": ("float32",)},
    "optim": {**_SHORT, "1,000,003": OP_DTYPES, "1000 x 64": ("float32", "float16")},
}


def _real_shapes() -> dict[str, Shapes]:
    """Of the shapes that a public test suite has for the operator: the smallest, the largest, two between."""
    text = resources.files("samestep.verify").joinpath("data/ttk_shapes.json").read_text(encoding="utf-8")
    shapes = sorted((tuple(case["shape"]) for case in json.loads(text)["cases"]), key=math.prod)
    last = len(shapes) - 1
    return {f"TTK {shapes[last * third // 3]}": (shapes[last * third // 3],) for third in range(4)}


def _op_shapes() -> dict[str, Shapes]:
    flat = {**SIZES, "4M": 1 << 22, "10,000,019": 10_000_019, "16M": 1 << 24}
    return {**{name: ((size,),) for name, size in flat.items()}, **_real_shapes(),
            **{name: (shape,) for name, shape in LAYERS.items()}, **MANY, "ResNet-50": tuple(models.resnet50())}


def _op() -> list[Case]:
    """Five different keys a shape: two in float32, three in 16 bits."""
    found = []
    for place, (name, shapes) in enumerate(_op_shapes().items()):
        for turn, dtype in enumerate((*OP_DTYPES, "float32", OP_DTYPES[1 + place % 2])):
            key = f"K{(place + turn) % len(KEYS)}"
            found.append(Case("op", dtype, key, name, KEYS[key], shapes))
    return found


def _optim() -> list[Case]:
    single = {**{name: (size,) for name, size in SIZES.items()},
              **{name: LAYERS[name] for name in (RESNET, GPT2, LLAMA)}, "32M": (1 << 25,)}
    lists = {**MANY, "ResNet-50": tuple(models.resnet50()), "ViT-B/16": tuple(models.vit_b16()),
             "GPT-2 small": tuple(models.gpt2_small()), "Llama, 4 blocks": tuple(models.llama_blocks(4))}
    found = []
    for place, (name, shape) in enumerate(single.items()):
        for turn, dtype in enumerate(OPTIM_DTYPES):
            found.append(_of_optim(dtype, place + turn, name, (shape,)))
    for name, count in LIST_CASES.items():
        # float64 is for small things: nobody trains these models in it.
        dtypes = OPTIM_DTYPES if name in MANY else ("float32", "bfloat16", "float16")
        cycle = math.lcm(len(dtypes), len(HYPERPARAMETERS))
        found += [_of_optim(dtypes[turn % len(dtypes)], turn + turn // cycle, name, lists[name])
                  for turn in range(count)]
    return found


def _of_optim(dtype: str, place: int, name: str, shapes: Shapes) -> Case:
    setting = list(HYPERPARAMETERS)[place % len(HYPERPARAMETERS)]
    return Case("optim", dtype, setting, name, HYPERPARAMETERS[setting], shapes)


CASES: tuple[Case, ...] = (*_op(), *_optim())


def quick() -> tuple[Case, ...]:
    """21 of the cases, none above 4M elements: four shapes a suite, in float32, float16 and bfloat16."""
    first: dict[tuple[str, str, str], Case] = {}
    for case in CASES:
        if case.dtype in QUICK[case.suite].get(case.shape, ()):
            first.setdefault((case.suite, case.shape, case.dtype), case)
    return tuple(first.values())


def named(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases of these names, in the order of `CASES`; raises ValueError for a name that no case has."""
    known = {case.name for case in CASES}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no case {name!r}; one of the {len(known)} names is {CASES[0].name!r}, and "
                             "samestep.bench.cases.CASES has all of them")
    return tuple(case for case in CASES if case.name in names)


def bytes_of(case: Case) -> int:
    """Bytes that a right step has to read and to write.

    The operator reads parameters, gradient and accum, with dampening also stat, and writes parameters, accum and stat.
    The optimizer reads parameters and gradient, writes parameters, and with momentum reads and writes its buffer.
    """
    if case.suite == "op":
        tensors = 7 if case.settings.dampening else 6
    else:
        tensors = 5 if case.settings.momentum else 3
    return tensors * case.elements * ITEMSIZE[case.dtype]


ITEMSIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
