"""The updates as operators of torch: `torch.ops.samestep.sgd_`, and `step_` and `step_list_` of the optimizer's rule.

Importing this module registers them. They are opaque to `torch.compile` and `torch.export`, return nothing, and declare
what they write. Registered by a `Library`: a call costs a tenth of what one through `torch.library.custom_op` does.
It also puts `torch.ops.samestep.sgd_` in the place of `samestep.sgd_` in what `torch.compile` traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from samestep import contract, op
from samestep.contract import DTYPES, INPUTS, SCALARS, UNKNOWN_DIM, Inputs, Unusual
from samestep.engine import gpu
from samestep.optim import hyperparameters, plan, run
from samestep.rounding import round_number

_NUMBERS = ("bool first_step, float lr, float momentum=0., float dampening=0., float weight_decay=0., "
            "bool nesterov=False, bool maximize=False")
_LIBRARY = torch.library.Library("samestep", "FRAGMENT")
# Rule O3 looks at strides, so a compiler may not choose others for a tensor that it makes itself.
_LIBRARY.define(
    "sgd_(Tensor(a!) parameters, Tensor gradient, Tensor learning_rate, Tensor(b!) accum, Tensor momentum, "
    'Tensor(c!) stat, *, float dampening=0., float weight_decay=0., bool nesterov=False, str order="spec") -> ()',
    tags=(getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),),
)
_LIBRARY.define("number(Tensor value, Tensor like) -> Tensor")
_LIBRARY.define(f"step_(Tensor(a!) parameters, Tensor gradient, Tensor(b!)? momentum_buffer, {_NUMBERS}) -> ()")
_LIBRARY.define("step_list_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] momentum_buffers, "
                f"{_NUMBERS.replace('bool first_step', 'bool[] first_step')}) -> ()")


def sgd_(
    parameters: Tensor, gradient: Tensor, learning_rate: Tensor | float, accum: Tensor, momentum: Tensor | float,
    stat: Tensor, *, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, order: str = "spec",
) -> Tensor:
    """`samestep.sgd_` for torch tensors as one node of a graph; return `parameters` (rules O, S).

    Arguments as of `samestep.sgd_`: the same rules, bits and refusals, by the engine for the tensors' device. Numbers
    are rounded as there, also if they are symbols of the graph. There is no derivative; `parameters` may be a leaf that
    requires gradients.

    Raises `ContractError`: while a graph is traced for all that is known then (dtypes, devices, strides, lengths,
    attributes, shared memory), where two lengths have to be equal makes them one symbol of the graph, and leaves the
    rest to the call. Lengths that are not known at all (unbacked symbols) are checked when the graph runs.
    """
    for name, x in zip(INPUTS, (parameters, gradient, learning_rate, accum, momentum, stat), strict=True):
        if not isinstance(x, Tensor) and not (name in SCALARS and type(x) is not bool and isinstance(x, (int, float))):
            contract.refuse("wrong_type", name, f"an object of type {type(x).__name__}",
                            "a torch tensor or a Python number" if name in SCALARS else "a torch tensor")
    lr, m = _tensor(learning_rate, parameters), _tensor(momentum, parameters)
    torch.ops.samestep.sgd_(parameters, gradient, lr, accum, m, stat, dampening=dampening, weight_decay=weight_decay,
                            nesterov=nesterov, order=order)
    return parameters


def _tensor(value: Any, like: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value
    # A number that is a symbol of the graph stays one in a tensor; given to an operator, it would become a constant.
    return torch.ops.samestep.number(torch.full((), value, dtype=torch.float64, device="cpu"), like)


def _sgd_in_a_graph(
    parameters: Any, gradient: Any, learning_rate: Any, accum: Any, momentum: Any, stat: Any, *, dampening: float = 0.0,
    weight_decay: float = 0.0, nesterov: bool = False, order: str = "spec", engine: str | None = None,
) -> Any:
    """What `torch.compile` traces for `samestep.sgd_`; another engine, and other arrays, are left to the eager call."""
    settings: dict[str, Any] = {"dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
                                "order": order}
    own = "gpu" if getattr(parameters, "is_cuda", False) else "cpu"
    if engine not in (None, own) or not all(isinstance(x, Tensor) for x in (parameters, gradient, accum, stat)):
        return _eagerly(parameters, gradient, learning_rate, accum, momentum, stat, engine=engine, **settings)
    return sgd_(parameters, gradient, learning_rate, accum, momentum, stat, **settings)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _eagerly(*tensors: Any, **settings: Any) -> Any:
    return op.sgd_(*tensors, **settings)


if hasattr(torch.compiler, "substitute_in_graph"):  # an older torch breaks the graph at samestep.sgd_
    torch.compiler.substitute_in_graph(op.sgd_)(_sgd_in_a_graph)


def _run(*tensors: Tensor, **settings: Any) -> None:
    op.sgd_(*tensors, **settings)


def _infer(*tensors: Tensor, order: str = "spec", dampening: float = 0.0, weight_decay: float = 0.0,
           nesterov: bool = False) -> None:
    """Rules O and S over tensors without data, for the lengths of the example that the graph is traced with."""
    contract.check_order(order)
    inputs = _facts(tensors)
    on_gpu = tensors[0].is_cuda and gpu.unavailable() is None
    contract.check_inputs(inputs, str(tensors[0].device) if on_gpu else "cpu")
    for k in (1, 3, 5):
        for one, other in zip(tensors[0].shape, tensors[k].shape, strict=True):
            if all(not isinstance(dim, torch.SymInt) or dim.node.has_hint() for dim in (one, other)):
                torch._check(one == other)  # two symbols become one, or one a constant; true of the example
    contract.check_attributes(dampening, weight_decay, nesterov)
    contract.check_memory(inputs)


def _facts(tensors: Sequence[Tensor]) -> Inputs:
    """What is known of tensors without data; each storage has an address, made up, so that sharing one shows."""
    storages = {x: k for k, x in enumerate({x.untyped_storage()._cdata for x in tensors if x.layout is torch.strided})}
    # A meta tensor has nothing to write to: fine if nothing is to be written at all.
    devices = {"cpu", "meta"} if all(tensors[k].device.type == "meta" for k in (0, 1, 3, 5)) else {"cpu"}
    rows: list[Any] = []
    for x in tensors:
        dtype = str(x.dtype).removeprefix("torch.")
        if x.layout is not torch.strided or x.is_nested or x.is_neg():
            kind = "a lazily negated torch view" if x.is_neg() else f"a torch tensor of layout {x.layout}"
            rows.append((Unusual(kind), dtype, (), 0, 0, x))
            continue
        unusual = Unusual(None, "cpu" if x.device.type in devices else str(x.device), _contiguous(x))
        shape = tuple(map(_length, x.shape))
        size = math.prod(max(dim, 1) for dim in shape) * x.itemsize
        start = (storages[x.untyped_storage()._cdata] << 64) + max(_length(x.storage_offset()), 0) * x.itemsize
        rows.append((None if unusual == Unusual() else unusual, dtype, shape, start, size, x))
    return Inputs(False, (1,) * len(INPUTS), *zip(*rows, strict=True))


def _length(dim: Any) -> int:
    """A length: a symbol's is that of the example, or -1 if there is none."""
    if not isinstance(dim, torch.SymInt):
        return int(dim)
    return int(dim.node.hint) if dim.node.has_hint() else UNKNOWN_DIM


