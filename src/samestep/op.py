"""The operator: check everything, choose the kernel, run it once (rules O, K)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from samestep import arrays, contract, tiling
from samestep.engine import DEFAULT, ENGINES, bulk, cpu, engines, gpu, quick
from samestep.engine.batch import Batch, Kernel, table_of


def sgd_(
    parameters: Any, gradient: Any, learning_rate: Any, accum: Any, momentum: Any, stat: Any, *, dampening: float = 0.0,
    weight_decay: float = 0.0, nesterov: bool = False, order: str = "spec", engine: str | None = None,
) -> Any:
    """Update parameters, accum and stat in place by one step of SGD with momentum; return `parameters`.

    With d = dampening, wd = weight_decay, lr = learning_rate, m = momentum, for every element (rules O5, O6)::

        grad    = gradient + parameters*wd         (just gradient when wd == 0)
        accum_t = accum*m + grad
        accum_t = accum_t - grad*(1 - stat)*d      (only when d != 0)
        parameters -= grad*lr + accum_t*m*lr       with nesterov, else accum_t*lr
        accum, stat = accum_t, 0                   only when m != 0; else not a byte of them is written

    Arithmetic is in float32, every operation rounded on its own, each written tensor rounded once to its dtype, to
    nearest even. The bits do not depend on engine, threads, memory layout or processor (rule O8).

    Arguments:
        parameters, gradient, accum, stat: tensors of one shape, rank 1 to 8, not empty, C-contiguous, of one dtype:
            float32, float16 or bfloat16. NumPy arrays (bfloat16 from ml_dtypes), torch CPU tensors, or CPU objects
            with DLPack, also mixed; or torch tensors on one CUDA device, and then learning_rate and momentum are such
            tensors or numbers. The first, accum and stat are written and share memory with nothing else.
        learning_rate, momentum: one-element tensors of the same dtype, any rank; or Python numbers (and NumPy's
            float64, which is one), rounded to that dtype, to nearest even (in bfloat16, 0.9 is 0.8984375). A NumPy
            scalar of another type is a tensor of its own dtype.
        dampening, weight_decay: numbers, rounded to float32 before anything else; weight_decay >= 0.
        nesterov: look ahead along accum; excludes dampening.
        order: ``"spec"`` or ``"ascend950"``, the evaluation order; the two differ in rounding only.
        engine: a name from `samestep.engines()`; None for ``"gpu"`` where parameters are on a CUDA device, else
            ``"cpu"``. On a CUDA device the update is put on that device's current stream, and momentum is read there.

    Raises `ContractError` with a code of rule O12; nothing has been written then (rule O11). torch tensors may require
    gradients; the version counter of each written one goes up, so autograd notices the change.
    """
    done = quick.step(parameters, gradient, learning_rate, accum, momentum, stat, dampening, weight_decay, nesterov,
                      order, engine)
    if done is None:
        quick.mark_written((parameters, accum, stat))
    if done is not False:
        return parameters
    _shield()
    _update(engine, (parameters, gradient, learning_rate, accum, momentum, stat), (1, 1, 1, 1, 1, 1), False, dampening,
            weight_decay, nesterov, order)
    return parameters


def sgd_batch_(
    parameters: Sequence[Any], gradient: Sequence[Any], learning_rate: Any, accum: Sequence[Any], momentum: Any,
    stat: Sequence[Any], *, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
    order: str = "spec", engine: str | None = None,
) -> Sequence[Any]:
    """`sgd_` for many tensor sets in one engine call, all or nothing; return `parameters`.

    `parameters`, `gradient`, `accum` and `stat` are sequences of equal length (else ``batch_length``), in equal order;
    all tensors have one dtype; `learning_rate` and `momentum` are shared. Memory that is written may not appear twice
    (``overlap``). Everything else is as for `sgd_`; errors name the tensor, as in ``gradient[3]``. Empty sequences are
    a step with nothing to do.
    """
    _shield()
    _update_batch(parameters, gradient, learning_rate, accum, momentum, stat, dampening, weight_decay, nesterov, order,
                  engine)
    return parameters


def _shield() -> None:
    """Where torch's dynamo is loaded, have it look into nothing below: it would where a graph breaks at these calls."""
    global _update, _update_batch
    if "torch._dynamo" in sys.modules and not hasattr(_update, "_torchdynamo_disable"):
        disable = sys.modules["torch"].compiler.disable
        _update, _update_batch = disable(_update), disable(_update_batch)


# What torch.compiler.disable does too, for which torch would have to be loaded: dynamo calls it and does not trace it.
_shield.__dict__["_torchdynamo_disable"] = True


