"""A categorical distribution over the legal choices only."""

import math

import torch
from torch import Tensor


class MaskedCategorical:
    """p(a) = softmax(logits over legal a), exactly 0 elsewhere; mixed with uniform(legal) when `floor` > 0.

    logits (..., choice) of any float type, read as float32; mask (..., choice) bool, True where legal.
    `floor` e gives (1 - e) p + e / n_legal: a floor that, unlike clamping, keeps every gradient alive.
    """

    __slots__ = ("floor", "log_probs", "mask")

    def __init__(self, logits: Tensor, mask: Tensor, *, floor: float = 0.0) -> None:
        if logits.shape != mask.shape:
            raise ValueError(
                f"logits have shape {tuple(logits.shape)}, mask {tuple(mask.shape)}; expected equal"
            )
        if mask.dtype != torch.bool:
            raise ValueError(f"mask has dtype {mask.dtype}; expected torch.bool")
        if not 0.0 <= floor < 1.0:
            raise ValueError(f"floor is {floor}; expected 0 <= floor < 1")
        require_legal_choice(mask)
        self.mask = mask
        self.floor = floor
        log_probs = torch.log_softmax(logits.float().masked_fill(~mask, -math.inf), dim=-1)
        self.log_probs = mix_with_uniform(log_probs, mask, floor) if floor else log_probs
        """(..., choice); -inf where masked."""

    @property
    def probs(self) -> Tensor:
        return self.log_probs.exp()

    def log_prob(self, actions: Tensor) -> Tensor:
        """log p(a) for actions (...)."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """H = - sum_a p(a) log p(a), with 0 log 0 = 0."""
        finite = self.log_probs.masked_fill(~self.mask, 0.0)
        return -(self.log_probs.exp() * finite).sum(-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """argmax_a (log p(a) + Gumbel noise); a masked choice is never drawn."""
        noise = gumbel_noise(self.log_probs.shape, generator, self.log_probs.device)
        return (self.log_probs + noise).argmax(-1)


def require_legal_choice(mask: Tensor) -> None:
    """Every row needs a legal choice. Asynchronous on CUDA: there the error surfaces at the next sync."""
    has_choice = mask.any(-1)
    if mask.is_cuda:
        torch._assert_async(has_choice.all(), "a row of the action mask has no legal choice")
    elif not has_choice.all():
        row = has_choice.logical_not().nonzero()[0].tolist()
        raise ValueError(f"mask row {row} has no legal choice; a mask must allow at least one")


def mix_with_uniform(log_probs: Tensor, mask: Tensor, floor: float) -> Tensor:
    """log((1 - e) p + e / n_legal) over legal choices, -inf elsewhere; a lone choice keeps exactly 0."""
    n_legal = mask.sum(-1, keepdim=True)
    uniform = math.log(floor) - n_legal.float().log()
    legal = log_probs.masked_fill(~mask, 0.0)
    mixed = torch.logaddexp(legal + math.log1p(-floor), uniform).masked_fill(~mask, -math.inf)
    return torch.where(n_legal > 1, mixed, log_probs)


def gumbel_noise(shape: torch.Size, generator: torch.Generator, device: torch.device) -> Tensor:
    """-log E with E ~ Exp(1): the argmax of log p plus this noise is a draw from p."""
    noise = torch.empty(shape, device=device).exponential_(generator=generator)
    return noise.clamp_min_(torch.finfo(noise.dtype).tiny).log_().neg_()


def require_finite(best: Tensor) -> None:
    """The best score of each row is finite, or nothing was legal there. Asynchronous on CUDA."""
    if best.is_cuda:
        torch._assert_async(
            torch.isfinite(best).all(), "a row has no legal choice, or its logits are not finite"
        )
    elif not torch.isfinite(best).all():
        row = torch.isfinite(best).logical_not().nonzero()[0].tolist()
        raise ValueError(f"row {row} has no legal choice, or its logits are not finite")
