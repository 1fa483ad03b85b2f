"""How much entropy is paid for: an annealed coefficient that does not fall below a floor."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_FLOOR_SCALE = 3.0


@dataclass(frozen=True, slots=True)
class EntropySchedule:
    """coef = max(c - (c - floor) progress, floor), linear over `anneal_steps` updates."""

    entropy_coef: float = 0.05
    entropy_coef_min: float = 0.01
    anneal_steps: int = 0
    """Updates until the floor is reached; 0 keeps the coefficient."""
    adaptive_floor: bool = False
    """Raise the floor where few of many choices are legal."""

    def progress(self, updates: int) -> float:
        return min(updates / self.anneal_steps, 1.0) if self.anneal_steps else 0.0

    def floor(self, n_legal: Tensor, n_total: Tensor) -> Tensor:
        """min_coef min(log n_total / log n_legal, 3); min_coef where n_legal <= 1 or n_legal = n_total."""
        base = torch.full(n_legal.shape, self.entropy_coef_min, dtype=torch.float32, device=n_legal.device)
        if not self.adaptive_floor:
            return base
        narrowed = (n_legal > 1) & (n_legal < n_total)
        scale = n_total.float().log() / n_legal.clamp_min(2).float().log()
        return torch.where(narrowed, base * scale.clamp_max(MAX_FLOOR_SCALE), base)

    def coefficient(
        self, n_legal: Tensor, n_total: Tensor, updates: int, entropy_coef: Tensor | None = None
    ) -> Tensor:
        """The coefficient where `n_legal` of `n_total` choices are legal, after this many updates."""
        start = self.entropy_coef if entropy_coef is None else entropy_coef
        floor = self.floor(n_legal, n_total)
        return torch.maximum(start - (start - floor) * self.progress(updates), floor)

    def get_entropy_floor(self, mask: Tensor | None = None) -> float | Tensor:
        """The floor under a mask: (choice,) gives a float, (..., choice) a tensor (...)."""
        return self._for_mask(mask, None)

    def get_entropy_coef(self, mask: Tensor | None = None, *, updates: int) -> float | Tensor:
        """The coefficient under a mask: (choice,) gives a float, (..., choice) a tensor (...)."""
        return self._for_mask(mask, updates)

    def _for_mask(self, mask: Tensor | None, updates: int | None) -> float | Tensor:
        if mask is None:
            mask = torch.ones(1, dtype=torch.bool)
        n_legal = mask.sum(-1)
        n_total = torch.full_like(n_legal, mask.shape[-1])
        floor = self.floor(n_legal, n_total)
        result = floor if updates is None else self.coefficient(n_legal, n_total, updates)
        return float(result) if mask.dim() == 1 else result


def uniform_entropy(choices: int) -> float:
    """log n: the entropy of a uniform choice."""
    return math.log(choices)
