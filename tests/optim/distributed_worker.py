"""One process of a group: `python distributed_worker.py FOLDER RANK WORLD_SIZE SCENARIO...`; see test_distributed.py.

Prints a line of JSON, [scenario, findings], for each scenario that it got through; all is well if there are none.
All gradients of `Heads` are exact whatever the order of their sums, so that what several processes compute must have
the bits of one process alone. `Network` is an ordinary one: there two optimizers in the same setting are compared.
"""

from __future__ import annotations

import copy
import datetime
import functools
import io
import itertools
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import samestep.optim

STEPS, SAVED_AFTER = 5, 3
ROWS, INPUTS = 8, 6
OURS, TORCH = samestep.optim.SGD, torch.optim.SGD
HYPERPARAMETERS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}


class Heads(nn.Module):
    """Linear in every weight: the gradients are sums of 8 small multiples of 1/4."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wide = nn.Linear(INPUTS, 37)
        self.narrow = nn.Linear(INPUTS, 1)
        self.table = nn.Parameter(torch.randn(5, 3))

    def forward(self, x, factors):
        heads = self.wide(x), self.narrow(x), self.table.expand(len(x), 5, 3)
        return sum((head * factor).sum() for head, factor in zip(heads, factors, strict=True))


class Network(nn.Module):
    """Gradients that depend on the weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.wide = nn.Linear(INPUTS, 36)  # even: torch's tensor parallelism wants it between two layers
        self.narrow = nn.Linear(36, 1)
        self.table = nn.Parameter(torch.randn(5, 3))

    def forward(self, x, factors):
        out = self.narrow(torch.tanh(self.wide(x)))
        return (out * out).sum() + (self.table.exp() * factors[2]).sum()


def batch(step, rank, size):
    """The rows of one process."""
    draw = torch.Generator().manual_seed(step)
    shapes = (INPUTS,), (37,), (1,), (5, 3)
    x, *factors = (torch.randint(-7, 8, (ROWS, *shape), generator=draw) / 4 for shape in shapes)
    return (x * 4)[rank::size], [factor[rank::size] for factor in factors]


def train(model, optimizer, steps, rank=0, size=1):
    """Processes average their gradients: those of one alone are the sum."""
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + step)
        optimizer.zero_grad()
        (model(*batch(step, rank, size)) * size).backward()
        optimizer.step()


@functools.cache
def alone():
    model = Heads()
    optimizer = TORCH(model.parameters(), **HYPERPARAMETERS, foreach=False)
    train(model, optimizer, range(STEPS))
    return named(model, optimizer)


def named(model, optimizer, key="momentum_buffer"):
    """Weights and state by name."""
    found = {name: p.detach() for name, p in model.named_parameters()}
    found |= {f"{key} of {name}": optimizer.state[p][key] for name, p in model.named_parameters()}
    return {name.replace("module.", ""): value for name, value in found.items()}


def differing(what, got, wanted):
    """Findings."""
    if got.keys() != wanted.keys():
        return [f"{what}: {sorted(got)} instead of {sorted(wanted)}"]
    found = []
    for name, value in got.items():
        if value.dtype != torch.float32 or value.shape != wanted[name].shape:
            found.append(f"{what}: {name} is {value.dtype} {tuple(value.shape)}")
            continue
        count = int((value.contiguous().view(torch.int32) != wanted[name].contiguous().view(torch.int32)).sum())
        if count:
            found.append(f"{what}: {count} of {value.numel()} elements of {name} differ")
    return found


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def keys(saved):
    if "param_groups" not in saved:
        return sorted(saved)
    return sorted(saved), [sorted(state) for state in saved["state"].values()], [*map(sorted, saved["param_groups"])]


class Replicated:
    """Every process has all weights; each has its own rows."""

    own_rows = True

    def build(self, network, optimizer):
        model = DistributedDataParallel(network(), gradient_as_bucket_view=network is Heads)
        return model, self.optimizer(optimizer, model)

    def optimizer(self, kind, model):
        return kind(model.parameters(), **HYPERPARAMETERS)

    def values(self, model, optimizer):
        return named(model, optimizer)

    def findings(self, model, optimizer):
        return []

    def keys(self, model, optimizer):
        return keys(optimizer.state_dict())

    def save(self, model, optimizer):
        return through_a_file((model.state_dict(), optimizer.state_dict()))

    def load(self, model, optimizer, saved):
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])


