"""One call of the operator with everything that could be wrong with it, and a picture of every byte it could touch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import samestep

TENSORS = ("parameters", "gradient", "accum", "stat")
INPUTS = ("parameters", "gradient", "learning_rate", "accum", "momentum", "stat")


def picture(x: Any) -> Any:
    """All bytes that `x` could be a view of, and its autograd version counter; None for what has no bytes."""
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
        return x.tobytes()
    if type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cpu":
        try:
            storage = x.untyped_storage()
            at = storage.data_ptr()
            return ctypes.string_at(at, storage.nbytes()) if at else b"", x._version
        except (NotImplementedError, RuntimeError):
            return None  # a wrapper: the case itself puts what stands behind it into Call.behind
    return None


class Call:
    """The arguments of `sgd_` (count None) or of `sgd_batch_` with `count` tensor sets; all good until made bad."""

    def __init__(self, count: int | None = None, shape: tuple[int, ...] = (2, 3), dtype: Any = np.float32) -> None:
        rng = np.random.default_rng(2024)
        self.batch = count is not None
        self.columns: dict[str, list[Any]] = {
            name: [rng.standard_normal(shape).astype(dtype) for _ in range(count or 1)] for name in TENSORS
        }
        self.scalars: dict[str, Any] = {"learning_rate": np.full(1, 0.25, dtype), "momentum": np.full(1, 0.5, dtype)}
        self.options: dict[str, Any] = {}
        self.behind: list[Any] = []

    def __getitem__(self, name: str) -> Any:
        return self.scalars[name] if name in self.scalars else self.columns[name][-1]

    def __setitem__(self, name: str, value: Any) -> None:
        """Replace a scalar, or the last tensor of a batch: the one that is looked at after 99 good ones."""
        if name in self.scalars:
            self.scalars[name] = value
        else:
            self.columns[name][-1] = value

    def label(self, name: str) -> str:
        """How an error names the last tensor of the input `name`."""
        return f"{name}[{len(self.columns[name]) - 1}]" if self.batch and name in TENSORS else name

    def run(self) -> Any:
        if self.batch:
            tensors = {**self.columns, **self.scalars}
            return samestep.sgd_batch_(*(tensors[name] for name in INPUTS), **self.options)
        return samestep.sgd_(*(self[name] for name in INPUTS), **self.options)

    def picture(self) -> list[Any]:
        lists = [*self.columns.values(), list(self.scalars.values()), self.behind]
        return [picture(x) for column in lists if isinstance(column, (list, tuple)) for x in column]

    def refused(self, code: str, input: str, came: str = "", accepts: str = "") -> samestep.ContractError:
        """The call fails with exactly this code, a message that can be acted on, and not one byte changed."""
        before = self.picture()
        with pytest.raises(samestep.ContractError) as caught:
            self.run()
        assert self.picture() == before
        error, text = caught.value, str(caught.value)
        assert (error.code, error.input) == (code, input), text
        assert type(error) is samestep.ContractError
        assert isinstance(error, ValueError)
        assert came in error.got
        assert accepts in error.accepted
        assert error.got
        assert error.accepted
        assert all(part in text for part in (error.code, error.input, error.got, error.accepted))
        return error


@pytest.fixture
def make_call() -> Callable[..., Call]:
    return Call


@pytest.fixture(params=[None, 100], ids=["single", "batch100"])
def call(request: pytest.FixtureRequest) -> Call:
    """A single call, and a batch of 100 in which the tests spoil the last entry."""
    return Call(request.param)
