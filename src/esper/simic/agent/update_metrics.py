"""What an update measured: typed, measured on the device, and read all with one transfer."""

import math
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, HeadEntropies
from esper.simic.agent.rollout_buffer import Rollout
from esper.simic.agent.types import GradientStats, PPOUpdateMetrics, RatioBreakdown, ValueDiagnostics
from esper.simic.config.ppo import PPOConfig
from esper.tamiyo import ActionLayout, Policy

LOW_VARIANCE = 1e-6
"""Variance of the returns under which explained variance says nothing."""


class GradientMeter:
    """One multi-tensor norm per step gives the total for clipping, the extremes and each head's share."""

    __slots__ = ("head_count", "head_index", "max_norm", "parameters")

    def __init__(self, policy: Policy, max_norm: float) -> None:
        self.parameters = list(policy.parameters())
        self.max_norm = max_norm
        self.head_count = policy.layout.head_count
        heads = {
            id(parameter): policy.layout.names.index(head) for head, parameter in policy.head_parameters()
        }
        # Parameters that serve several heads are counted in a place of their own, past the heads.
        index = [heads.get(id(parameter), self.head_count) for parameter in self.parameters]
        self.head_index = torch.tensor(index).to(policy.device, non_blocking=True)

    @torch.no_grad()  # not inference_mode: clips the gradients that the optimiser reads
    def measure_and_clip(self) -> tuple[dict[str, Tensor], Tensor]:
        """g <- g min(1, max_norm / |g|). Returns the norms before that: `GradientStats` by name, and (head,)."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        norms = torch.stack(torch._foreach_norm(gradients))  # (parameter,)
        total = torch.linalg.vector_norm(norms)
        torch._foreach_mul_(gradients, (self.max_norm / (total + 1e-6)).clamp_max(1.0))
        squares = norms.new_zeros(self.head_count + 1).index_add(0, self.head_index, norms.square())
        return {"grad_norm": total, "max_grad": norms.max(), "min_grad": norms.min()}, squares[:-1].sqrt()


@dataclass(frozen=True, slots=True)
class MinibatchReport:
    """One minibatch, still on the device; statistics are computed for all of them together, at the end."""

    scalars: dict[str, Tensor]
    """What needs no reduction over steps, by the name of its column."""
    ratio: Tensor
    """(step, head)"""
    entropy: Tensor
    """(step, head)"""
    entropy_coef: Tensor
    """(step, head) weight of the entropy bonus."""
    chosen: Tensor
    """(step, head) bool: relevant, with a choice."""
    head_grad_norms: Tensor
    """(head,) gradient norm over each head's own parameters, before clipping."""


