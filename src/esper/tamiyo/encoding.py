"""Small encodings shared by the networks."""

import torch
from torch import Tensor

from esper.tamiyo.policy import NO_ACTION


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|)"""
    return torch.sign(x) * torch.log1p(x.abs())


def one_hot_or_zeros(choices: Tensor, size: int) -> Tensor:
    """(...) int64 -> (..., size) float32; NO_ACTION gives zeros."""
    return choices.unsqueeze(-1).eq(torch.arange(size, device=choices.device)).float()


def relevant_choices(actions: Tensor, relevance: Tensor) -> Tensor:
    """actions (step, head) with NO_ACTION where the first head's choice made a head irrelevant.

    relevance is (choice of the first head, head) bool. An irrelevant head's 0 stands for no choice.
    """
    relevant = relevance[actions[:, 0].clamp_min(0)]
    return torch.where(relevant, actions, NO_ACTION)
