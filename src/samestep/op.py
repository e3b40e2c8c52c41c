"""The operator: check everything, choose the kernel, run it once (rules O, K)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from samestep import arrays, contract, tiling
from samestep.contract import DTYPES, Inputs
from samestep.engines import DEFAULT, ENGINES, engines
from samestep.engines.batch import Batch, Kernel


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
            with DLPack, also mixed. The first, accum and stat are written and share memory with nothing else.
        learning_rate, momentum: one-element tensors of the same dtype, any rank; or Python numbers, which are rounded
            to that dtype, to nearest even (in bfloat16, 0.9 is 0.8984375).
        dampening, weight_decay: numbers, rounded to float32 before anything else; weight_decay >= 0.
        nesterov: look ahead along accum; excludes dampening.
        order: ``"spec"`` or ``"ascend950"``, the evaluation order; the two differ in rounding only.
        engine: None for ``"cpu"``, or a name from `samestep.engines()`.

    Raises `ContractError` with a code of rule O12; nothing has been written then (rule O11). torch tensors may require
    gradients; the version counter of each written one goes up, so autograd notices the change.
    """
    columns = ([parameters], [gradient], [learning_rate], [accum], [momentum], [stat])
    _update(columns, False, dampening, weight_decay, nesterov, order, engine)
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
    lists = {"parameters": parameters, "gradient": gradient, "accum": accum, "stat": stat}
    columns = [contract.check_sequence(name, value) for name, value in lists.items()]
    columns = [*columns[:2], [learning_rate], columns[2], [momentum], columns[3]]
    _update(columns, True, dampening, weight_decay, nesterov, order, engine)
    return parameters


def _update(
    columns: Sequence[Sequence[Any]], batch: bool, dampening: Any, weight_decay: Any, nesterov: Any, order: Any,
    engine: Any,
) -> None:
    contract.check_order(order)
    name = DEFAULT if engine is None else engine
    if name != DEFAULT or ENGINES[name].unavailable() is not None:
        contract.check_engine(name, engines())
    inputs = arrays.read(columns, batch=batch)
    contract.check_inputs(inputs)
    attributes = contract.check_attributes(dampening, weight_decay, nesterov)
    n = inputs.counts[0]
    lengths = [math.prod(shape) for shape in inputs.shapes[:n]]
    size = DTYPES[inputs.dtypes[0]]
    contract.check_memory(inputs, _spans(inputs, [length * size for length in lengths], size))
    if n:
        run = ENGINES[name]
        split = run.plan(sum(lengths), inputs.dtypes[0], attributes.dampening != 0)
        kernel = Kernel(order, inputs.dtypes[0], tiling.select(split.sch_mode, attributes))
        at = inputs.addresses
        run.run(Batch(kernel, at[:n], at[n:2 * n], at[2 * n + 1:3 * n + 1], at[3 * n + 2:], lengths, at[2 * n],
                      at[3 * n + 1], attributes.dampening, attributes.weight_decay, split))
        arrays.mark_written(x for k in (0, 3, 5) for x in columns[k])


def _spans(inputs: Inputs, sizes: list[int], scalar: int) -> list[tuple[int, int, int]]:
    """First byte, one past the last byte, and row of every tensor."""
    sizes = [*sizes, *sizes, scalar, *sizes, scalar, *sizes]
    return [(at, at + size, row) for row, (at, size) in enumerate(zip(inputs.addresses, sizes, strict=True))]
