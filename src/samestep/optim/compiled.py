"""The step inside `torch.compile`: one opaque operator for all groups, which reads the hyperparameters when it runs.

What a graph is given as a number it is compiled for, or once more for, so the operator gets tensors and the optimizer's
number only. What it writes is declared; state that does not exist yet it makes, as the eager step does.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._dynamo.comptime import comptime

from samestep.optim import checkpoint, hyperparameters, plan, run, sharded
from samestep.optim.plan import Plan
from samestep.optim.seen import Seen

_LIBRARY = torch.library.Library("samestep", "FRAGMENT")
_LIBRARY.define(
    "optimizer_step_(Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] state, str optimizer, int[] groups, "
    "int[] positions, int[] owners, bool grad_mode) -> ()"
)
_STATE = tuple(itertools.chain.from_iterable(checkpoint.STATE.values()))
_READ_AT_RUN_TIME = ("param_groups", "state", "defaults", "grad_scale", "found_inf")
_optimizers: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def step(optimizer: Any) -> None:
    """The update of `SGD.step`, as traced by torch.compile; same bits and state (rule T, rules O), same errors.

    One operator in one graph, compiled again when other parameters have gradients or state, never for another
    hyperparameter. Scaled gradients, sparse and sharded tensors and `differentiable` are left to the eager step, by a
    break of the graph.
    """
    if not torch.compiler.is_dynamo_compiling():  # dynamo has given up on this function
        _eagerly(optimizer)
        return
    comptime(_prepare)
    groups, state = optimizer.__dict__["param_groups"], optimizer.__dict__["state"]
    parameters, gradients, places, positions = [], [], [], []
    opaque = not optimizer.defaults["differentiable"]
    opaque = opaque and getattr(optimizer, "grad_scale", None) is None and getattr(optimizer, "found_inf", None) is None
    for index, group in enumerate(groups):
        for position, p in enumerate(group["params"]):
            if p.grad is not None:
                opaque = opaque and type(p) in sharded.PLAIN and p.grad.layout is torch.strided
                parameters.append(p)
                gradients.append(p.grad)
                places.append(index)
                positions.append(position)
    if not opaque:
        _eagerly(optimizer)
        return
    # The state is looked at last: a tensor that dynamo meets as a key first is guarded by identity, and so is its grad.
    tensors, owners = [], []
    for index, p in enumerate(parameters):
        if p in state:
            values = state[p]
            for key in _STATE:
                if values.get(key) is not None:
                    tensors.append(values[key])
                    owners.append(index)
    if parameters:
        grad_mode = torch.is_grad_enabled()
        with torch.no_grad():
            torch.ops.samestep.optimizer_step_(
                parameters, gradients, tensors, optimizer._number, places, positions, owners, grad_mode)


def _prepare(context: Any) -> None:
    """While tracing: number the optimizer, and break the graph if it would come to what it changes before it does.

    Dynamo applies changes of Python objects after the graph they were traced in, the operator reads them inside.
    The number is a string because dynamo makes integers that differ between two calls dynamic.
    """
    optimizer: Any = context.get_local("optimizer")._i_will_not_complain_if_bc_breaks_VariableTracker().value
    if "_number" not in optimizer.__dict__:
        optimizer._number = str(next(_numbers))
    _optimizers[optimizer._number] = optimizer
    effects = context._i_will_not_complain_if_bc_breaks_InstructionTranslator().output.side_effects
    read = [optimizer.param_groups, optimizer.state, *optimizer.param_groups, *optimizer.state.values()]
    read += [group["params"] for group in optimizer.param_groups]
    changed = any(id(x) in effects.id_to_variable and effects.is_modified(effects.id_to_variable[id(x)]) for x in read)
    own = effects.store_attr_mutations.get(effects.id_to_variable.get(id(optimizer)), ())
    scalars = [group[key] for group in optimizer.param_groups for key in ("lr", "weight_decay")]
    changed |= any(id(x) in effects.id_to_variable for x in scalars if isinstance(x, Tensor))
    if changed or any(name in own for name in _READ_AT_RUN_TIME):
        context.graph_break("the optimizer is changed before its step")


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch is not followed by the type checker
def _eagerly(optimizer: Any) -> None:
    optimizer._step()


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _optimizer_step(
    parameters: list[Tensor], gradients: list[Tensor], state: list[Tensor], optimizer: str, groups: list[int],
    positions: list[int], owners: list[int], grad_mode: bool,
) -> None:
    """Update `parameters`, which belong to `groups` at `positions`, and the tensors of `state` of their `owners`.

    The tensors may be copies that the graph made of the optimizer's own: it writes them back itself.
    """
    try:
        _update(parameters, gradients, state, optimizer, groups, positions, owners)
    except BaseException:
        torch.set_grad_enabled(grad_mode)  # a graph that is run as it is would leave it off
        raise


def _update(
    parameters: list[Tensor], gradients: list[Tensor], state: list[Tensor], optimizer: str, groups: list[int],
    positions: list[int], owners: list[int],
) -> None:
    this = _optimizers.get(optimizer)
    if this is None:
        raise RuntimeError("the optimizer of this compiled step no longer exists")
    if _are_own(this, parameters, gradients, state):
        this._step()  # remembers what it found out about these tensors
        return
    given: list[list[Tensor]] = [[] for _ in parameters]
    for owner, tensor in zip(owners, state, strict=True):
        given[owner].append(tensor)
    members: dict[int, list[int]] = {group: [] for group in range(len(this.param_groups))}
    for index, group in enumerate(groups):
        members[group].append(index)
    plans = {
        group: _plan(this, group, [parameters[i] for i in indices], [gradients[i] for i in indices],
                     [given[i] for i in indices], [positions[i] for i in indices])
        for group, indices in members.items()
    }
    run.run(list(plans.values()))
    for group, item in plans.items():
        _store(this, group, item, [positions[i] for i in members[group]], [given[i] for i in members[group]])


def _are_own(optimizer: Any, parameters: list[Tensor], gradients: list[Tensor], state: list[Tensor]) -> bool:
    """Are these all the tensors that the eager step would take, and no copies?"""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in params]
    with_grad = [(p, g) for p, g in zip(params, grads, strict=True) if g is not None]
    values = [optimizer.state.get(p, {}) for p, _ in with_grad]
    stored = [value[key] for value in values for key in _STATE if value.get(key) is not None]
    return (
        len(with_grad) == len(parameters) and len(stored) == len(state)
        and all(p is q and g is h for (p, g), q, h in zip(with_grad, parameters, gradients, strict=True))
        and all(map(operator.is_, stored, state))
    )


def _plan(
    optimizer: Any, index: int, parameters: list[Tensor], gradients: list[Tensor], given: list[list[Tensor]],
    positions: list[int],
) -> Plan:
    group = optimizer.param_groups[index]
    settings = hyperparameters.settings(group)
    own = {id(p): group["params"][k] for p, k in zip(parameters, positions, strict=True)}
    seen = optimizer._seen.get(index)

    def name(k: int) -> str:
        return checkpoint.name_of(group, index, positions[k])

    def was(parameter: Tensor) -> torch.dtype | None:
        return None if seen is None else cast("torch.dtype | None", seen.dtype_of(own[id(parameter)]))

    keys = checkpoint.STATE[settings.dialect]
    columns = [[_state(optimizer.state.get(own[id(p)], {}), key, tensors)
                for p, tensors in zip(parameters, given, strict=True)] for key in keys]
    stats = columns[1] if len(columns) > 1 else [None] * len(parameters)
    return plan.make(settings, parameters, gradients, columns[0], stats, name, was)


def _state(stored: Mapping[str, Any], key: str, given: Sequence[Tensor]) -> Tensor | None:
    """The tensor the graph has for this piece of state, or one that an earlier operator of the same graph has made."""
    keys = [name for name in _STATE if stored.get(name) is not None]
    if given and key in keys:
        return given[keys.index(key)]
    return stored.get(key)


def _store(optimizer: Any, index: int, item: Plan, positions: list[int], given: list[list[Tensor]]) -> None:
    params = optimizer.param_groups[index]["params"]
    own = [params[k] for k in positions]
    columns = [item.buffers] if item.stats is None else [item.buffers, item.stats]
    for key, column in zip(checkpoint.STATE[item.settings.dialect], columns, strict=True):
        for p, tensor, tensors in zip(own, column, given, strict=True):
            if tensor is not None and not any(tensor is x for x in tensors):
                optimizer.state[p][key] = tensor
    optimizer._seen[index] = Seen(item._replace(parameters=own), params, None, optimizer.state)


def _nothing(*arguments: Any) -> None:
    """What the operator returns; all a graph's compiler has to know."""


_LIBRARY.impl("optimizer_step_", _optimizer_step, "CompositeExplicitAutograd")
_register_fake: Callable[..., Any] = torch.library.register_fake
_register_fake("samestep::optimizer_step_", _nothing, lib=_LIBRARY)