def _contiguous(x: Tensor) -> bool:
    try:
        return bool(x.is_contiguous())
    except RuntimeError:  # it depends on lengths that nobody knows yet
        return True


def _number(value: Tensor, like: Tensor) -> Tensor:
    """`value`, of dtype float64 and shape (), rounded to the dtype of `like` as `samestep.sgd_` rounds a number."""
    name = str(like.dtype).removeprefix("torch.")
    bits = round_number(value.item(), name if name in DTYPES else "float32")[1]
    integer = torch.int16 if DTYPES.get(name) == 2 else torch.int32
    return torch.tensor(bits, device="cpu").to(integer).view(_dtype_of_numbers(like)).to(like.device)


def _no_number_yet(value: Tensor, like: Tensor) -> Tensor:
    return torch.empty((), dtype=_dtype_of_numbers(like), device=like.device)


def _dtype_of_numbers(like: Tensor) -> torch.dtype:
    return like.dtype if str(like.dtype).removeprefix("torch.") in DTYPES else torch.float32


def step_(
    parameters: Tensor, gradient: Tensor, momentum_buffer: Tensor | None, first_step: bool, lr: float,
    momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
    maximize: bool = False,
) -> None:
    """Update `parameters` and, with momentum, `momentum_buffer` in place by one step of rule T; there is no derivative.

    Arguments:
        parameters, gradient, momentum_buffer: tensors of one shape, any layout, real or complex floating dtypes; the
            gradient's may differ. A first step writes the buffer without reading it; without momentum it is neither
            read nor written and may be None. The buffer's dtype is the parameters' or a wider one.
        first_step: is it the first step with momentum?
        lr, momentum, dampening, weight_decay: numbers, kept as float64 until the rule rounds them.
        nesterov, maximize: as `samestep.optim.SGD`.

    Raises RuntimeError for tensors that do not fit and ValueError for NaN; nothing has been written then.
    """
    buffers = [] if momentum_buffer is None else [momentum_buffer]
    step_list_([parameters], [gradient], buffers, [first_step], lr, momentum, dampening, weight_decay, nesterov,
               maximize)


