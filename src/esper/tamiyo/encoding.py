"""Small encodings shared by the networks."""

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|)"""
    return torch.sign(x) * torch.log1p(x.abs())


def one_hot_or_zeros(choices: Tensor, size: int) -> Tensor:
    """(...) int64 -> (..., size) float32; NO_ACTION gives zeros."""
    return choices.unsqueeze(-1).eq(torch.arange(size, device=choices.device)).float()