class ZeroRedundancy(Replicated):
    """The optimizer's state is divided, tensor by tensor."""

    def __init__(self, views, groups):
        self.views, self.groups = views, groups

    def optimizer(self, kind, model):
        params = list(model.parameters())
        if self.groups:
            params = [{"params": params[:2]}, {"params": params[2:], "maximize": False}]
        return ZeroRedundancyOptimizer(params, kind, parameters_as_bucket_view=self.views, **HYPERPARAMETERS)

    def keys(self, model, optimizer):
        return keys(self.save(model, optimizer)[1])

    def values(self, model, optimizer):
        state = self.save(model, optimizer)[1]["state"]
        index = {id(p): k for k, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
        found = {name: p.detach() for name, p in model.module.named_parameters()}
        return found | {f"momentum_buffer of {name}": state[index[id(p)]]["momentum_buffer"]
                        for name, p in model.module.named_parameters()}

    def save(self, model, optimizer):
        for rank in range(dist.get_world_size()):
            optimizer.consolidate_state_dict(to=rank)  # on one process, at the cost of what others have
            if rank == dist.get_rank():
                saved = super().save(model, optimizer)
        return saved


class Flat(Replicated):
    """FullyShardedDataParallel: weights are parts of flat tensors."""

    def __init__(self, original):
        self.original = original

    def build(self, network, optimizer):
        inner = network()
        make = functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=self.original)
        inner.wide = make(inner.wide)
        model = make(inner)
        FullyShardedDataParallel.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
        return model, self.optimizer(optimizer, model)

    def values(self, model, optimizer):
        weights, saved = self.save(model, optimizer)
        return weights | {f"{key} of {name}": value for name, state in saved["state"].items()
                          for key, value in state.items()}

    def keys(self, model, optimizer):
        return super().keys(model, optimizer), keys(FullyShardedDataParallel.optim_state_dict(model, optimizer))

    def save(self, model, optimizer):
        saved = FullyShardedDataParallel.optim_state_dict(model, optimizer)
        return through_a_file(({name: value.clone() for name, value in model.state_dict().items()}, saved))

    def load(self, model, optimizer, saved):
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, saved[1]))


class Sharded(Replicated):
    """Weights are DTensors. Checkpoints are distributed, plain, whole ("full") or have one key a value ("flat")."""

    def __init__(self, folder, distribute, own_rows, kind):
        self.folder, self.distribute, self.own_rows, self.kind = folder, distribute, own_rows, kind
        self.options = StateDictOptions(full_state_dict=kind == "full", flatten_optimizer_state_dict=kind == "flat")
        self.count = itertools.count()

    def build(self, network, optimizer):
        model = self.distribute(network())
        return model, self.optimizer(optimizer, model)

    def values(self, model, optimizer):
        return {name: value.full_tensor() if isinstance(value, DTensor) else value
                for name, value in named(model, optimizer).items()}

    def findings(self, model, optimizer):
        found = []
        for name, p in model.named_parameters():
            buffer = optimizer.state[p]["momentum_buffer"]
            if isinstance(p, DTensor) and not (isinstance(buffer, DTensor) and buffer.placements == p.placements
                                               and buffer.to_local().shape == p.to_local().shape):
                found.append(f"the momentum of {name} does not lie as the weight does")
        return found

    def keys(self, model, optimizer):
        return super().keys(model, optimizer), keys(get_optimizer_state_dict(model, optimizer, options=self.options))

    def state(self, model, optimizer):
        return {"model": get_model_state_dict(model, options=StateDictOptions(full_state_dict=self.kind == "full")),
                "optim": get_optimizer_state_dict(model, optimizer, options=self.options)}

    def save(self, model, optimizer):
        if self.kind == "plain":
            file = io.BytesIO()
            torch.save((model.state_dict(), optimizer.state_dict()), file)
            file.seek(0)
            return torch.load(file, weights_only=False)  # a DeviceMesh is not among the safe classes of every torch
        if self.kind == "full":
            return through_a_file(self.state(model, optimizer))
        at = self.folder / f"{self.kind}-{dist.get_world_size()}-{next(self.count)}"
        dcp.save(self.state(model, optimizer), checkpoint_id=at)
        return at

    def load(self, model, optimizer, saved):
        if self.kind == "plain":
            super().load(model, optimizer, saved)
            return
        if self.kind != "full":
            at, saved = saved, self.state(model, optimizer)
            dcp.load(saved, checkpoint_id=at)
        whole = StateDictOptions(full_state_dict=self.kind == "full")
        set_model_state_dict(model, saved["model"], options=whole)
        set_optimizer_state_dict(model, optimizer, saved["optim"], options=self.options)


