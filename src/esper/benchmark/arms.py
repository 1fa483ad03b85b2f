"""The arms of a benchmark: what decides, and which episodes of other arms must have been played before.

Every arm meets the same hosts through the same environment. Does a controller close a loop? Ablated arms are last:

    without_memory  its memory is empty before every decision
    without_return  it may neither prune nor retire: what it grew stays
    without_change  from some epoch on it is shown the host as it was then, and only its seeds as they are

A copy that repeats its decisions on another instance is the arm `blind`.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from esper.benchmark.controllers import ControllerFile, open_controller
from esper.benchmark.matching import BlindPolicy, RandomMatchedPolicy, ScratchPlayer, from_birth, widened_case
from esper.benchmark.rows import BenchRow
from esper.benchmark.suites import host_seed
from esper.leyline import LifecycleOp, operations
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import LearnedPlayer, Player, Rewards, RulePlayer
from esper.tamiyo import Actor
from esper.tamiyo.actions import Actions, GrowthSpace
from esper.tamiyo.features import host_features
from esper.tamiyo.rules import RULE_NAMES, RulePolicy, SchedulePolicy, rule_policy

WAIT = "wait"
RULES = tuple(name for name in RULE_NAMES if name != WAIT)
SBS, SBS_HINDSIGHT, VBS = "sbs", "sbs_hindsight", "vbs"
LEARNED = "learned"
MATCHED = ("static", "from_birth", "from_scratch", "random_matched")
BLIND = "blind"

Group = tuple[str, int, str]
"""(arm, member, instance): episodes that are played together."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """A chunk of episodes played side by side: hosts of one instance, and the episodes of other arms on them."""

    suite: str
    instance: str
    seeds: tuple[int, ...]
    known: Mapping[Group, Sequence[BenchRow]] = field(default_factory=dict)
    """The groups that the arm needs, one row per seed."""
    member: int = 0
    """Number of the controller that plays."""
    device: str = "cpu"
    """Where the hosts are trained."""

    @property
    def host_seeds(self) -> tuple[int, ...]:
        """The hosts' rng seeds."""
        return tuple(host_seed(self.instance, seed) for seed in self.seeds)

    def row(self, arm: str, member: int, seed: int) -> BenchRow:
        """A known episode on one of these hosts."""
        return next(row for row in self.known[arm, member, self.instance] if row.seed == seed)


@dataclass(frozen=True, slots=True)
class Staging:
    """How an arm meets its hosts."""

    player: Player
    cases: tuple[str, ...] | None = None
    """One per host; None is the instance for all of them."""
    controller: ControllerFile | None = None
    """The controller whose environment it is played in; None is the plain environment."""

    @property
    def only_acts(self) -> bool:
        """Whether all that happens to its hosts are actions in the suite's own cases: it can then be learned from."""
        return self.cases is None and isinstance(self.player, RulePlayer | LearnedPlayer)


class Arm(ABC):
    """One competitor. Unless a subclass says otherwise it has one member and needs no other arm."""

    __slots__ = ()
    name: str
    trains: ClassVar[bool] = True
    """Whether it trains hosts of its own; where it does not, its episodes are there as soon as what it needs."""

    @property
    def members(self) -> int:
        """How many controllers play it."""
        return 1

    @property
    @abstractmethod
    def identity(self) -> str:
        """Changes when the arm would play otherwise: rows of one and the other are not mixed."""

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        """The groups that must have been played before it is played on `instance`."""
        del instance, instances
        return ()

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        """seed -> the episode of another arm that this one's would repeat, number for number."""
        del hosts
        return {}

    def settled(self, hosts: Hosts, row: BenchRow) -> BenchRow:
        """The row of an episode that was played; an arm may know better what it is worth."""
        del hosts
        return row

    @abstractmethod
    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        """Prepare to play; `context` closes what is only needed while the episodes are played."""


@dataclass(frozen=True, slots=True)
class RuleArm(Arm):
    """A rule."""

    name: str

    @property
    def identity(self) -> str:
        return "rule"

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context

        def policy(env_idx: int) -> RulePolicy:
            return rule_policy(self.name, rng=np.random.default_rng(hosts.host_seeds[env_idx]))

        return Staging(RulePlayer(policy))


