"""The arms of a benchmark: who decides, and what of other arms' episodes must be known before.

Every arm meets the same hosts through the same environment. Arms that match another one (static, from_birth, ...) are
made from what that one kept on the very same host.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from esper.benchmark.controllers import ControllerFile, open_controller
from esper.benchmark.rows import BenchRow, SeedRow
from esper.benchmark.static import widened_case
from esper.kasmina import GrowingModel
from esper.leyline import ActionSpec, BlueprintCard, LifecycleOp, Situation, Stage, Style
from esper.simic.env.episodes import Episodes
from esper.simic.env.spaces import Actions
from esper.simic.evaluation import LearnedPlayer, Player, RulePlayer
from esper.tamiyo.rules import RULE_POLICIES, Clause, RulePolicy, Schedule, SchedulePolicy, rule_policy
from esper.tamiyo.rules.reading import refusal
from esper.tolaria.engine.host import TrainedHost

# Policies that only a benchmark needs: growth at random but of the same size, and another episode's decisions.


_NEAREST = 3
"""A random seed is one of so many that are nearest in size."""


def grown_at(
    seed: SeedRow, epoch: int, *, slot: str | None = None, blueprint: str | None = None
) -> list[Clause]:
    """Grow a seed like this one from `epoch` on: as soon as each step is legal, and kept as it was kept."""
    place = slot or seed.slot
    germinate = ActionSpec(
        LifecycleOp.GERMINATE,
        place,
        blueprint or seed.blueprint,
        style=Style(seed.style),
        alpha_target=seed.alpha_target,
    )
    clauses = [Clause(epoch, germinate), Clause(epoch + 1, ActionSpec(LifecycleOp.ADVANCE, place))]
    if seed.fossilized:
        clauses.append(Clause(epoch + 2, ActionSpec(LifecycleOp.FOSSILIZE, place)))
    return clauses


def from_birth(seeds: Sequence[SeedRow]) -> Schedule:
    """All of them from the first epoch on. Those that become fossils come first: they make room for the others."""
    ordered = sorted(seeds, key=lambda seed: not seed.fossilized)
    return Schedule(tuple(clause for seed in ordered for clause in grown_at(seed, 0)))


class RandomMatchedPolicy:
    """As many seeds as another episode kept, of about the same sizes: where, when and of which kind is random."""

    __slots__ = ("_inner", "_rng_seed", "_seeds")

    def __init__(self, seeds: Sequence[SeedRow], rng_seed: int) -> None:
        self._seeds, self._rng_seed = tuple(seeds), rng_seed
        self.reset()

    def reset(self) -> None:
        self._inner: SchedulePolicy | None = None

    def act(self, situation: Situation) -> ActionSpec:
        if self._inner is None:
            self._inner = SchedulePolicy(self._drawn(situation))
        return self._inner.act(situation)

    def _drawn(self, situation: Situation) -> Schedule:
        rng = np.random.default_rng((0x4A7D, self._rng_seed))
        slots = [situation.slots[place].name for place in rng.permutation(len(situation.slots))]
        last = max(
            situation.signals.horizon - 6, 1
        )  # late enough for anything, early enough to be blended in
        clauses: list[Clause] = []
        for seed, slot in zip(self._seeds, slots, strict=False):
            near = nearest_in_size(situation.cards[slot], seed.parameters)
            card = near[int(rng.integers(len(near)))]
            clauses += grown_at(seed, int(rng.integers(last)), slot=slot, blueprint=card.name)
        return Schedule(tuple(clauses))


def nearest_in_size(cards: Sequence[BlueprintCard], parameters: int) -> list[BlueprintCard]:
    """By the ratio of their parameters."""
    return sorted(cards, key=lambda card: abs(math.log((card.parameters + 1) / (parameters + 1))))[:_NEAREST]


class BlindPolicy:
    """What was done in another episode, at the same epochs; what is illegal here is skipped."""

    __slots__ = ("_by_epoch",)

    def __init__(self, decisions: str) -> None:
        self._by_epoch = {clause.epoch: clause.action for clause in Schedule.parse(decisions).clauses}

    def reset(self) -> None:
        pass

    def act(self, situation: Situation) -> ActionSpec:
        action = self._by_epoch.get(situation.signals.epoch, ActionSpec())
        return action if refusal(action, situation) is None else ActionSpec()


# The final architecture from scratch: a grown network's seeds in place before the first step, trained as one.


def build_in(model: GrowingModel, seed: SeedRow) -> None:
    """A seed as a part of the host from the start: at its alpha, with the host's learning rate.

    No rule allows that in a run, so its life is written by hand.
    """
    model.germinate(seed.slot, seed.blueprint, style=seed.style, alpha_target=seed.alpha_target)
    slot = model.slots[seed.slot]
    slot.life.stage, slot.life.alpha = Stage.HOLDING, seed.alpha_target
    slot.life.epochs_in_stage = slot.life.rules.min_holding_epochs
    model.fossilize(seed.slot)
    slot.sync_alpha()


class ScratchPlayer:
    """Builds in what each env's other episode kept, and then waits."""

    def __init__(self, kept: Sequence[Sequence[SeedRow]]) -> None:
        self._kept = kept

    def begin(self, num_envs: int) -> None:
        if num_envs != len(self._kept):
            raise ValueError(f"num_envs is {num_envs}; expected {len(self._kept)}")

    def act(self, episodes: Episodes, rewards: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Actions:
        del rewards
        for env_idx, seeds in enumerate(self._kept):
            host = episodes.host(env_idx)
            if episodes.episode(env_idx).epoch == 0 and isinstance(host, TrainedHost):
                for seed in seeds:
                    build_in(host.model, seed)
                host.lay_out_seeds()
        return np.zeros((episodes.num_envs, episodes.space.action_layout.head_count), dtype=np.int64)


WAIT = "wait"
RULES = tuple(name for name in RULE_POLICIES if name not in (WAIT, "schedule"))
MATCHED = ("static", "from_birth", "from_scratch", "random_matched")
BLIND, SBS, VBS = "blind", "sbs", "vbs"

Group = tuple[str, int, str]
"""(arm, member, instance): episodes that are played together."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of one instance that an arm is to meet, and what it may know of other arms' episodes on them."""

    instance: str
    seeds: tuple[int, ...]
    host_seeds: tuple[int, ...]
    known: Mapping[Group, Sequence[BenchRow]]
    """What the arm needs, by group, one row per seed."""
    suite: str
    """That they are of."""


@dataclass(frozen=True, slots=True)
class Staging:
    """How an arm meets its hosts."""

    player: Player
    cases: tuple[str, ...]
    """One per host; another than the instance where the host itself is another."""
    controller: ControllerFile | None = None
    """Whose environment it is to be played in; None is the plain one."""


class Arm(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def members(self) -> int: ...

    @property
    def identity(self) -> str:
        """Changes when the arm would play otherwise: rows of one and the other are not mixed."""
        ...

    def needs(self, member: int, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        """What must have been played before."""
        ...

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        """seed -> the episode of another arm that this one's would repeat, number for number."""
        ...

    def stage(self, hosts: Hosts, member: int, context: ExitStack) -> Staging:
        """`context` closes what is only needed while the episodes are played."""
        ...


@dataclass(frozen=True, slots=True)
class RuleArm:
    """A policy without learning."""

    name: str
    members: int = 1

    @property
    def identity(self) -> str:
        return "rule"

    def needs(self, member: int, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del member, instance, instances
        return ()

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        del hosts
        return {}

    def stage(self, hosts: Hosts, member: int, context: ExitStack) -> Staging:
        del member, context

        def policy(env_idx: int) -> RulePolicy:
            if self.name == "random":
                return rule_policy("random", rng=np.random.default_rng(hosts.host_seeds[env_idx]))
            return rule_policy(self.name)

        return Staging(RulePlayer(policy), (hosts.instance,) * len(hosts.seeds))


@dataclass(frozen=True, slots=True)
class ScheduleArm:
    """An open-loop schedule for each instance: the same one everywhere (SBS), or the best for each (VBS)."""

    name: str
    schedules: Mapping[str, str]
    """instance -> schedule; an empty one waits"""
    members: int = 1

    @property
    def identity(self) -> str:
        text = "\n".join(f"{instance} {schedule}" for instance, schedule in sorted(self.schedules.items()))
        return f"schedules {zlib.crc32(text.encode()):08x}"

    def needs(self, member: int, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del member, instances
        return () if self.schedules[instance] else ((WAIT, 0, instance),)

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        waits = not self.schedules[hosts.instance]
        return _by_seed(hosts.known[WAIT, 0, hosts.instance]) if waits else {}

    def stage(self, hosts: Hosts, member: int, context: ExitStack) -> Staging:
        del member, context
        schedule = self.schedules[hosts.instance]
        return Staging(RulePlayer(lambda _: SchedulePolicy(schedule)), (hosts.instance,) * len(hosts.seeds))


@dataclass(frozen=True, slots=True)
class LearnedArm:
    """Trained controllers, one member for each training seed. Greedy."""

    name: str
    controllers: tuple[ControllerFile, ...]

    @property
    def members(self) -> int:
        return len(self.controllers)

    @property
    def identity(self) -> str:
        return f"controllers {', '.join(file.digest for file in self.controllers)}"

    def needs(self, member: int, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del member, instances
        return ((WAIT, 0, instance),)  # the reward that it sees is measured against it

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        del hosts
        return {}

    def stage(self, hosts: Hosts, member: int, context: ExitStack) -> Staging:
        del context
        file = self.controllers[member]
        player = LearnedPlayer(open_controller(file, hosts.suite).actor)
        return Staging(player, (hosts.instance,) * len(hosts.seeds), file)


@dataclass(frozen=True, slots=True)
class MatchedArm:
    """A control made from what the reference arm kept on the same host.

    static          the bare host, wider from the beginning, with as many parameters
    from_birth      the same seeds, grown from the first epoch on
    from_scratch    the same architecture, built in before the first step and trained as one
    random_matched  as many seeds of about the same sizes: where, when and which kind at random

    With several members in the reference, host seed s is matched to member s modulo their number.
    """

    name: str
    reference: str
    reference_members: int
    members: int = 1

    @property
    def identity(self) -> str:
        return f"matched to {self.reference} of {self.reference_members}"

    def needs(self, member: int, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del member, instances
        others = tuple((self.reference, each, instance) for each in range(self.reference_members))
        return ((WAIT, 0, instance), *others)

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        """Where nothing was kept there is nothing to match."""
        waited = _by_seed(hosts.known[WAIT, 0, hosts.instance])
        return {seed: waited[seed] for seed in hosts.seeds if not self._matched(hosts, seed).kept}

    def stage(self, hosts: Hosts, member: int, context: ExitStack) -> Staging:
        del member
        matched = [self._matched(hosts, seed) for seed in hosts.seeds]
        cases = (hosts.instance,) * len(hosts.seeds)
        if self.name == "static":
            sizes = [row.parameters for row in matched]
            wide = {
                size: context.enter_context(widened_case(hosts.instance, size))
                for size in dict.fromkeys(sizes)
                if size is not None
            }
            cases = tuple(hosts.instance if size is None else wide[size] for size in sizes)
            return Staging(RulePlayer(lambda _: rule_policy(WAIT)), cases)
        if self.name == "from_scratch":
            return Staging(ScratchPlayer([row.kept for row in matched]), cases)
        if self.name == "from_birth":
            return Staging(RulePlayer(lambda env: SchedulePolicy(from_birth(matched[env].kept))), cases)
        return Staging(
            RulePlayer(lambda env: RandomMatchedPolicy(matched[env].kept, hosts.host_seeds[env])), cases
        )

    def _matched(self, hosts: Hosts, seed: int) -> BenchRow:
        member = seed % self.reference_members
        return _by_seed(hosts.known[self.reference, member, hosts.instance])[seed]


@dataclass(frozen=True, slots=True)
class BlindArm:
    """What the reference did on the next instance of the list, done here: decisions that did not look.

    With several members in the reference, host seed s copies member s modulo their number.
    """

    reference: str
    reference_members: int
    name: str = BLIND
    members: int = 1

    @property
    def identity(self) -> str:
        return f"copies {self.reference} of {self.reference_members}"

    def needs(self, member: int, instance: str, instances: Sequence[str]) -> tuple[Group, ...]:
        del member
        donor = instances[(instances.index(instance) + 1) % len(instances)]
        return tuple((self.reference, each, donor) for each in range(self.reference_members))

    def copied(self, hosts: Hosts) -> dict[int, BenchRow]:
        del hosts
        return {}

    def stage(self, hosts: Hosts, member: int, context: ExitStack) -> Staging:
        del member, context
        donated = {(row.member, row.seed): row for rows in hosts.known.values() for row in rows}
        decisions = [donated[seed % self.reference_members, seed].decisions for seed in hosts.seeds]
        return Staging(
            RulePlayer(lambda env: BlindPolicy(decisions[env])), (hosts.instance,) * len(hosts.seeds)
        )


def _by_seed(rows: Sequence[BenchRow]) -> dict[int, BenchRow]:
    return {row.seed: row for row in rows}