def compare(setting):
    """Both optimizers in one setting, uninterrupted and with one's checkpoint loaded into the other."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if setting.own_rows else (0, 1)
    found = []
    for network in (Heads, Network):
        results, checkpoints, keys = {}, {}, {}
        for kind in (TORCH, OURS):
            model, optimizer = setting.build(network, kind)
            train(model, optimizer, range(SAVED_AFTER), rank, size)
            checkpoints[kind] = setting.save(model, optimizer)
            keys[kind] = setting.keys(model, optimizer)
            train(model, optimizer, range(SAVED_AFTER, STEPS), rank, size)
            found += setting.findings(model, optimizer)
            results[kind] = setting.values(model, optimizer)
        found += differing(f"{network.__name__}, against torch", results[OURS], results[TORCH])
        if network is Heads:
            found += differing("Heads, against one process", results[OURS], alone())
        if keys[OURS] != keys[TORCH]:
            found.append(f"{network.__name__}: keys {keys[OURS]} instead of {keys[TORCH]}")
        for source, target in ((TORCH, OURS), (OURS, TORCH), (OURS, OURS)) if network is Heads else ():
            model, optimizer = setting.build(network, target)
            setting.load(model, optimizer, copy.deepcopy(checkpoints[source]))  # torch's loading shares its tensors
            train(model, optimizer, range(SAVED_AFTER, STEPS), rank, size)
            found += setting.findings(model, optimizer)
            what = f"{network.__name__}, from {source.__module__} to {target.__module__}"
            found += differing(what, setting.values(model, optimizer), results[TORCH])
    return found


def ddp(folder):
    return compare(Replicated())


def zero(folder):
    return compare(ZeroRedundancy(views=False, groups=True)) + compare(ZeroRedundancy(views=True, groups=False))


def fsdp1_flat_params(folder):
    return compare(Flat(original=False))


def fsdp1_original_params(folder):
    return compare(Flat(original=True))


def mesh(*shape):
    return init_device_mesh("cpu", shape or (dist.get_world_size(),),
                            mesh_dim_names=("data", "tensor")[:len(shape)] if shape else None)


def shard_fully(model, over=None):
    over = mesh() if over is None else over
    fully_shard(model.wide, mesh=over)
    return fully_shard(model, mesh=over)


def shard_tensors(model, over=None):
    """The table stays an ordinary tensor: one optimizer gets both kinds."""
    whole = isinstance(model, Heads)
    plan = {"wide": ColwiseParallel(output_layouts=Replicate() if whole else None),
            "narrow": RowwiseParallel(input_layouts=Replicate() if whole else None)}
    return parallelize_module(model, mesh() if over is None else over, plan)


def shard_both(model):
    over = mesh(1, dist.get_world_size())
    return shard_fully(shard_tensors(model, over["tensor"]), over["data"])


def fsdp2_distributed_checkpoint(folder):
    return compare(Sharded(folder, shard_fully, True, "dcp"))


def fsdp2_flattened_checkpoint(folder):
    return compare(Sharded(folder, shard_fully, True, "flat"))


def fsdp2_full_checkpoint(folder):
    return compare(Sharded(folder, shard_fully, True, "full"))


def fsdp2_plain_checkpoint(folder):
    return compare(Sharded(folder, shard_fully, True, "plain"))


def tensor_parallel(folder):
    return compare(Sharded(folder / "tensor", shard_tensors, False, "dcp"))


def tensor_parallel_and_fsdp2(folder):
    return compare(Sharded(folder / "both", shard_both, False, "dcp"))


def save_for_another_number(folder):
    rank, size = dist.get_rank(), dist.get_world_size()
    for kind in (TORCH, OURS):
        setting = Sharded(folder, shard_fully, True, f"{kind.__module__}-of")
        model, optimizer = setting.build(Heads, kind)
        train(model, optimizer, range(SAVED_AFTER), rank, size)
        setting.save(model, optimizer)
    return []


def resume_from_another_number(folder):
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for source, target in ((TORCH, OURS), (OURS, TORCH), (OURS, OURS)):
        setting = Sharded(folder, shard_fully, True, "dcp")
        model, optimizer = setting.build(Heads, target)
        setting.load(model, optimizer, folder / f"{source.__module__}-of-{3 - size}-0")
        train(model, optimizer, range(SAVED_AFTER, STEPS), rank, size)
        what = f"from {source.__module__} to {target.__module__}"
        found += differing(what, setting.values(model, optimizer), alone())
    return found


def placements_that_differ(folder):
    """Gradients and state may lie otherwise than their parameter; sums that are pending are exact here."""
    draw = torch.Generator().manual_seed(0)
    shape, over = (5, 6), mesh()
    start = torch.randn(shape, generator=draw)
    gradients = [torch.randint(-7, 8, shape, generator=draw) / 4 for _ in range(STEPS)]
    plain = nn.Parameter(start.clone())
    reference = TORCH([plain], **HYPERPARAMETERS, foreach=False)
    for gradient in gradients:
        plain.grad = gradient.clone()
        reference.step()
    wanted = {"p": plain.detach(), "momentum": reference.state[plain]["momentum_buffer"]}
    found = []
    placements = Shard(0), Shard(1), Replicate()
    for at, of_gradient in itertools.product(placements, (*placements, Partial())):
        p = nn.Parameter(distribute_tensor(start.clone(), over, [at]))
        optimizer = OURS([p], **HYPERPARAMETERS)
        for gradient in gradients:
            if isinstance(of_gradient, Partial):
                part = gradient * (1.5 if dist.get_rank() == 0 else -0.5) if dist.get_world_size() == 2 else gradient
                p.grad = DTensor.from_local(part.clone(), over, [of_gradient])
            else:
                p.grad = distribute_tensor(gradient.clone(), over, [of_gradient])
            if optimizer.state[p] and not isinstance(of_gradient, Partial):  # as another sharding's checkpoint gives it
                state = optimizer.state[p]
                state["momentum_buffer"] = state["momentum_buffer"].redistribute(over, [of_gradient])
            given, version = p.grad, p._version
            optimizer.step()
            if p._version <= version or p.grad is not given or given.placements != (of_gradient,):
                found.append(f"{at}, {of_gradient}: the version is not raised, or the gradient is replaced")
        buffer = optimizer.state[p]["momentum_buffer"]
        if not isinstance(buffer, DTensor) or buffer.placements != p.placements:
            found.append(f"{at}: the momentum is {type(buffer)}")
        got = {"p": p.detach().full_tensor(), "momentum": buffer.full_tensor()}
        found += differing(f"{at}, {of_gradient}", got, wanted)
    return found


def functional(folder):
    """`sgd` on DTensors, as `SGD` on tensors."""
    model, optimizer = shard_tensors(Heads()), None
    params, buffers = list(model.parameters()), [None] * 5
    arguments = {key: value for key, value in HYPERPARAMETERS.items() if key != "lr"}
    for step in range(STEPS):
        model.zero_grad()
        model(*batch(step, 0, 1)).backward()
        with torch.no_grad():
            samestep.optim.sgd(params, [p.grad for p in params], buffers, lr=0.1 / (1 + step), dampening=0,
                               maximize=False, **arguments)
    optimizer = OURS(params, **HYPERPARAMETERS)
    for p, buffer in zip(params, buffers, strict=True):
        optimizer.state[p]["momentum_buffer"] = buffer
    return differing("sgd", Sharded(folder, None, False, "").values(model, optimizer), alone())


def gradient_scaling(folder):
    """An infinity in one process's part skips the step in all, and leaves no trace."""
    results = []
    for kind in (TORCH, OURS):
        model = shard_fully(Heads())
        optimizer = kind(model.parameters(), **HYPERPARAMETERS)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for step in range(STEPS):
            optimizer.zero_grad()
            x, factors = batch(step, dist.get_rank(), dist.get_world_size())
            if step in (0, 3):
                factors[0][0, -1] = torch.inf  # of a row of `wide` that the last process keeps
            scaler.scale(model(x, factors)).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == 0 and any(optimizer.state.values()):
                return [f"{kind.__module__} made state in a skipped step"]
        scale = torch.tensor(scaler.get_scale())
        results.append(Sharded(folder, None, True, "").values(model, optimizer) | {"scale": scale})
    return differing("scaled", results[1], results[0])