def _update_batch(
    parameters: Any, gradient: Any, learning_rate: Any, accum: Any, momentum: Any, stat: Any, dampening: Any,
    weight_decay: Any, nesterov: Any, order: Any, engine: Any,
) -> None:
    module = _engine(order, engine)
    p, g, a, s = map(contract.check_sequence, ("parameters", "gradient", "accum", "stat"),
                     (parameters, gradient, accum, stat))
    if module is cpu and p:
        table = bulk.table_of(p, g, a, s)
        if table is not None and _update_table(table, (p[0], g[0], learning_rate, a[0], momentum, s[0]),
                                               (dampening, weight_decay, nesterov), order):
            return
    tensors = (*p, *g, learning_rate, *a, momentum, *s)
    counts = (len(p), len(g), 1, len(a), 1, len(s))
    _update(engine, tensors, counts, True, dampening, weight_decay, nesterov, order)


def _update(
    engine: Any, tensors: Sequence[Any], counts: tuple[int, ...], batch: bool, dampening: Any,
    weight_decay: Any, nesterov: Any, order: str,
) -> None:
    """One step for all `tensors`: `counts[k]` of them for each input in turn."""
    module = _engine(order, engine)
    inputs = arrays.read(tensors, counts, batch=batch)
    device, reason = "cpu", ""
    if module is gpu or (counts[0] and inputs.unusual[0] is not None):
        module, device, reason, inputs = _place(module, engine, tensors, inputs)
    contract.check_inputs(inputs, device, reason)
    attributes = contract.check_attributes(dampening, weight_decay, nesterov)
    contract.check_memory(inputs)
    n = counts[0]
    if n:
        dtype, at = inputs.dtypes[0], inputs.addresses
        size = contract.DTYPES[dtype]
        if n == 1:
            total = inputs.sizes[0] // size
            table: Any = ((at[0], at[1], at[3], at[5], total),)
        else:
            lengths = [nbytes // size for nbytes in inputs.sizes[:n]]
            total = sum(lengths)
            table = table_of(at[:n], at[n:2 * n], at[2 * n + 1:3 * n + 1], at[3 * n + 2:], lengths)
        split = module.plan(total, dtype)
        kernel = _kernel(order, dtype, split.sch_mode, attributes)
        module.run(Batch(kernel, table, at[2 * n], at[3 * n + 1], attributes[0], attributes[1], split, device))
        if "torch" in sys.modules:
            arrays.mark_written((*tensors[:n], *tensors[2 * n + 1:3 * n + 1], *tensors[3 * n + 2:]))
            kind: Any = type(tensors[0])
            quick.meet(kind)
        quick.count_call()


def _update_table(table: Any, first: Sequence[Any], attributes: Any, order: str) -> bool:
    """One step of engine cpu for a table of plain arrays, of which `first` is a call of the first set; was it done?

    Learning rate, momentum and attributes are checked as for that call: all else of the others is as of the first.
    """
    inputs = arrays.read(first, (1,) * 6, batch=False)
    contract.check_inputs(inputs)
    checked = contract.check_attributes(*attributes)
    dtype, at = inputs.dtypes[0], inputs.addresses
    if not bulk.are_apart(table, contract.DTYPES[dtype], (at[2], at[4])):
        return False
    split = cpu.plan(int(table[-1, 4]), dtype)
    kernel = _kernel(order, dtype, split.sch_mode, checked)
    cpu.run(Batch(kernel, table, at[2], at[4], checked.dampening, checked.weight_decay, split))
    return True


def _place(module: Any, engine: Any, tensors: Sequence[Any], inputs: contract.Inputs) -> tuple[Any, str, str, Any]:
    """The engine for the memory that parameters are in, the device where all tensors must be, and why no other.

    The inputs come back with numbers in that device's memory.
    """
    first = inputs.unusual[0]  # of parameters, or of learning_rate where there are none
    device = first.device.partition(",")[0] if first else "cpu"
    if not inputs.counts[0]:
        return module, device, "", inputs
    if engine is None and device.startswith("cuda"):
        missing = gpu.unavailable()
        if missing is not None:
            return module, "cpu", f"; the engine for {device!r}, 'gpu', is unavailable here: {missing}", inputs
        module = gpu
    kind = module.device_type()
    if kind == "cpu" or not device.startswith(kind):
        return module, kind, "", inputs
    scalars = (inputs.counts[0] + inputs.counts[1], len(inputs.dtypes) - inputs.counts[5] - 1)
    made = {row: gpu.scalar(int(inputs.owners[row][0]), inputs.dtypes[row], device)
            for row in scalars if isinstance(tensors[row], (int, float)) and inputs.unusual[row] is None}
    return module, device, "", arrays.with_tensors(inputs, made) if made else inputs


def _engine(order: Any, engine: Any) -> Any:
    """The module of the engine asked for, after the order and it were checked."""
    contract.check_order(order)
    name = DEFAULT if engine is None else engine
    chosen = ENGINES.get(name) if isinstance(name, str) else None
    if chosen is None or chosen.unavailable() is not None:
        contract.check_engine(name, engines())
    return chosen


@functools.lru_cache(maxsize=256)
def _kernel(order: str, dtype: str, sch_mode: int, attributes: contract.Attributes) -> Kernel:
    return Kernel(order, dtype, tiling.select(sch_mode, attributes))
