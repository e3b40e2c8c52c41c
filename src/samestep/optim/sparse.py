"""Sparse gradients: only the rows that are there, where the rest would not change; else as if they were dense."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Rows(NamedTuple):
    """Some rows of a parameter, copied to be updated, and where they belong."""

    parameter: torch.Tensor
    places: tuple[torch.Tensor, ...]
    rows: torch.Tensor
    gradient: torch.Tensor

    def put_back(self) -> None:
        """Store the updated rows; no row occurs twice."""
        self.parameter.index_put_(self.places, self.rows)


def rows(parameter: torch.Tensor, gradient: torch.Tensor) -> Rows:
    """The rows of `parameter` that a sparse COO `gradient` names; values for the same row are added first."""
    gradient = gradient.coalesce()
    places = tuple(gradient.indices())
    return Rows(parameter, places, parameter.detach()[places], gradient.values())


def touches_rows_only(gradient: torch.Tensor, settings: Any) -> bool:
    """Would every element that the gradient does not name keep its value?"""
    return bool(
        gradient.layout is torch.sparse_coo and gradient.sparse_dim() > 0 and settings.dialect == "torch"
        and settings.momentum == 0 and settings.weight_decay == 0
    )
