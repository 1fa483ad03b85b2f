"""Measuring an update on the device, and reading it all with one transfer."""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from esper.leyline import HEAD_NAMES, HeadEntropies
from esper.simic.agent.losses import entropy_coefficient, legal_counts
from esper.simic.agent.rollout_buffer import Rollout
from esper.simic.agent.types import GradientStats, PPOUpdateMetrics, RatioBreakdown
from esper.simic.agent.value_metrics import ValueDiagnostics
from esper.simic.config.ppo import PPOConfig
from esper.tamiyo import ActionLayout, Policy


@dataclass(frozen=True, slots=True)
class GradientNorms:
    total: Tensor
    largest: Tensor
    smallest: Tensor
    heads: Tensor
    """(head,) norm over each head's own parameters."""


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

    @torch.no_grad()
    def measure_and_clip(self) -> GradientNorms:
        """g <- g min(1, max_norm / |g|), and the norms before that."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        norms = torch.stack(torch._foreach_norm(gradients))  # (parameter,)
        total = torch.linalg.vector_norm(norms)
        torch._foreach_mul_(gradients, (self.max_norm / (total + 1e-6)).clamp_max(1.0))
        squares = norms.new_zeros(self.head_count + 1).index_add(0, self.head_index, norms.square())
        return GradientNorms(total, norms.max(), norms.min(), squares[:-1].sqrt())


@dataclass(frozen=True, slots=True)
class MinibatchReport:
    """One minibatch, still on the device; statistics are computed for all of them together, at the end."""

    policy_loss: Tensor
    value_loss: Tensor
    kl: Tensor
    ratio_finite: Tensor
    finite: Tensor
    applied: Tensor
    ratio: Tensor
    """(step, head)"""
    entropy: Tensor
    """(step, head)"""
    chosen: Tensor
    """(step, head) bool: relevant, with a choice."""
    norms: GradientNorms

    def scalars(self) -> list[Tensor]:
        """In the order of SCALARS."""
        flags = (self.ratio_finite, self.finite, self.applied)
        norms = (self.norms.total, self.norms.largest, self.norms.smallest)
        return [self.policy_loss, self.value_loss, self.kl, *(flag.float() for flag in flags), *norms]


SCALARS = (
    *("policy_loss", "value_loss", "kl", "ratio_finite", "finite", "applied"),
    *("grad_norm", "max_grad", "min_grad"),
)
SUMS = ("clipped", "ratio_sum", "choices", "entropy_sum", "unforced")
EXTREMES = ("ratio_max", "ratio_min")
COLUMNS = (*SCALARS, *SUMS, *EXTREMES)
"""One minibatch's record; per-head columns follow: entropies, choices, gradient norms."""


