"""Running statistics of observations and rewards; their state is what is needed to go on, as copies."""

from typing import ClassVar

import torch
from torch import Tensor


class _Statistics:
    """float64 tensors on one device, saved and loaded by name as a PyTorch module does."""

    __slots__ = ("count", "mean")
    names: ClassVar[tuple[str, ...]]

    def __init__(self, shape: tuple[int, ...], device: torch.device | str) -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the statistics, by name."""
        return {name: getattr(self, name).clone() for name in self.names}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over the statistics in `state`, on the own device; ValueError unless names and shapes are the same."""
        if set(state) != set(self.names):
            owner, known = type(self).__name__, sorted(self.names)
            raise ValueError(f"{owner} state has keys {sorted(state)}; expected exactly {known}")
        for name, own in self.state_dict().items():
            if state[name].shape != own.shape:
                raise ValueError(f"{name} has shape {tuple(state[name].shape)}; expected {tuple(own.shape)}")
        for name in self.names:
            setattr(self, name, state[name].to(self.mean.device).clone())

    def _merge(self, batch: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take the rows of batch (n, ...) where kept (n,) into mean and count: by weights, without a sync.

        Returns their population variance, how many they are, their share of all, and how far the means differ.
        """
        where = kept.reshape(-1, *[1] * (batch.dim() - 1))
        added = kept.sum().to(batch.dtype)
        divisor = added.clamp_min(1.0)
        mean = torch.where(where, batch, 0.0).sum(0) / divisor
        var = torch.where(where, batch - mean, 0.0).square().sum(0) / divisor
        delta = mean - self.mean
        self.count = self.count + added
        share = added / self.count.clamp_min(1.0)
        self.mean = self.mean + delta * share
        return var, added, share, delta


class RunningMeanStd(_Statistics):
    """Mean and variance of everything seen, per feature, by merging batch moments (Chan et al., 1979).

    With no data it is the identity: mean 0, variance 1, count 0.

    fixed  bool of that shape: what `normalize` leaves as it is
    """

    __slots__ = ("fixed", "var")
    names = ("mean", "var", "count")

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        device: torch.device | str = "cpu",
        *,
        fixed: Tensor | None = None,
    ) -> None:
        super().__init__(shape, device)
        self.fixed = torch.zeros(shape, dtype=torch.bool) if fixed is None else fixed
        self.fixed = self.fixed.to(device)
        self.var = torch.ones_like(self.mean)

    @torch.inference_mode()
    def update(self, batch: Tensor, valid: Tensor | None = None) -> None:
        """Take in the finite rows of a batch (n, *shape), where `valid` (n,) bool if given; none change nothing."""
        if batch.shape[1:] != self.mean.shape:
            raise ValueError(f"batch has shape {tuple(batch.shape)}; expected (n, *{tuple(self.mean.shape)})")
        if batch.shape[0] == 0:
            return
        batch = batch.to(self.mean.device, torch.float64)
        kept = torch.isfinite(batch).reshape(batch.shape[0], -1).all(1)
        var, added, share, delta = self._merge(batch, kept if valid is None else kept & valid)
        merged = self.var * (1 - share) + var * share + delta.square() * share * (1 - share)
        self.var = torch.where(added > 0, merged, self.var)

    @torch.inference_mode()
    def normalize(self, x: Tensor, *, clip: float = 10.0, eps: float = 1e-8) -> Tensor:
        """clip((x - mean) / sqrt(var + eps)), in float32; x where the scale is fixed."""
        scale = (self.var + eps).rsqrt().float()
        return torch.where(self.fixed, x, ((x - self.mean.float()) * scale).clamp_(-clip, clip))


class RewardNormalizer(_Statistics):
    """r / std of all rewards seen: one factor for all, neither centred nor clipped, which would change the task."""

    __slots__ = ("m2",)
    names = ("mean", "m2", "count")

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__((), device)
        self.m2 = torch.zeros_like(self.mean)

    @torch.inference_mode()
    def update(self, rewards: Tensor, valid: Tensor | None = None) -> None:
        """Take in the finite ones of rewards of any shape, where `valid` (of that shape, bool) if given."""
        batch = rewards.to(self.mean.device, torch.float64).flatten()
        kept = torch.isfinite(batch)
        before = self.count
        var, added, share, delta = self._merge(batch, kept if valid is None else kept & valid.flatten())
        self.m2 = self.m2 + var * added + delta.square() * before * share

    @property
    def std(self) -> Tensor:
        """Population standard deviation; 1 while it is unknown or 0 (a constant reward has no scale)."""
        variance = self.m2 / self.count.clamp_min(1.0)
        known = (self.count >= 2) & (variance > 1e-12)
        return torch.where(known, variance.sqrt(), torch.ones_like(variance))

    @torch.inference_mode()
    def normalize(self, rewards: Tensor) -> Tensor:
        """r / std, float32."""
        return (rewards.to(torch.float64) / self.std).float()