def no_communication(folder):
    """Where everything lies as the parameters do, each process works alone."""
    found = []
    for distribute in (shard_fully, shard_tensors):
        model = distribute(Heads())
        optimizer = OURS(model.parameters(), **HYPERPARAMETERS)
        for step in range(2):
            model(*batch(step, 0, 1)).backward()
            with CommDebugMode() as counted:
                optimizer.step()
            if counted.get_total_counts():
                found.append(f"{distribute.__name__}: {dict(counted.get_comm_counts())}")
    return found


def step_between_forward_and_backward(folder):
    """Autograd sees that what it keeps for the backward pass has changed."""
    found = []
    for kind in (TORCH, OURS):
        model = shard_tensors(Network())
        optimizer = kind(model.parameters(), **HYPERPARAMETERS)
        train(model, optimizer, range(1))
        loss = model(*batch(1, 0, 1))
        optimizer.step()
        try:
            loss.backward()
            found.append(f"{kind.__module__} changed weights unseen")
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
    return found


def dialect_cann(folder):
    """Each element is computed where it lies, also by the operator's rules; checkpoints keep the dialect."""
    found = []
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = Heads()
    optimizer = OURS(whole.parameters(), **HYPERPARAMETERS, dialect="cann", order="ascend950")
    train(whole, optimizer, range(STEPS))
    wanted = named(whole, optimizer, "accum") | named(whole, optimizer, "stat")
    for kind in ("dcp", "flat", "full", "plain"):
        setting = Sharded(folder / "cann", shard_fully, True, kind)
        checkpoint = None
        for steps in (range(SAVED_AFTER), range(SAVED_AFTER, STEPS)):
            model = shard_fully(Heads())
            optimizer = OURS(model.parameters(), **HYPERPARAMETERS, dialect="cann", order="ascend950")
            if checkpoint is not None:
                setting.load(model, optimizer, checkpoint)
            train(model, optimizer, steps, rank, size)
            checkpoint = setting.save(model, optimizer)
        got = named(model, optimizer, "accum") | named(model, optimizer, "stat")
        found += differing(kind, {name: value.full_tensor() for name, value in got.items()}, wanted)
        groups = [(group["dialect"], group["order"]) for group in optimizer.param_groups]
        if groups != [("cann", "ascend950")]:
            found.append(f"{kind}: groups of {groups}")
    return found