class UpdateMeter:
    """Keeps what each minibatch reports; `summarize` reduces it on the device and moves it once."""

    __slots__ = ("debug", "epochs", "layout", "normalized", "reports", "rollout", "value_record")

    def __init__(
        self, layout: ActionLayout, rollout: Rollout, mean: Tensor, std: Tensor, *, debug: bool
    ) -> None:
        self.layout = layout
        self.rollout = rollout
        self.debug = debug
        self.epochs = 0
        self.reports: list[MinibatchReport] = []
        self.value_record = ValueDiagnostics.pack(rollout.value, rollout.returns, mean, std)
        self.normalized = (mean, std)

    @torch.no_grad()
    def _records(self, clip_ratio: float) -> Tensor:
        """(minibatch, column): all statistics, by one pass over the steps of all minibatches."""
        reports, heads = self.reports, self.layout.head_count
        ratio = torch.cat([report.ratio for report in reports])  # (step, head)
        chosen = torch.cat([report.chosen for report in reports])
        entropy = torch.cat([report.entropy for report in reports])
        owner = np.repeat(np.arange(len(reports)), [len(report.ratio) for report in reports])
        index = torch.from_numpy(owner).to(ratio.device, non_blocking=True)
        # Where nothing could be chosen the ratio is 1 and says nothing.
        seen = torch.where(chosen, ratio, 1.0)
        entropy = torch.where(chosen, entropy, 0.0)
        clipped = ((ratio - 1.0).abs() > clip_ratio) & chosen
        per_step = torch.stack(
            (
                clipped.sum(-1).float(),
                torch.where(chosen, ratio, 0.0).sum(-1),
                chosen.sum(-1).float(),
                entropy.sum(-1),
                chosen.any(-1).float(),
            ),
            dim=-1,
        )
        per_step = torch.cat((per_step, entropy, chosen.float()), dim=-1)
        sums = per_step.new_zeros(len(reports), per_step.shape[-1]).index_add(0, index, per_step)
        ones = seen.new_ones(len(reports))
        extremes = (
            ones.scatter_reduce(0, index, seen.amax(-1), "amax", include_self=False),
            ones.scatter_reduce(0, index, seen.amin(-1), "amin", include_self=False),
        )
        scalars = torch.stack([torch.stack(report.scalars()) for report in reports])
        norms = torch.stack([report.norms.heads for report in reports])
        totals, by_head = sums[:, : len(SUMS)], sums[:, len(SUMS) :]
        assert by_head.shape[-1] == 2 * heads
        return torch.cat((scalars, totals, torch.stack(extremes, dim=-1), by_head, norms), dim=-1)

    def summarize(self, config: PPOConfig, updates: int, *, kl_stopped: Tensor) -> PPOUpdateMetrics:
        """The one transfer of an update."""
        extra = torch.stack((*self.normalized, kl_stopped.float(), self.rollout.forced.sum().float()))
        records = self._records(config.clip_ratio)
        packed = torch.cat((records.flatten(), self.value_record, extra)).tolist()
        advantage_mean, advantage_std, stopped, forced_steps = packed[-4:]
        value = ValueDiagnostics.unpack(packed[-4 - ValueDiagnostics.SIZE : -4])
        count, width = records.shape
        rows = [packed[start : start + width] for start in range(0, width * count, width)]
        table = [dict(zip(COLUMNS, row[: len(COLUMNS)], strict=True)) for row in rows]
        heads = [row[len(COLUMNS) :] for row in rows]
        applied = [number for number, row in enumerate(table) if row["applied"]]
        finite = [number for number, row in enumerate(table) if row["finite"]]
        choices = sum(table[number]["choices"] for number in finite)
        unforced = sum(table[number]["unforced"] for number in finite)

        def mean(name: str) -> float | None:
            return sum(table[n][name] for n in applied) / len(applied) if applied else None

        def share(name: str, of: float) -> float | None:
            return sum(table[n][name] for n in finite) / of if of else None

        return PPOUpdateMetrics(
            policy_loss=mean("policy_loss"),
            value_loss=mean("value_loss"),
            entropy=share("entropy_sum", unforced),
            approx_kl=table[-1]["kl"],
            clip_fraction=share("clipped", choices),
            ratio_mean=share("ratio_sum", choices),
            ratio_max=max((table[n]["ratio_max"] for n in finite), default=None),
            ratio_min=min((table[n]["ratio_min"] for n in finite), default=None),
            ratio_has_numerical_issue=any(not row["ratio_finite"] for row in table),
            ratio_breakdown=self._breakdown(),
            advantage_mean=advantage_mean,
            advantage_std=advantage_std,
            head_entropies=self._head_entropies([heads[n] for n in finite]),
            head_grad_norms=self._head_norms(heads[applied[-1]] if applied else None),
            gradient=_gradient_stats(table[applied[-1]]) if applied else None,
            value=value,
            entropy_coef=float(
                entropy_coefficient(config, *legal_counts(None), updates, config.entropy_coef)
            ),
            epochs=self.epochs,
            minibatches_applied=len(applied),
            minibatches_skipped=len(table) - len(finite),
            kl_stopped=bool(stopped),
            valid_steps=self.rollout.steps,
            forced_steps=int(forced_steps),
            invalid_steps=self.rollout.invalid_steps,
        )

    def _head_entropies(self, heads: list[list[float]]) -> HeadEntropies | dict[str, float | None]:
        count = self.layout.head_count
        entropies: dict[str, float | None] = {}
        for head, name in enumerate(self.layout.names):
            choices = sum(row[count + head] for row in heads)
            entropies[name] = sum(row[head] for row in heads) / choices if choices else None
        if self.layout.names == HEAD_NAMES:
            return cast(HeadEntropies, entropies)
        return entropies

    def _head_norms(self, row: list[float] | None) -> dict[str, float | None]:
        count = self.layout.head_count
        norms = [None] * count if row is None else row[2 * count :]
        return dict(zip(self.layout.names, norms, strict=True))

    def _breakdown(self) -> RatioBreakdown | None:
        if not self.debug:
            return None
        ratio = torch.cat([report.ratio for report in self.reports])
        nan, inf = torch.stack((ratio.isnan().sum(0), ratio.isinf().sum(0))).tolist()
        names = tuple(
            name
            for name, bad in zip(self.layout.names, map(sum, zip(nan, inf, strict=True)), strict=True)
            if bad
        )
        return RatioBreakdown(nan=sum(nan), inf=sum(inf), heads=names)


def _gradient_stats(row: dict[str, float]) -> GradientStats:
    return GradientStats(grad_norm=row["grad_norm"], max_grad=row["max_grad"], min_grad=row["min_grad"])