@dataclass(frozen=True, slots=True)
class ScheduleArm(Arm):
    """An open-loop schedule for each instance: the same one everywhere (SBS), or the best for each (VBS)."""

    name: str
    schedules: Mapping[str, str]
    """instance -> schedule; an empty one waits"""
    chosen_of: int | None = None
    """How many schedules were tried to choose these, where that is what the arm is about."""

    @property
    def identity(self) -> str:
        text = "\n".join(f"{instance} {schedule}" for instance, schedule in sorted(self.schedules.items()))
        return f"schedules {zlib.crc32(text.encode()):08x}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del instances
        return () if self.schedules[instance] else ((WAIT, 0, instance),)

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        if self.schedules[hosts.instance]:
            return {}
        return {seed: hosts.row(WAIT, 0, seed) for seed in hosts.seeds}

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        schedule = self.schedules[hosts.instance]
        return Staging(RulePlayer(lambda _: SchedulePolicy(schedule)))


@dataclass(frozen=True, slots=True)
class LearnedArm(Arm):
    """Trained controllers, one member for each training seed. They take the likeliest action."""

    name: str
    controllers: tuple[ControllerFile, ...]
    training_epochs: float | None = None
    """Epochs of hosts that training took, mean over the members; None where that is not known."""

    @property
    def members(self) -> int:
        return len(self.controllers)

    @property
    def identity(self) -> str:
        return f"controllers {', '.join(file.digest for file in self.controllers)}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        """Waiting: the reward that a controller observes may be measured against it."""
        del instances
        return ((WAIT, 0, instance),)

    def settled(self, hosts: Hosts, row: BenchRow) -> BenchRow:
        """An episode without a decision is the waiting host's, whatever the device's arithmetic made of it."""
        waited = hosts.row(WAIT, 0, row.seed)
        return row if row.decisions else replace(waited, arm=row.arm, member=row.member)

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        file = self.controllers[hosts.member]
        return Staging(LearnedPlayer(open_controller(file, hosts.suite).actor), controller=file)


@dataclass(frozen=True, slots=True)
class MatchedArm(Arm):
    """A control made from what the reference arm kept on the same host; `matching` explains the names.

    With several members in the reference, host seed s is matched to member s modulo their number.
    """

    name: str
    reference: str
    reference_members: int

    @property
    def identity(self) -> str:
        return f"matched to {self.reference} of {self.reference_members}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del instances
        others = tuple((self.reference, each, instance) for each in range(self.reference_members))
        return ((WAIT, 0, instance), *others)

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        """Where nothing was kept there is nothing to match: the host waits."""
        return {seed: hosts.row(WAIT, 0, seed) for seed in hosts.seeds if not self._matched(hosts, seed).kept}

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        matched = [self._matched(hosts, seed) for seed in hosts.seeds]
        if self.name == "static":
            sizes = {row.parameters for row in matched if row.parameters is not None}
            wide = {size: context.enter_context(widened_case(hosts.instance, size)) for size in sorted(sizes)}
            cases = tuple(
                hosts.instance if row.parameters is None else wide[row.parameters] for row in matched
            )
            return Staging(RulePlayer(lambda _: rule_policy(WAIT)), cases)
        if self.name == "from_scratch":
            return Staging(ScratchPlayer([row.kept for row in matched]))
        if self.name == "from_birth":
            return Staging(RulePlayer(lambda env: SchedulePolicy(from_birth(matched[env].kept))))
        return Staging(RulePlayer(lambda env: RandomMatchedPolicy(matched[env].kept, hosts.host_seeds[env])))

    def _matched(self, hosts: Hosts, seed: int) -> BenchRow:
        return hosts.row(self.reference, seed % self.reference_members, seed)


@dataclass(frozen=True, slots=True)
class BlindArm(Arm):
    """The reference's decisions on the next instance of the list, repeated here.

    With several members in the reference, host seed s copies member s modulo their number.
    """

    reference: str
    reference_members: int
    name: str = BLIND

    @property
    def identity(self) -> str:
        return f"copies {self.reference} of {self.reference_members}"

    def needs(self, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        donor = instances[(instances.index(instance) + 1) % len(instances)]
        return tuple((self.reference, each, donor) for each in range(self.reference_members))

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        donated = {(row.member, row.seed): row for rows in hosts.known.values() for row in rows}
        decisions = [donated[seed % self.reference_members, seed].decisions for seed in hosts.seeds]
        return Staging(RulePlayer(lambda env: BlindPolicy(decisions[env])))


# A controller without one thing that it has


WITHOUT_MEMORY, WITHOUT_RETURN, WITHOUT_CHANGE = "without_memory", "without_return", "without_change"
ABLATIONS = (WITHOUT_MEMORY, WITHOUT_RETURN, WITHOUT_CHANGE)
SHOWN_EPOCHS = 5
"""Epochs after which `without_change` shows nothing new of the host; no change of a drawn stream is earlier."""
_OF_GROWTH = ("time_left", "epochs_left", "added_parameters", "budget_left", "last_", "fossil_", "decayed_")
"""Beginnings of the features of a host that say what was grown, or how late it is: these stay as they are."""


class AblatedPlayer:
    """A policy network, greedy, that lacks something."""

    def __init__(self, actor: Callable[[int], Actor], ablation: str) -> None:
        if ablation not in ABLATIONS:
            raise ValueError(f"ablation is {ablation!r}; expected one of {', '.join(ABLATIONS)}")
        self._make, self._actor, self._ablation = actor, actor(1), ablation
        self._decided = 0
        self._held: tuple[Tensor, Tensor] | None = None

    def begin(self, num_envs: int) -> None:
        """Begin with an empty memory."""
        self._actor, self._decided, self._held = self._make(num_envs), 0, None

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """The most probable actions (env, head) of those that are left to it."""
        episodes.observe()
        masks = torch.from_numpy(episodes.masks().copy())
        flat, reward = episodes.observer.flat.clone(), torch.from_numpy(rewards).float()
        if self._ablation == WITHOUT_MEMORY:
            self._actor.reset()
        elif self._ablation == WITHOUT_RETURN:
            masks[:, _returning(episodes.space)] = False
        else:
            flat, reward = self._unmoved(flat, reward, episodes.space)
        self._decided += 1
        actions: Actions = self._actor.act(flat, masks, reward=reward).cpu().numpy()
        return actions

    def _unmoved(self, flat: Tensor, reward: Tensor, space: GrowthSpace) -> tuple[Tensor, Tensor]:
        """The observation (env, feature) and the rewards (env,) with what moves with the data held still."""
        moving = moving_features(space)
        if self._held is None or self._decided <= SHOWN_EPOCHS:
            self._held = flat[:, moving], reward
            return flat, reward
        flat[:, moving], reward = self._held
        return flat, reward


def _returning(space: GrowthSpace) -> list[int]:
    """Places in a flat mask, whose first head is the operation, of those that give something back."""
    known = operations(retire=space.retire)
    return [known.index(op) for op in (LifecycleOp.PRUNE, LifecycleOp.RETIRE) if op in known]


def moving_features(space: GrowthSpace) -> list[int]:
    """Places in a flat observation of all that the data move in a host: samples, levels, trends, gaps, gradients."""
    return [place for place, name in enumerate(host_features(space)) if not name.startswith(_OF_GROWTH)]


@dataclass(frozen=True, slots=True)
class AblatedArm(LearnedArm):
    """Trained controllers that lack something, one member for each training seed."""

    ablation: str = WITHOUT_MEMORY

    @property
    def identity(self) -> str:
        return f"controllers {', '.join(file.digest for file in self.controllers)}, {self.ablation}"

    def stage(self, hosts: Hosts, context: ExitStack) -> Staging:
        del context
        file = self.controllers[hosts.member]
        return Staging(
            AblatedPlayer(open_controller(file, hosts.suite).actor, self.ablation), controller=file
        )
