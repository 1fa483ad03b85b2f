"""How good the critic is, before the update: all on the device, read with one transfer."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

LOW_VARIANCE = 1e-6
"""Variance of the returns under which explained variance says nothing."""


def explained_variance(values: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
    """EV = 1 - Var(R - V) / Var(R), and whether Var(R) is too low for it to mean anything (NaN then)."""
    values, returns = values.float(), returns.float()
    variance = returns.var(correction=0)
    low = variance < LOW_VARIANCE
    ratio = (returns - values).var(correction=0) / variance.clamp_min(LOW_VARIANCE)
    return torch.where(low, torch.nan, 1.0 - ratio), low


def normalized_rmse(values: Tensor, returns: Tensor) -> Tensor:
    """nRMSE = sqrt(mean (V - R)^2) / std(R); NaN where std(R) is too low."""
    values, returns = values.float(), returns.float()
    variance = returns.var(correction=0)
    rmse = (values - returns).square().mean().sqrt()
    return torch.where(variance < LOW_VARIANCE, torch.nan, rmse / variance.clamp_min(LOW_VARIANCE).sqrt())


@dataclass(frozen=True, slots=True)
class ValueDiagnostics:
    """Values, returns and advantages of a rollout as they were before the update. Unknown is None."""

    SIZE: ClassVar[int] = 12
    """Entries of the packed vector."""
    value_pred_mean: float
    value_pred_std: float
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    value_mse_before: float
    advantage_mean_prenorm: float
    advantage_std_prenorm: float
    explained_variance: float | None
    explained_variance_low_return_variance: bool
    value_nrmse: float | None

    @staticmethod
    def pack(values: Tensor, returns: Tensor, advantage_mean: Tensor, advantage_std: Tensor) -> Tensor:
        """All diagnostics as one float32 vector on the device; `unpack` reads it after one transfer."""
        values, returns = values.float(), returns.float()
        ev, low = explained_variance(values, returns)
        return torch.stack(
            (
                values.mean(),
                values.std(correction=0),
                returns.mean(),
                returns.std(correction=0),
                returns.min(),
                returns.max(),
                (values - returns).square().mean(),
                advantage_mean.float(),
                advantage_std.float(),
                ev,
                low.float(),
                normalized_rmse(values, returns),
            )
        )

    @staticmethod
    def unpack(packed: list[float]) -> "ValueDiagnostics":
        """The diagnostics from `pack`'s vector as a list."""
        measured = dict(zip(ValueDiagnostics.__slots__[:9], packed[:9], strict=True))
        ev, low, nrmse = packed[9:]
        return ValueDiagnostics(
            **measured,
            explained_variance=None if math.isnan(ev) else ev,
            explained_variance_low_return_variance=bool(low),
            value_nrmse=None if math.isnan(nrmse) else nrmse,
        )