class UpdateMeter:
    """Keeps what each minibatch reports; `summarize` reduces it on the device and moves it once."""

    __slots__ = ("epochs", "layout", "normalized", "reports", "rollout", "value_record")

    def __init__(self, layout: ActionLayout, rollout: Rollout, mean: Tensor, std: Tensor) -> None:
        self.layout = layout
        self.rollout = rollout
        self.epochs = 0
        self.reports: list[MinibatchReport] = []
        self.value_record = pack_value_diagnostics(rollout.value, rollout.returns, mean, std)
        self.normalized = (mean, std)

    @torch.inference_mode()
    def _columns(self, clip_ratio: float) -> dict[str, Tensor]:
        """name -> (minibatch,): all statistics, by one pass over the steps of all minibatches."""
        reports = self.reports
        ratio = torch.cat([report.ratio for report in reports])  # (step, head)
        chosen = torch.cat([report.chosen for report in reports])
        entropy = torch.where(chosen, torch.cat([report.entropy for report in reports]), 0.0)
        coefficient = torch.where(chosen, torch.cat([report.entropy_coef for report in reports]), 0.0)
        owner = np.repeat(np.arange(len(reports)), [len(report.ratio) for report in reports])
        index = torch.from_numpy(owner).to(ratio.device, non_blocking=True)
        # Where nothing could be chosen the ratio is 1 and says nothing.
        seen = torch.where(chosen, ratio, 1.0)
        clipped = ((ratio - 1.0).abs() > clip_ratio) & chosen
        ones = seen.new_ones(len(reports))

        def total(per_step: Tensor) -> Tensor:
            """(step, ...) -> (minibatch, ...)"""
            per_step = per_step.float()
            return per_step.new_zeros(len(reports), *per_step.shape[1:]).index_add(0, index, per_step)

        by_head = {
            "entropy_sum": total(entropy),
            "entropy_coef_sum": total(coefficient),
            "choices": total(chosen),
            "grad_norm": torch.stack([report.head_grad_norms for report in reports]),
        }
        return {
            **{
                name: torch.stack([report.scalars[name].float() for report in reports])
                for name in reports[0].scalars
            },
            "clipped": total(clipped.sum(-1)),
            "ratio_sum": total(torch.where(chosen, ratio, 0.0).sum(-1)),
            "choices": total(chosen.sum(-1)),
            "entropy_sum": total(entropy.sum(-1)),
            "entropy_coef_sum": total(coefficient.sum(-1)),
            "unforced": total(chosen.any(-1)),
            "ratio_max": ones.scatter_reduce(0, index, seen.amax(-1), "amax", include_self=False),
            "ratio_min": ones.scatter_reduce(0, index, seen.amin(-1), "amin", include_self=False),
            **{
                f"{name}/{head}": column
                for name, columns in by_head.items()
                for head, column in zip(self.layout.names, columns.unbind(-1), strict=True)
            },
        }

    def summarize(self, config: PPOConfig, *, kl_stopped: Tensor) -> PPOUpdateMetrics:
        """The one transfer of an update."""
        columns = self._columns(config.clip_ratio)
        extra = torch.stack((*self.normalized, kl_stopped.float(), self.rollout.forced.sum().float()))
        packed = torch.cat((*columns.values(), self.value_record, extra)).tolist()
        advantage_mean, advantage_std, stopped, forced_steps = packed[-4:]
        count = len(self.reports)
        table = {name: packed[place * count : (place + 1) * count] for place, name in enumerate(columns)}
        applied = [number for number, flag in enumerate(table["applied"]) if flag]
        finite = [number for number, flag in enumerate(table["finite"]) if flag]

        def mean(name: str) -> float | None:
            return sum(table[name][n] for n in applied) / len(applied) if applied else None

        def share(name: str, of: str) -> float | None:
            whole = sum(table[of][n] for n in finite)
            return sum(table[name][n] for n in finite) / whole if whole else None

        def last(name: str) -> float | None:
            return table[name][applied[-1]] if applied else None

        heads = self.layout.names
        entropies = {head: share(f"entropy_sum/{head}", of=f"choices/{head}") for head in heads}
        coefficients = {head: share(f"entropy_coef_sum/{head}", of=f"choices/{head}") for head in heads}
        gradient = None
        if applied:
            gradient = GradientStats(**{name: table[name][applied[-1]] for name in GradientStats.__slots__})
        return PPOUpdateMetrics(
            policy_loss=mean("policy_loss"),
            value_loss=mean("value_loss"),
            entropy=share("entropy_sum", of="unforced"),
            approx_kl=table["kl"][-1],
            clip_fraction=share("clipped", of="choices"),
            ratio_mean=share("ratio_sum", of="choices"),
            ratio_max=max((table["ratio_max"][n] for n in finite), default=None),
            ratio_min=min((table["ratio_min"][n] for n in finite), default=None),
            ratio_has_numerical_issue=not all(table["ratio_finite"]),
            ratio_breakdown=self._breakdown() if config.debug else None,
            advantage_mean=advantage_mean,
            advantage_std=advantage_std,
            head_entropies=cast(HeadEntropies, entropies) if heads == HEAD_NAMES else entropies,
            head_grad_norms={head: last(f"grad_norm/{head}") for head in heads},
            gradient=gradient,
            value=unpack_value_diagnostics(packed[len(columns) * count : -4]),
            entropy_coef=share("entropy_coef_sum", of="choices"),
            head_entropy_coefs=coefficients,
            epochs=self.epochs,
            minibatches_applied=len(applied),
            minibatches_skipped=count - len(finite),
            kl_stopped=bool(stopped),
            valid_steps=self.rollout.steps,
            forced_steps=int(forced_steps),
            invalid_steps=self.rollout.invalid_steps,
        )

    def _breakdown(self) -> RatioBreakdown:
        ratio = torch.cat([report.ratio for report in self.reports])
        nan, inf = torch.stack((ratio.isnan().sum(0), ratio.isinf().sum(0))).tolist()
        bad = tuple(name for name, *found in zip(self.layout.names, nan, inf, strict=True) if any(found))
        return RatioBreakdown(nan=sum(nan), inf=sum(inf), heads=bad)


# How good the critic is, before the update


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


def pack_value_diagnostics(
    values: Tensor, returns: Tensor, advantage_mean: Tensor, advantage_std: Tensor
) -> Tensor:
    """The fields of `ValueDiagnostics` in their order, as one float32 vector on the device; unknown is NaN."""
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


def unpack_value_diagnostics(packed: list[float]) -> ValueDiagnostics:
    """What `pack_value_diagnostics` packed, after its transfer."""
    measured = dict(zip(ValueDiagnostics.__slots__[:9], packed[:9], strict=True))
    ev, low, nrmse = packed[9:]
    return ValueDiagnostics(
        **measured,
        explained_variance=None if math.isnan(ev) else ev,
        explained_variance_low_return_variance=bool(low),
        value_nrmse=None if math.isnan(nrmse) else nrmse,
    )
