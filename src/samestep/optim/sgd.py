"""`SGD`: what torch.optim.SGD is, with bits that do not depend on how they are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as optimizer_module

from samestep.optim import amp, checkpoint, cpu_path, differentiable, hyperparameters, plan, run
from samestep.optim.hyperparameters import Settings
from samestep.optim.plan import Plan
from samestep.optim.seen import Seen
from samestep.optim.work import Work

_is_compiling, _is_profiling = torch.compiler.is_dynamo_compiling, torch.autograd._profiler_enabled
_global_pre_hooks = optimizer_module._global_optimizer_pre_hooks
_global_post_hooks = optimizer_module._global_optimizer_post_hooks


class SGD(torch.optim.Optimizer):  # type: ignore[misc]  # torch is not followed by the type checker
    """Stochastic gradient descent with momentum: `torch.optim.SGD`, bit for bit, with one line changed.

    For every element (rule T; every fma is rounded once)::

        g = -grad if maximize else grad
        g = fma(weight_decay, p, g)                  if weight_decay != 0
        b = g on the parameter's first momentum step, else fma(1 - dampening, g, momentum*b)
        u = fma(momentum, b, g) if nesterov else b;  u = g without momentum
        p = fma(-lr, u, p)

    float32 and float64 results equal torch.optim.SGD(foreach=False), at every index, for any layout and thread count.
    bfloat16 and float16 are computed in float32, with float32 hyperparameters, and rounded once where stored.

    Arguments:
        params: parameters, named parameters, or dicts of parameter groups (which are copied).
        lr: a number >= 0 or a tensor with one element.
        momentum, dampening, weight_decay: numbers, momentum and weight_decay >= 0; weight_decay may be a tensor.
        nesterov: look ahead along the momentum; needs momentum > 0 and dampening == 0.
        maximize: go up instead of down.
        foreach, fused: accepted as by torch; they choose nothing.
        differentiable: make the step part of autograd's graph.
        dialect: ``"torch"``, or ``"cann"`` for the operator's rules O: state ``accum`` and ``stat`` instead of
            ``momentum_buffer``, lr and momentum rounded to the parameter's dtype; float32, float16 and bfloat16.
        order: ``"spec"`` or ``"ascend950"``, the evaluation order of dialect cann.

    Parameters are real or complex floating tensors of any layout, on any device, or DTensors. Gradients may be strided
    in any way, expanded, sparse, or of another floating dtype than their parameter; they are only read (except that a
    step with gradient scaling leaves them unscaled). Momentum buffers are made at a parameter's first momentum step.

    Raises at construction and in `add_param_group` what torch raises, also for NaN, for a parameter that comes twice
    and for the hyperparameters of every single group; in dialect cann `ContractError` (rules O4, O12).
    """

    _step_supports_amp_scaling = True  # of the class, so that copies and unpickled optimizers have it

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float | Tensor = 0, nesterov: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None, dialect: str = "torch",
        order: str = "spec",
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov,
            "maximize": maximize, "foreach": foreach, "differentiable": differentiable, "fused": fused,
            "dialect": dialect, "order": order,
        }
        hyperparameters.check(defaults)
        self._seen: dict[int, Seen] = {}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with hyperparameters of its own; the dict is copied.

        Raises as the constructor does: TypeError and ValueError as torch, also for duplicates and for hyperparameters;
        the groups are as before then.
        """
        if isinstance(param_group, dict):
            param_group = dict(param_group)
            params = param_group["params"]
            if not isinstance(params, (Tensor, set)):
                param_group["params"] = params = list(params)
                tensors = [id(param[1] if isinstance(param, tuple) else param) for param in params]
                if len(set(tensors)) != len(tensors):
                    raise ValueError("optimizer contains a parameter group with duplicate parameters")
            merged = {**self.defaults, **param_group}
            hyperparameters.check(merged)
            hyperparameters.check_flags(merged)
        super().add_param_group(param_group)
        hyperparameters.leave_out_usual(self.param_groups[-1])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._seen = {}
        checkpoint.unpack(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state saved by this class or by `torch.optim.SGD`.

        Tensors are copied, to the parameter's device; their dtype becomes the parameter's unless it is wider. A None
        in place of a momentum buffer stands for a first step. Raises ValueError, naming the parameter, for state of
        another shape or dialect; nothing is loaded then.
        """
        with checkpoint.loading(self):
            super().load_state_dict(state_dict)

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `step` as torch does, but open a profiler's record only where a profiler runs: it costs 10 us."""
        wrapped = torch.optim.Optimizer.profile_hook_step(func)

        @functools.wraps(func)
        def step(self: SGD, *args: Any, **kwargs: Any) -> Any:
            if (_is_compiling()  # asked first: dynamo does not trace what comes after
                    or self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
                    or _global_pre_hooks or _global_post_hooks or _is_profiling()):
                return wrapped(self, *args, **kwargs)
            return func(self, *args, **kwargs)

        return step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; return what `closure` returns, if one is given.

        Raises RuntimeError for tensors that do not fit and ValueError for NaN hyperparameters, before anything is
        written: then parameters, state and gradients of all groups are as before.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if _is_compiling():
            from samestep.optim import compiled  # loads dynamo, which takes a second

            compiled.step(self)
        else:
            self._step()
        return loss

    def _step(self) -> None:
        groups, own = self.param_groups, self.__dict__
        # A GradScaler gives an optimizer these attributes for a step.
        if len(groups) == 1 and self._seen and "found_inf" not in own and "grad_scale" not in own:
            last = self._seen[0]
            if last.quickly(groups[0], self.state):  # all of it in one compiled call
                cpu_path.mark(last.written)
                return
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and not found_inf.is_cuda:
            if amp.is_skipped(found_inf):
                return
            found_inf = None
        grad_scale = getattr(self, "grad_scale", None)
        known: dict[int, Work] = {}
        settings = []
        for index, group in enumerate(self.param_groups):
            settings.append(hyperparameters.settings(group))
            seen = self._seen.get(index)
            work = seen.again(settings[index], group, self.state) if seen is not None else None
            if work is not None:
                known[index] = work
        all_known = len(known) == len(settings)
        if found_inf is not None and not (all_known and amp.can_skip_on_device(list(known.values()))):
            if amp.is_skipped(found_inf):
                return
            found_inf = None
        if all_known and grad_scale is None:
            run.step(list(known.values()), found_inf)  # no tensor operation: autograd need not be told to look away
            if len(known) == 1:
                self._seen[0].make_quick(known[0], self.param_groups[0])
            return
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            self._update(settings, known, grad_scale, found_inf)

    def _update(
        self, settings: Sequence[Settings], known: dict[int, Work], grad_scale: Tensor | None, found_inf: Tensor | None,
    ) -> None:
        plans = {index: self._plan(index, group, settings[index])
                 for index, group in enumerate(self.param_groups) if index not in known}
        if self.defaults["differentiable"]:
            self._update_differentiably(plans, grad_scale)
            return
        works = run.run(list(plans.values()), grad_scale, list(known.values()), found_inf)
        for (index, item), work in zip(plans.items(), works, strict=True):
            self._store(item)
            self._seen[index] = Seen(item, self.param_groups[index]["params"], work, self.state)

    def _update_differentiably(self, plans: dict[int, Plan], grad_scale: Tensor | None) -> None:
        if grad_scale is not None:
            done: amp.Done = {}
            plans = {index: item._replace(gradients=amp.unscale(item.parameters, item.gradients, grad_scale, done))
                     for index, item in plans.items()}
        factors = [(self.param_groups[index]["lr"], self.param_groups[index]["weight_decay"]) for index in plans]
        states = differentiable.step(list(plans.values()), factors)
        for (index, item), (buffers, stats) in zip(plans.items(), states, strict=True):
            self._store(item._replace(buffers=buffers, stats=stats))
            self._seen[index] = Seen(item, self.param_groups[index]["params"], None, self.state)

    def _plan(self, group_index: int, group: dict[str, Any], settings: Settings) -> Plan:
        positions = [index for index, p in enumerate(group["params"]) if p.grad is not None]
        parameters = [group["params"][index] for index in positions]
        states = [self.state.get(p, {}) for p in parameters]
        key = checkpoint.STATE[settings.dialect][0]
        seen = self._seen.get(group_index)

        def name(index: int) -> str:
            return checkpoint.name_of(group, group_index, positions[index])

        def was(parameter: Tensor) -> torch.dtype | None:
            return None if seen is None else seen.dtype_of(parameter)

        return plan.make(settings, parameters, [p.grad for p in parameters], [s.get(key) for s in states],
                         [s.get("stat") for s in states], name, was)

    def _store(self, item: Plan) -> None:
        if item.stats is not None:
            for p, accum, stat in zip(item.parameters, item.buffers, item.stats, strict=True):
                self.state[p].update(accum=accum, stat=stat)
        elif item.settings.momentum != 0:
            for p, buffer in zip(item.parameters, item.buffers, strict=True):
                self.state[p]["momentum_buffer"] = buffer
