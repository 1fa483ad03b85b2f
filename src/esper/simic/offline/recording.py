"""Recorded episodes in memory: everything that was seen, decided and paid, steps end to end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from esper.leyline import ObservationUnits, Settle, SlotConfig
from esper.simic.reward import RewardConfig
from esper.tamiyo import PolicyInputs, SequencePlan
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.controller import layout_fingerprint
from esper.tamiyo.policy import NO_ACTION

BY_STEP = ("observation", "privileged", "mask", "action", "previous_reward", "reward", "log_prob")
"""Tensors with a row for each step."""
BY_EPISODE = ("length", "terminated")
"""Tensors with an entry for each episode."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Whole episodes of any environment. Rows of the first seven are steps, episode after episode."""

    observation: Tensor
    """(step, feature) float32, as the policy saw it."""
    privileged: Tensor
    """(step, feature) float32: what only a critic may see; no features where it was not recorded."""
    mask: Tensor
    """(step, layout.width) bool"""
    action: Tensor
    """(step, head) int64, as executed."""
    previous_reward: Tensor
    """(step,) float32: what the policy was shown of the reward of the step before; 0 at the first."""
    reward: Tensor
    """(step,) float32"""
    log_prob: Tensor
    """(step,) float32: of the whole action, under the policy that chose it; NaN where that is unknown."""
    length: Tensor
    """(episode,) int64, each at least 1."""
    terminated: Tensor
    """(episode,) bool; False where it was cut short: what came after its last step is unknown."""

    def __len__(self) -> int:
        return len(self.length)

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return int(self.length.sum())

    @property
    def first(self) -> Tensor:
        """(episode,) int64: where each episode begins."""
        return self.length.cumsum(0) - self.length

    @property
    def returns(self) -> Tensor:
        """(episode,) float32: sums of rewards, not discounted."""
        return torch.segment_reduce(self.reward, "sum", lengths=self.length)

    def paid(self, gamma: float) -> Tensor:
        """(step,) float32: what the steps before in its episode paid, the sum of gamma^(k - t) r_k over k < t."""
        time = torch.arange(self.steps, device=self.reward.device) - self.first.repeat_interleave(self.length)
        discount = torch.tensor(gamma, dtype=torch.float64, device=self.reward.device) ** time
        paid = self.reward * discount
        until = paid.cumsum(0) - paid  # over all episodes so far
        since = until - until[self.first].repeat_interleave(self.length)
        return (since / discount).float()

    def whole(self, gamma: float) -> Tensor:
        """(episode,) float32: returns as they count at the last step, what was paid before it included."""
        return (self.paid(gamma) + self.reward)[self.last]

    def part(self, episodes: Sequence[int]) -> Self:
        """Some of the episodes, by number."""
        chosen, places = torch.tensor(list(episodes), dtype=torch.int64), self.places(episodes)
        return replace(
            self,
            **{name: getattr(self, name)[places] for name in BY_STEP},
            **{name: getattr(self, name)[chosen] for name in BY_EPISODE},
        )

    def places(self, episodes: Sequence[int]) -> Tensor:
        """(step,) int64: where the steps of some of the episodes are, in this order."""
        chosen = torch.tensor(list(episodes), dtype=torch.int64)
        first, length = self.first[chosen], self.length[chosen]
        begins = length.cumsum(0) - length
        return torch.arange(int(length.sum())) + (first - begins).repeat_interleave(length)

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in (*BY_STEP, *BY_EPISODE)})

    def inputs(self, privileged_features: int = 0) -> PolicyInputs:
        """What a network sees at each step; `privileged_features` are appended for a critic that takes them."""
        before = self.action.roll(1, dims=0)
        before[self.first] = NO_ACTION
        seen = self.observation
        if privileged_features:
            seen = torch.cat((seen, self.privileged), dim=-1)
        return PolicyInputs(seen, before, self.previous_reward)

    def seen_through(self, normalize: Callable[[Tensor], Tensor], privileged_features: int = 0) -> Self:
        """The same with all that `inputs` of so many privileged features shows, as `normalize` returns it."""
        seen = normalize(self.inputs(privileged_features).observation).clone()  # may come from inference mode
        size = self.observation.shape[1]
        privileged = seen[:, size:] if privileged_features else self.privileged
        return replace(self, observation=seen[:, :size], privileged=privileged)

    def plan(self) -> SequencePlan:
        """How a memory replays all episodes at once, each from an empty state."""
        lengths = self.length.cpu().numpy()
        return SequencePlan.build(
            np.zeros(int(lengths.sum()), dtype=np.bool_), lengths, self.observation.device
        )

    @property
    def last(self) -> Tensor:
        """(step,) bool: the last step of its episode."""
        ends = torch.zeros(len(self.reward), dtype=torch.bool, device=self.reward.device)
        ends[self.length.cumsum(0) - 1] = True
        return ends

    @property
    def followed(self) -> Tensor:
        """(step,) bool: what the step led to is known: the next step, or a true end."""
        known = torch.ones(len(self.reward), dtype=torch.bool, device=self.reward.device)
        known[self.length.cumsum(0) - 1] = self.terminated
        return known

    def after(self, value: Tensor) -> Tensor:
        """(step,): of values (step,) that of the state each step led to; 0 beyond the last step of an episode."""
        return value.roll(-1).masked_fill(self.last, 0.0)


