"""What the state of every host is worth: to the reward and the critic by its baseline, to the actor by a forecast."""

import math
from collections.abc import Mapping
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from esper.leyline import BaselineCurve, HostProtocol
from esper.leyline.utility import score_by_loss
from esper.simic.reward import (
    SCORES,
    Flags,
    Floats,
    RewardComponents,
    RewardConfig,
    RewardInputs,
    Standings,
    compute_rewards,
    largest_growth,
    utility_parts,
)
from esper.tamiyo.controller import RewardRecord
from esper.tamiyo.features import bound_in_place, by_percent
from esper.tamiyo.tracker import Paymaster

PRIVILEGED = ("baseline", "baseline_at_end", "gain")
"""What only the critic may see: the baseline's score now and at the horizon, and the gain over it (by percent)."""


class Accounts:
    """The books of `num_envs` hosts, one entry an epoch.

    reward        what the hosts are worth
    shown_reward  what the actor learned by, and is shown: of the observed half of validation, against a forecast
    """

    def __init__(
        self, reward: RewardConfig, num_envs: int, *, horizon: int, shown_reward: RewardConfig
    ) -> None:
        self.reward, self.shown_reward, self._horizon = reward, shown_reward, horizon
        self._record = RewardRecord(
            family=shown_reward.family,
            mode=shown_reward.mode,
            rent=shown_reward.rent,
            gamma=shown_reward.gamma,
            control_variate=shown_reward.control_variate,
            counts=shown_reward.counts,
        )
        self._now = Standings.unknown(num_envs)
        self._host_parameters, self._largest_growth = np.full((2, num_envs), np.nan)
        self._untrained_loss, self._untrained_observed_loss = np.full((2, num_envs), np.nan)
        self._baseline_ends: list[float | None] = [
            None
        ] * num_envs  # its score at the horizon, once asked for
        self._baselines: list[BaselineCurve | None] = [None] * num_envs
        self._paymasters = [Paymaster(shown_reward.rent, self._record) for _ in range(num_envs)]
        self.shown = np.zeros(num_envs)
        """(env,) the reward of the last step as a deployed controller would be shown it."""

    def begin(self, env_idx: int, host: HostProtocol, baseline: BaselineCurve | None) -> None:
        """A new host, whose report is that of epoch 0."""
        self._untrained_loss[env_idx] = host.report.judged[0]
        self._untrained_observed_loss[env_idx] = host.report.validation_loss
        self._paymasters[env_idx] = Paymaster(self.shown_reward.rent, self._record)
        self.shown[env_idx] = 0.0
        self._open(env_idx, host, baseline)

    def close_epoch(
        self, hosts: Mapping[int, HostProtocol], terminated: Flags, rolled_back: Flags
    ) -> RewardComponents:
        """Enter an epoch of these hosts, by env; the others stand as they stood."""
        before, after = self._now, self._now.copy()
        self.shown = np.zeros_like(self.shown)
        for env_idx, host in hosts.items():
            self._stand(env_idx, host, after)
            self.shown[env_idx] = 0.0 if rolled_back[env_idx] else self._pay(env_idx, host)
        self._now = after
        inputs = RewardInputs(
            before,
            after,
            self._host_parameters,
            self._largest_growth,
            self._untrained_loss,
            terminated,
            rolled_back,
        )
        return compute_rewards(self.reward, inputs)

    def utility(self, env_idx: int) -> tuple[float, float]:
        """Of a host as it is now: its utility, and its gain (the utility itself where no baseline is subtracted)."""
        score, rent, baseline = (float(part[env_idx]) for part in self._parts())
        return score + rent, score + rent + baseline

    def gain_of_condemned(self, env_idx: int) -> float:
        """The worst score minus the baseline's at the horizon: ending early spares no part of the difference."""
        return SCORES[self.reward.family][0] - self._baseline_at_end(env_idx)

    def privileged(self) -> NDArray[np.float32]:
        """(env, PRIVILEGED); 0 where unknown. It looks at the end of every baseline."""
        score, rent, baseline = self._parts()
        ends = [self._baseline_at_end(env_idx) for env_idx in range(len(self._baselines))]
        gain = by_percent(score + rent + baseline)
        features = np.column_stack((-baseline, ends, gain)).astype(np.float32)
        bound_in_place(features)
        return features

    def state_dict(self, env_idx: int) -> dict[str, object]:
        """What was entered in earlier epochs: plain data."""
        return {
            "untrained_loss": float(self._untrained_loss[env_idx]),
            "untrained_observed_loss": float(self._untrained_observed_loss[env_idx]),
            "pay": self._paymasters[env_idx].state_dict(),
            "standing": [float(getattr(self._now, each.name)[env_idx]) for each in fields(Standings)],
        }

    def load_state_dict(
        self, env_idx: int, host: HostProtocol, baseline: BaselineCurve | None, state: Mapping[str, object]
    ) -> None:
        """Go on with a host that stands where it stood when `state_dict` was taken."""
        untrained, observed = state["untrained_loss"], state["untrained_observed_loss"]
        pay, standing = state["pay"], state["standing"]
        assert isinstance(untrained, float)
        assert isinstance(observed, float)
        assert isinstance(pay, Mapping)
        self._untrained_loss[env_idx], self._untrained_observed_loss[env_idx] = untrained, observed
        self._paymasters[env_idx].load_state_dict(pay)
        self._open(env_idx, host, baseline)
        assert isinstance(standing, list)
        for each, value in zip(fields(Standings), standing, strict=True):
            getattr(self._now, each.name)[env_idx] = value

    def _open(self, env_idx: int, host: HostProtocol, baseline: BaselineCurve | None) -> None:
        self._baselines[env_idx] = baseline
        self._host_parameters[env_idx] = host.host_parameters
        self._largest_growth[env_idx] = largest_growth(host)
        self._baseline_ends[env_idx] = None
        if self.reward.counts == "life":
            for each in fields(Standings):  # nothing has been lived yet
                unknown = baseline is None and each.name.startswith("baseline")
                getattr(self._now, each.name)[env_idx] = math.nan if unknown else 0.0
        else:
            self._stand(env_idx, host, self._now)

    def _baseline_at_end(self, env_idx: int) -> float:
        """The score of the baseline at the horizon, or of its life; NaN where there is none."""
        baseline, known = self._baselines[env_idx], self._baseline_ends[env_idx]
        if baseline is None or known is not None:
            return math.nan if known is None else known
        by_accuracy = self.reward.family == "contribution"
        counted = range(1, self._horizon + 1) if self.reward.counts == "life" else (self._horizon,)
        scores = [
            accuracy if by_accuracy else score_by_loss(loss, self._untrained_loss[env_idx])
            for accuracy, loss in (_at(baseline, epoch) for epoch in counted)
        ]
        score = self._baseline_ends[env_idx] = float(np.mean(scores))
        return score

    def _parts(self) -> tuple[Floats, Floats, Floats]:
        return utility_parts(self.reward, self._now, self._host_parameters, self._untrained_loss)

    def _pay(self, env_idx: int, host: HostProtocol) -> float:
        """The reward of this epoch as a controller in use is shown it."""
        report = host.report
        score = report.validation_accuracy
        if self.shown_reward.family == "loss":
            score = score_by_loss(report.validation_loss, self._untrained_observed_loss[env_idx])
        grown = any(slot.alpha > 0.0 for slot in host.readings())
        paymaster = self._paymasters[env_idx]
        return paymaster.pay(score, host.added_parameters, host.host_parameters, grown=grown)

    def _stand(self, env_idx: int, host: HostProtocol, standings: Standings) -> None:
        """Write down what the utility of the host is made of now, and that of its baseline; of a life, add it."""
        (loss, accuracy), baseline = host.report.judged, self._baselines[env_idx]
        now = [math.nan if accuracy is None else accuracy, loss, host.added_parameters]
        if baseline is not None:
            now += _at(baseline, host.report.epoch)
        for each, value in zip(fields(Standings), now, strict=False):
            entries: Floats = getattr(standings, each.name)
            if self.reward.counts == "life":
                value = self._capped(env_idx, value) if each.name.endswith("loss") else value
                entries[env_idx] += value / self._horizon
            else:
                entries[env_idx] = value

    def _capped(self, env_idx: int, loss: float) -> float:
        """No loss of one epoch counts for more than the worst score, which a loss of NaN has too."""
        return float(np.fmin(loss, -SCORES["loss"][0] * self._untrained_loss[env_idx]))


def _at(baseline: BaselineCurve, epoch: int) -> tuple[float, float]:
    """Accuracy (NaN if unknown) and loss after so many epochs; a loss that was no number is infinite."""
    accuracy, loss = baseline.accuracies[epoch], baseline.losses[epoch]
    return math.nan if accuracy is None else accuracy, math.inf if math.isnan(loss) else loss