def parts_of_other_shapes(folder):
    """A DTensor made of parts is not what its placements say; no memory but its own is touched."""
    found, over, size = [], mesh(), dist.get_world_size()
    for wrong in ("gradient", "state"):
        p = nn.Parameter(DTensor.from_local(torch.ones(6, 2), over, [Shard(0)]))
        optimizer = OURS([nn.Parameter(torch.ones(3)), p], **HYPERPARAMETERS)
        few = DTensor.from_local(torch.ones(1, 2), over, [Shard(0)], shape=(6 * size, 2), stride=(2, 1))
        for other in optimizer.param_groups[0]["params"]:
            other.grad = torch.ones_like(other)
        if wrong == "gradient":
            p.grad = few
        else:
            optimizer.state[p]["momentum_buffer"] = few
        try:
            optimizer.step()
            found.append(f"{wrong}: not refused")
        except RuntimeError as error:
            if "part" not in str(error):
                raise
        if not all(bool((x == 1).all()) for x in (p.to_local(), optimizer.param_groups[0]["params"][0])):
            found.append(f"{wrong}: something was written")
    return found


def state_that_does_not_fit(folder):
    """Refused when it is loaded, by name; nothing is loaded then."""
    found = []
    setting = Sharded(folder, shard_tensors, False, "")
    model, optimizer = setting.build(Heads, OURS)
    train(model, optimizer, range(2))
    before = {name: value.clone() for name, value in setting.values(model, optimizer).items()}
    good = optimizer.state_dict()
    momentum = good["state"][1]["momentum_buffer"]
    for wrong in momentum.full_tensor(), distribute_tensor(torch.ones(7, 7), mesh(), [Replicate()]):
        try:
            optimizer.load_state_dict({**good, "state": {**good["state"], 1: {"momentum_buffer": wrong}}})
            found.append(f"{type(wrong)} {tuple(wrong.shape)} was loaded")
        except ValueError as error:
            if "parameter 1 of group 0" not in str(error):
                found.append(f"not named: {error}")
        found += differing("after", setting.values(model, optimizer), before)
    return found


def main():
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    meeting = dist.FileStore(str(folder / f"meeting-{sys.argv[4]}-{size}"), size)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=30))
    for scenario in sys.argv[4:]:
        print(json.dumps([scenario, globals()[scenario](folder)]), flush=True)
    dist.barrier()
    os._exit(0)  # an orderly end may abort: threads of torch's process groups can outlive what joins them



if __name__ == "__main__":
    main()
