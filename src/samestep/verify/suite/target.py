"""What is judged: an engine of this package, or a callable of the user's that a name stands for.

What a target is called with and returns is said in `observation`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from samestep.engine import ENGINES, cache, engines
from samestep.op import sgd_
from samestep.verify.observation import Target

RULES = ("cann", "torch")


class LoadError(ValueError):
    """A target that cannot be had: its text says what was asked for, why it failed and what would work."""


class Subject(NamedTuple):
    """What is judged. `run` is the callable; `identity` changes when its source does, as far as that can be known.

    An `engine` of this package promises refusals with codes; a callable of the user's may promise none.
    """

    name: str
    run: Target
    engine: bool
    identity: str


def of_engine(name: str, rule: str = "cann", order: str = "spec") -> Subject:
    """An engine by name: for rule cann `sgd_` on it, for rule torch `samestep.optim.SGD` in dialect torch.

    Raises `LoadError` for an engine that does not exist, is unavailable here, does not update memory of the host, where
    the suite's tensors are, or does not have the rule.
    """
    known = engines()
    if name not in known:
        raise LoadError(f"engine {name!r} does not exist; the engines are {', '.join(known)}")
    if known[name] is not None:
        raise LoadError(f"engine {name!r} is unavailable here: {known[name]}")
    place = ENGINES[name].device_type()
    if place != "cpu":
        raise LoadError(f"engine {name!r} updates memory of {place} devices, and the suite's tensors are NumPy arrays; "
                        "judge it by bench/device.py, or by a --target that copies to the device and back")
    if rule == "cann":
        run: Target = functools.partial(operator_step, order=order, engine=name)
    elif name == "cpu":
        if importlib.util.find_spec("torch") is None:
            raise LoadError("rule torch runs samestep.optim.SGD, which needs torch: pip install 'samestep[torch]'")
        run = optimizer_step
    else:
        raise LoadError(f"engine {name!r} has no rule torch: samestep.optim.SGD runs on engine cpu; use --engine cpu")
    return Subject(f"engine {name}", run, True, cache.source_hash())


def load(name: str) -> Subject:
    """The callable that ``module:function`` or ``path/to/file.py:function`` names, imported now.

    Modules are also looked for in the current folder, and what a file imports beside itself. Raises `LoadError`.
    """
    place, colon, path = name.rpartition(":")
    if not colon or not place or not path:
        raise LoadError(f"target {name!r}: expected module:function or path/to/file.py:function")
    module = _module(name, place)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            names = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
            raise LoadError(f"target {name!r}: {place} has no {path!r}; it has {', '.join(names) or 'no functions'}")
        found = getattr(found, part)
    if not callable(found):
        raise LoadError(f"target {name!r}: {path!r} is a {type(found).__name__}, not a function")
    return Subject(name, found, False, _identity(module))


def _module(name: str, place: str) -> ModuleType:
    """The module or file `place`, imported; what its import raises becomes a `LoadError`."""
    is_file = place.endswith(".py")
    folder = str(Path(place).resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if is_file and not Path(place).is_file():
        raise LoadError(f"target {name!r}: there is no file {place}")
    try:
        return _import_file(Path(place)) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise LoadError(f"target {name!r}: there is no module {error.name!r} here or among the installed "
                            f"packages") from None
        raise LoadError(f"target {name!r}: importing {place} needs {error.name!r}, which is not installed") from error
    except (Exception, SystemExit) as error:
        raise LoadError(f"target {name!r}: importing {place} raised {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    name = f"target_{path.stem}"  # a file torch.py must not stand for torch
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that what it defines can be pickled, and dataclasses work
    spec.loader.exec_module(module)
    return module


def _identity(module: ModuleType) -> str:
    source = getattr(module, "__file__", None)
    digest = hashlib.sha256(cache.source_hash().encode())
    if source and Path(source).is_file():
        digest.update(Path(source).read_bytes())
    return digest.hexdigest()[:20]


def operator_step(*tensors: Any, **options: Any) -> None:
    """One call of `sgd_`, which writes in place."""
    sgd_(*tensors, **options)


def optimizer_step(
    parameters: Any, gradient: Any, momentum_buffer: Any, *, lr: float, momentum: float, dampening: float,
    weight_decay: float, nesterov: bool, maximize: bool,
) -> tuple[Any, Any]:
    """One step of `samestep.optim.SGD` (rule T) on the NumPy arrays' own memory; return (parameters, buffer or None).

    The optimizer is made with legal hyperparameters and then given these, as a schedule would: what it refuses when a
    group is made, for instance a negative lr, is computed.
    """
    from samestep.optim import SGD

    parameter = _tensor(parameters)
    parameter.grad = _tensor(gradient)
    optimizer = SGD([parameter])
    optimizer.param_groups[0].update(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                                     nesterov=nesterov, maximize=maximize)
    if momentum_buffer is not None:
        optimizer.state[parameter]["momentum_buffer"] = _tensor(momentum_buffer)
    optimizer.step()
    buffer = optimizer.state[parameter].get("momentum_buffer") if parameter in optimizer.state else None
    return parameters, None if buffer is None else _array(buffer, parameters.dtype)


def _tensor(array: Any) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any, dtype: Any) -> Any:
    import torch

    return tensor.view(torch.int16).numpy().view(dtype) if dtype.name == "bfloat16" else tensor.numpy()
