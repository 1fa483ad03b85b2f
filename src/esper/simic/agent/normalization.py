"""Running statistics with the state of a PyTorch module's: what is saved is what is needed, as copies."""

import torch
from torch import Tensor


class RunningMeanStd:
    """Mean and variance of everything seen, per feature, by merging batch moments (Chan et al., 1979).

    With no data it is the identity: mean 0, variance 1, count 0.
    """

    __slots__ = ("_scale", "count", "mean", "var")

    def __init__(self, shape: tuple[int, ...] = (), device: torch.device | str = "cpu") -> None:
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.var = torch.ones(shape, dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self._scale: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode()
    def update(self, batch: Tensor, valid: Tensor | None = None) -> None:
        """Take in the finite rows of a batch (n, *shape), where `valid` (n,) bool if given."""
        if batch.shape[1:] != self.mean.shape:
            raise ValueError(f"batch has shape {tuple(batch.shape)}; expected (n, *{tuple(self.mean.shape)})")
        if batch.shape[0] == 0:
            return
        batch = batch.to(self.mean.device, torch.float64)
        kept = torch.isfinite(batch).reshape(batch.shape[0], -1).all(1)
        self.merge(*_moments(batch, kept if valid is None else kept & valid))

    @torch.inference_mode()
    def merge(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Take in `count` samples known by their moments; none change nothing."""
        total = self.count + count
        share = count / total.clamp_min(1.0)
        delta = mean - self.mean
        merged = self.var * (1 - share) + var * share + delta.square() * share * (1 - share)
        self.mean = self.mean + delta * share
        self.var = torch.where(count > 0, merged, self.var)
        self.count = total
        self._scale = None

    @torch.inference_mode()
    def normalize(self, x: Tensor, *, clip: float = 10.0, eps: float = 1e-8) -> Tensor:
        """clip((x - mean) / sqrt(var + eps)), in float32."""
        if self._scale is None:
            self._scale = (self.mean.float(), (self.var + eps).rsqrt().float())
        mean, scale = self._scale
        return ((x - mean) * scale).clamp_(-clip, clip)

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean.clone(), "var": self.var.clone(), "count": self.count.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        _require_keys(state, ("mean", "var", "count"), "RunningMeanStd")
        device = self.mean.device
        if state["mean"].shape != self.mean.shape:
            raise ValueError(
                f"mean has shape {tuple(state['mean'].shape)}; expected {tuple(self.mean.shape)}"
            )
        self.mean = state["mean"].to(device).clone()
        self.var = state["var"].to(device).clone()
        self._scale = None
        self.count = state["count"].to(device).clone()


class RewardNormalizer:
    """r / std of all rewards seen, clipped; not centred, since a shift of the reward changes the task."""

    __slots__ = ("clip", "count", "m2", "mean")

    def __init__(self, clip: float = 10.0, device: torch.device | str = "cpu") -> None:
        if clip <= 0:
            raise ValueError(f"clip is {clip}; expected > 0")
        self.clip = clip
        self.mean = torch.zeros((), dtype=torch.float64, device=device)
        self.m2 = torch.zeros((), dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    @torch.inference_mode()
    def update(self, rewards: Tensor, valid: Tensor | None = None) -> None:
        """Take in the finite ones of rewards of any shape, where `valid` (of that shape, bool) if given."""
        batch = rewards.to(self.mean.device, torch.float64).flatten()
        kept = torch.isfinite(batch)
        mean, var, added = _moments(batch, kept if valid is None else kept & valid.flatten())
        total = self.count + added
        share = added / total.clamp_min(1.0)
        delta = mean - self.mean
        self.m2 = self.m2 + var * added + delta.square() * self.count * share
        self.mean = self.mean + delta * share
        self.count = total

    @property
    def std(self) -> Tensor:
        """Population standard deviation; 1 while it is unknown or 0 (a constant reward has no scale)."""
        variance = self.m2 / self.count.clamp_min(1.0)
        known = (self.count >= 2) & (variance > 1e-12)
        return torch.where(known, variance.sqrt(), torch.ones_like(variance))

    @torch.inference_mode()
    def normalize(self, rewards: Tensor) -> Tensor:
        """clip(r / std), float32."""
        return (rewards.to(torch.float64) / self.std).clamp(-self.clip, self.clip).float()

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean.clone(), "m2": self.m2.clone(), "count": self.count.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        _require_keys(state, ("mean", "m2", "count"), "RewardNormalizer")
        device = self.mean.device
        self.mean = state["mean"].to(device).clone()
        self.m2 = state["m2"].to(device).clone()
        self.count = state["count"].to(device).clone()


def _moments(batch: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, population variance and count of the rows of batch (n, ...) where kept (n,): weights, no sync."""
    where = kept.reshape(-1, *[1] * (batch.dim() - 1))
    count = kept.sum().to(batch.dtype)
    divisor = count.clamp_min(1.0)
    mean = torch.where(where, batch, 0.0).sum(0) / divisor
    var = torch.where(where, batch - mean, 0.0).square().sum(0) / divisor
    return mean, var, count


def _require_keys(state: dict[str, Tensor], keys: tuple[str, ...], owner: str) -> None:
    if set(state) != set(keys):
        raise ValueError(f"{owner} state has keys {sorted(state)}; expected exactly {sorted(keys)}")
