"""Gradients in few numbers: norm, health, vanishing, exploding; measured on the device, read once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

VANISHING_NORM = 1e-7
EXPLODING_NORM = 1e2


@dataclass(frozen=True, slots=True)
class SeedGradientStats:
    """What the gradients of one seed looked like. Without gradients nothing was measured."""

    gradient_norm: float
    gradient_health: float
    """0..1: the share of gradient tensors that are finite and neither vanish nor explode."""
    has_vanishing: bool
    has_exploding: bool
    """A norm over the threshold, or one that is not finite."""
    measured: bool


NOT_MEASURED = SeedGradientStats(0.0, 1.0, has_vanishing=False, has_exploding=False, measured=False)


class SeedGradientCollector:
    """Reads the `.grad` of a seed's parameters with one multi-tensor norm and no wait for the device.

    vanishing  a gradient tensor with a norm under this counts as vanished
    exploding  over this as exploded
    """

    def __init__(self, *, vanishing: float = VANISHING_NORM, exploding: float = EXPLODING_NORM) -> None:
        if not 0.0 <= vanishing < exploding:
            raise ValueError(f"vanishing={vanishing!r} must be >= 0 and below exploding={exploding!r}")
        self.vanishing, self.exploding = vanishing, exploding

    @torch.no_grad()
    def collect_async(self, params: Iterable[Tensor]) -> Tensor | None:
        """(norm, share of vanished tensors, share of exploded ones) on the device; None without gradients."""
        gradients = [parameter.grad for parameter in params if parameter.grad is not None]
        if not gradients:
            return None
        norms = torch.stack(torch._foreach_norm(gradients)).float()  # (tensor,)
        vanished = norms < self.vanishing
        exploded = ~(norms <= self.exploding)  # NaN is not below anything
        return torch.stack(
            (torch.linalg.vector_norm(norms), vanished.float().mean(), exploded.float().mean())
        )

    def collect(self, params: Iterable[Tensor]) -> SeedGradientStats:
        """The same for one seed, read at once."""
        return materialize_grad_stats([self.collect_async(params)])[0]


def materialize_grad_stats(readings: Sequence[Tensor | None]) -> list[SeedGradientStats]:
    """What `collect_async` left on the device, for many seeds, with one wait for it."""
    present = [reading for reading in readings if reading is not None]
    rows = iter(torch.stack(present).tolist() if present else [])
    return [NOT_MEASURED if reading is None else stats_from(*next(rows)) for reading in readings]


def stats_from(norm: float, vanished: float, exploded: float) -> SeedGradientStats:
    return SeedGradientStats(
        gradient_norm=norm,
        gradient_health=max(1.0 - vanished - exploded, 0.0),
        has_vanishing=vanished > 0.0,
        has_exploding=exploded > 0.0,
        measured=True,
    )