def step_list_(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], momentum_buffers: Sequence[Tensor],
    first_step: Sequence[bool], lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, maximize: bool = False,
) -> None:
    """`step_` for lists of equal length, in one call of the engine, all or nothing.

    Without momentum `momentum_buffers` may be empty. Raises as `step_`, and RuntimeError for unequal lengths.
    """
    settings = hyperparameters.settings({
        "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
        "maximize": maximize, "dialect": "torch", "order": "spec",
    })
    n = len(parameters)
    if not len(gradients) == len(first_step) == n or (momentum != 0 and len(momentum_buffers) != n):
        raise RuntimeError(f"step_list_ needs lists of one length, not {n} parameters, {len(gradients)} gradients, "
                           f"{len(momentum_buffers)} momentum buffers and {len(first_step)} flags")
    buffers: Sequence[Tensor | None] = momentum_buffers if momentum != 0 else [None] * n
    checked = plan.make(settings, list(parameters), list(gradients), buffers, [None] * n, "parameter {}".format,
                        lambda parameter: None)
    for index, (made, given) in enumerate(zip(checked.buffers, buffers, strict=True)):
        if made is not given:  # an operator cannot put another tensor in the buffer's place
            raise RuntimeError(f"the momentum buffer of parameter {index} has another device than the parameter or "
                               "a narrower dtype")
    with torch.no_grad():
        run.run([checked._replace(first=list(first_step) if momentum != 0 else checked.first)])


def _nothing(*arguments: Any, **more: Any) -> None:
    """What the operators return; all a graph's compiler has to know."""


def _register(name: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    # One implementation for every device: which engine it is for is decided tensor by tensor. Where a graph breaks,
    # dynamo would trace into it.
    _LIBRARY.impl(name, torch.compiler.disable(implementation), "CompositeExplicitAutograd")
    torch.library.register_fake(f"samestep::{name}", fake, lib=_LIBRARY)


_register("sgd_", _run, _infer)
for _key in ("Negative", "Conjugate"):  # torch would update a copy of a lazily negated or conjugated view
    _LIBRARY.impl("sgd_", torch.library.fallthrough_kernel, _key)
_register("number", _number, _no_number_yet)
_LIBRARY.impl("number", torch.library.fallthrough_kernel, "Autograd")  # `like` lends its dtype only
_register("step_", step_, _nothing)
_register("step_list_", step_list_, _nothing)