class Terms(BaseModel):
    """What the episodes of a data set have in common; only such can be learned from together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slots: tuple[str, ...]
    blueprints: tuple[str, ...]
    retire: bool
    """Whether RETIRE is one of the operations, and fossils are observed."""
    units: ObservationUnits = "absolute"
    """What was observed in."""
    layout: str
    """Fingerprint of the features and choices, see `layout_fingerprint`."""
    privileged: tuple[str, ...]
    """Names of the features that only a critic may see."""
    horizon: int
    """Epochs of an episode."""
    settle: Settle
    """What the final model keeps."""
    reward: RewardConfig
    """What a step pays."""
    shown_reward: RewardConfig
    """What the policy is shown of it, against a forecast."""

    @staticmethod
    def of(
        space: GrowthSpace,
        *,
        horizon: int,
        settle: Settle,
        reward: RewardConfig,
        shown_reward: RewardConfig,
        privileged: tuple[str, ...] = (),
    ) -> "Terms":
        """The terms of episodes over these slots and blueprints, as this version sees them."""
        return Terms(
            slots=space.slot_config.slot_ids,
            blueprints=space.blueprints,
            retire=space.retire,
            units=space.units,
            layout=layout_fingerprint(retire=space.retire, units=space.units),
            privileged=privileged,
            horizon=horizon,
            settle=settle,
            reward=reward,
            shown_reward=shown_reward,
        )

    @property
    def space(self) -> GrowthSpace:
        """Its slots and blueprints."""
        return GrowthSpace(SlotConfig(self.slots), self.blueprints, retire=self.retire, units=self.units)

    def difference(self, other: "Terms") -> str | None:
        """The first field in which others differ, in words; None if they are the same."""
        ours, theirs = self.model_dump(mode="json"), other.model_dump(mode="json")
        for name, value in ours.items():
            other_value = theirs[name]
            if value != other_value and isinstance(value, dict) and isinstance(other_value, dict):
                parts = [part for part in value if value[part] != other_value.get(part)]
                return ", ".join(
                    f"{name} {part} {other_value.get(part)} instead of {value[part]}" for part in parts
                )
            if value != other_value:
                return f"{name} {other_value} instead of {value}"
        return None


class EpisodeRow(BaseModel):
    """Where one episode comes from, and what came of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: str
    """Task instance, as text."""
    host_seed: int
    """Rng seed of the host."""
    policy: str
    """Who decided: a rule, a run's policy, a schedule."""
    esper: str
    """Version of Esper that recorded it."""
    gain: float | None
    """Utility of the final model over the baseline's; None where unknown."""
    rolled_back: str | None = None
    """Why the governor ended it; None if it did not."""


@dataclass(frozen=True, slots=True)
class Recording(Sequences):
    """Whole episodes of growth, with where each comes from."""

    terms: Terms
    rows: tuple[EpisodeRow, ...]
    """One for each episode."""

    @property
    def space(self) -> GrowthSpace:
        """The slots and blueprints of all episodes."""
        return self.terms.space

    @property
    def lesson(self) -> Tensor:
        """(step, head) int64: what a clone is to decide."""
        return self.action

    def part(self, episodes: Sequence[int]) -> Self:
        """Some of the episodes, by number."""
        chosen = Sequences.part(self, episodes)
        return replace(chosen, rows=tuple(self.rows[number] for number in episodes))

    def advised(self, advice: Tensor) -> "Advised":
        """The same with what a teacher would have decided, (step, head)."""
        return Advised(**{each.name: getattr(self, each.name) for each in fields(self)}, advice=advice)

    def split(self, held_out: int) -> tuple[Self, Self]:
        """All but the last `held_out` episodes, and these."""
        if not 0 < held_out < len(self):
            raise ValueError(f"held_out is {held_out}; expected 1..{len(self) - 1} of {len(self)} episodes")
        count = len(self) - held_out
        return self.part(range(count)), self.part(range(count, len(self)))


@dataclass(frozen=True, slots=True)
class Advised(Recording):
    """Episodes that somebody played, with what a teacher would have decided at each step."""

    advice: Tensor
    """(step, head) int64, legal there."""

    @property
    def lesson(self) -> Tensor:
        """(step, head) int64: what the teacher would have decided."""
        return self.advice

    def part(self, episodes: Sequence[int]) -> Self:
        """Some of the episodes, by number."""
        chosen = Recording.part(self, episodes)
        return replace(chosen, advice=self.advice[self.places(episodes)])

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return replace(Recording.to(self, device), advice=self.advice.to(device))


def joined(recordings: Iterable[Recording]) -> Recording:
    """All episodes of recordings that have the same terms, one recording after the other."""
    parts = list(recordings)
    for part in parts[1:]:
        difference = parts[0].terms.difference(part.terms)
        if difference is not None:
            raise ValueError(f"recordings that cannot be joined: {difference}")
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in (*BY_STEP, *BY_EPISODE)}
    rows = tuple(chain.from_iterable(part.rows for part in parts))
    return Recording(**tensors, terms=parts[0].terms, rows=rows)


assert {each.name for each in fields(Sequences)} == {*BY_STEP, *BY_EPISODE}
