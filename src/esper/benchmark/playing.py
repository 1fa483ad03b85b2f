"""Playing a chunk: one arm on the hosts of one instance, from the first epoch to the rows, in a world that logs."""

import copy
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper.benchmark.arms import WAIT, Arm, Hosts, Staging
from esper.benchmark.controllers import open_controller
from esper.benchmark.rows import BenchRow, SeedLife, SeedRow
from esper.leyline import (
    BaselineCurve,
    Beginning,
    DecisionSettings,
    HostProtocol,
    HostsLost,
    HostState,
    HostStep,
    LifecycleOp,
    Settle,
    SlotSnapshot,
    Stage,
    World,
)
from esper.leyline.utility import Counts, utility
from esper.simic.env.cases import CaseList
from esper.simic.env.episodes import Episodes
from esper.simic.env.making import Setting, make_world
from esper.simic.evaluation import Judged, RulePlayer, judge_cases
from esper.simic.held_out import accuracy_on_test
from esper.simic.offline.dataset import episode_bytes
from esper.simic.offline.recorder import EpisodeRecorder
from esper.simic.offline.recording import Recording
from esper.simic.reward import RewardConfig
from esper.tamiyo.rules import Clause, Schedule
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.step import forward
from esper.tolaria.final_report import phase_scores
from esper.tolaria.tasks import Instance


class FlopLedger:
    """Floating point operations of training, forward and backward, counted once for each topology.

    Matrix products and convolutions are counted, as is usual; norms, activations and the optimiser are not.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}

    def epoch(self, host: TrainedHost) -> int:
        """The operations of one epoch of this host as it is now."""
        topology = _topology(host)
        if topology not in self._known:
            self._known[topology] = count_step(host)
        return host.steps_per_epoch * self._known[topology]


def count_step(host: TrainedHost) -> int:
    """The operations of one training step, on a copy of the model: not even the statistics of a batch norm change."""
    twin = copy.copy(host)
    twin.model = copy.deepcopy(host.model)
    batch = torch.arange(host.task.batch, device=host.device) % len(host.data.inputs)
    # as plain matrix products: kernels for attention are counted on some devices and not on others
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss, _ = forward(twin, host.data.inputs[batch], host.data.targets[batch])
        loss.backward()
    return int(counter.get_total_flops())


def _topology(host: TrainedHost) -> tuple[object, ...]:
    """Equal for hosts whose steps cost the same: `host.topology` with blueprints in place of birth numbers."""
    roles: list[object] = []
    for slot, role in zip(host.slots, host.topology, strict=True):
        stage = role[1] if isinstance(role, tuple) else None
        seed = None if slot.seed is None else (slot.snapshot().blueprint, str(slot.life.style), stage)
        roles.append(seed)
    parts = tuple((tuple(each.shape), each.requires_grad) for each in host.model.bare_parameters())
    return (host.data.inputs.shape[1:], host.task.batch, parts, tuple(roles))


@dataclass(slots=True)
class EpisodeLog:
    """One episode of one host so far."""

    clauses: list[Clause] = field(default_factory=list)
    """Every operation and its epoch."""
    validation_accuracies: list[float | None] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    train_accuracies: list[float | None] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    """Of the whole model, before the first epoch, after it, after the second, ..."""
    phase_ends: list[tuple[int, nn.Module]] = field(default_factory=list)
    """The epochs after which the data changed, with the model as it was; only where every phase has a test split."""
    epoch_flops: list[int] = field(default_factory=list)
    """Training operations of each epoch; empty where nothing is trained: the toy."""
    before_settling: tuple[SlotSnapshot, ...] = ()
    parameter_budget: int | None = None
    _seen: dict[tuple[str, int], SeedLife] = field(default_factory=dict)
    """(slot, birth) -> the seed, which ended when it was last seen"""

    @property
    def decisions(self) -> str:
        """The operations as a schedule."""
        return str(Schedule(tuple(self.clauses)))

    @property
    def lives(self) -> tuple[SeedLife, ...]:
        """Every seed that there was, by birth and slot."""
        now = len(self.parameters) - 1
        ordered = sorted(self._seen.values(), key=lambda life: (life.born, life.slot))
        return tuple(replace(life, ended=None) if life.ended == now else life for life in ordered)

    def note_seeds(self, slots: Sequence[SlotSnapshot]) -> None:
        """Take in the seeds that were there in the epoch that was noted last."""
        now = len(self.parameters) - 1
        for slot in slots:
            if slot.blueprint is None:
                continue
            key = slot.name, now - slot.age
            known = self._seen.get(key)
            fossilized = None if known is None else known.fossilized
            if fossilized is None and slot.stage is Stage.FOSSILIZED:
                fossilized = now
            self._seen[key] = SeedLife(slot.name, slot.blueprint, slot.parameters, key[1], now, fossilized)

    def seeds(self, final: HostProtocol) -> tuple[SeedRow, ...]:
        """The blended seeds before settling, and which of them the final model has."""
        left = {slot.name for slot in final.snapshots() if _blended(slot)}
        rows = []
        for slot in filter(_blended, self.before_settling):
            assert slot.alpha_target is not None  # a blended seed has one
            rows.append(
                SeedRow(
                    slot=slot.name,
                    blueprint=str(slot.blueprint),
                    style=str(slot.style),
                    alpha_target=slot.alpha_target,
                    parameters=slot.parameters,
                    fossilized=slot.stage is Stage.FOSSILIZED,
                    kept=slot.name in left,
                    contribution=slot.contribution,
                )
            )
        return tuple(rows)


class MeteredWorld:
    """Another world with a log of each of its hosts (leyline's `World`)."""

    def __init__(self, world: World, size: int, ledger: FlopLedger) -> None:
        self.world = world
        self._logs: list[list[EpisodeLog]] = [[] for _ in range(size)]
        self._ledger = ledger

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """Begin a log with each episode."""
        self.world.begin_many(beginnings)
        for host_idx, _, _ in beginnings:
            self._logs[host_idx].append(EpisodeLog())
            self._note(host_idx)

    def host(self, host_idx: int) -> HostProtocol:
        """The other world's host."""
        return self.world.host(host_idx)

    def first_log(self, host_idx: int) -> EpisodeLog:
        """The log of the first episode in a place; one that ended early is followed by others that only fill it."""
        return self._logs[host_idx][0]

    def log_of(self, host: HostProtocol) -> EpisodeLog:
        """The log of the episode that this host is in."""
        return next(logs[-1] for index, logs in enumerate(self._logs) if self.world.host(index) is host)

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """The same step, in two parts where hosts settle: what they were before is part of the log."""
        for step in steps:
            if step.action is not None and step.action.op is not LifecycleOp.WAIT:
                log = self._logs[step.host_idx][-1]
                log.clauses.append(Clause(len(log.validation_losses) - 1, step.action))
        lost: HostsLost | None = None
        try:
            self.world.step_many([step._replace(settle=None) for step in steps])
        except HostsLost as loss:
            lost = loss
        left = [step for step in steps if lost is None or step.host_idx not in lost.host_idxs]
        for step in left:
            self._note(step.host_idx)
            self._charge(step.host_idx)
            if step.settle is not None:
                self._logs[step.host_idx][-1].before_settling = self.host(step.host_idx).snapshots()
        settling = [step._replace(action=None) for step in left if step.settle is not None]
        if settling:
            self.world.step_many(settling)
        if lost is not None:
            raise lost

    def snapshot(self, host_idxs: Sequence[int]) -> dict[int, HostState]:
        """The other world's; logs are not part of it."""
        return self.world.snapshot(host_idxs)

    def restore(self, states: Mapping[int, HostState]) -> None:
        """Restore the other world's hosts."""
        self.world.restore(states)

    def _note(self, host_idx: int) -> None:
        log, report = self._logs[host_idx][-1], self.host(host_idx).report
        loss, accuracy = report.judged
        log.validation_accuracies.append(accuracy)
        log.validation_losses.append(loss)
        log.train_accuracies.append(report.train_accuracy)
        host = self.host(host_idx)
        log.parameters.append(host.host_parameters + host.added_parameters)
        log.parameter_budget = host.parameter_budget
        log.note_seeds(host.snapshots())
        if isinstance(host, TrainedHost) and host.phase_ended and host.data.source.phases[0].test is not None:
            log.phase_ends.append((host.epoch, copy.deepcopy(host.model)))

    def _charge(self, host_idx: int) -> None:
        log, host = self._logs[host_idx][-1], self.host(host_idx)
        if isinstance(host, TrainedHost):
            log.epoch_flops.append(self._ledger.epoch(host))


def _blended(slot: SlotSnapshot) -> bool:
    """Takes part in what the model computes, and is meant to stay."""
    return slot.stage in (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED) and not slot.fading


_FLOPS = FlopLedger()
"""One for the process, so that each topology is counted once."""


@dataclass(frozen=True, slots=True)
class Product:
    """The final model of an episode."""

    test_accuracy: float | None
    parameters: int
    trained: int | None
    """Of these, how many require gradients; None where nothing is trained."""
    seeds: tuple[SeedRow, ...]


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """Recorded episodes of a chunk as a file of a data set, ready to be written."""

    name: str
    """TERMS-EPISODES.safetensors: names that begin alike are of equal terms, and can be learned from together."""
    content: bytes

    @staticmethod
    def of(recording: Recording) -> "EpisodeFile":
        """The file of a recording; episodes that are played again have the same name."""
        played = "\n".join(f"{row.policy} {row.case} {row.host_seed}" for row in recording.rows)
        both = (recording.terms.model_dump_json(), played)
        name = "-".join(hashlib.sha256(text.encode()).hexdigest()[:12] for text in both)
        return EpisodeFile(f"{name}.safetensors", episode_bytes(recording))


@dataclass(frozen=True, slots=True)
class KnownBaselines:
    """Baseline curves from the rows of `wait` (leyline's `Baselines`)."""

    rows: Mapping[tuple[str, int], BenchRow]
    epochs: int

    def curve(self, case: str, seed: int) -> BaselineCurve:
        """Of one host; where the governor ended it, its last values are repeated."""
        row = self.rows[case, seed]
        missing = self.epochs + 1 - len(row.validation_losses)
        accuracies = (*row.validation_accuracies, *row.validation_accuracies[-1:] * missing)
        return BaselineCurve(accuracies, (*row.validation_losses, *row.validation_losses[-1:] * missing))

    def curves(self, wanted: Sequence[tuple[str, int]]) -> list[BaselineCurve]:
        """One for each (case, rng seed of the host)."""
        return [self.curve(case, seed) for case, seed in wanted]


def play_chunk(arm: Arm, hosts: Hosts) -> list[BenchRow]:
    """Play an arm; returns one row per seed, in their order. What would repeat another arm's episode is copied."""
    rows, _ = play_recorded(arm, hosts, record=False)
    return rows


def play_recorded(
    arm: Arm, hosts: Hosts, *, record: bool = True
) -> tuple[list[BenchRow], EpisodeFile | None]:
    """The same, and the episodes to learn from; None where none was played, or the arm does more than act."""
    copied, file = arm.copied(hosts), None
    rows = {seed: replace(row, arm=arm.name, member=hosts.member) for seed, row in copied.items()}
    left = tuple(seed for seed in hosts.seeds if seed not in rows)
    if left:
        played, file = _play(arm, replace(hosts, seeds=left), record=record)
        rows |= {row.seed: arm.settled(hosts, row) for row in played}
    return [rows[seed] for seed in hosts.seeds], file


def _play(arm: Arm, hosts: Hosts, *, record: bool) -> tuple[list[BenchRow], EpisodeFile | None]:
    with ExitStack() as context:
        staging = arm.stage(hosts, context)
        setting = make_world(hosts.suite, len(hosts.seeds), device=hosts.device)
        world = MeteredWorld(setting.world, len(hosts.seeds), _FLOPS)
        episodes = _episodes(world, setting, staging, hosts)
        cases = staging.cases or (hosts.instance,) * len(hosts.seeds)
        wanted = list(zip(cases, hosts.host_seeds, strict=True))
        recorder = None
        if record and staging.only_acts:
            recorder = episodes.watcher = EpisodeRecorder(episodes, policy=_who(arm, hosts))
        began = time.perf_counter()
        judged = judge_cases(
            staging.player, episodes, wanted, look=lambda host: _product(world, host, setting.counts)
        )
        seconds = (time.perf_counter() - began) / len(wanted)
    waited = hosts.known.get((WAIT, 0, hosts.instance))
    bare = waited[0].host_parameters if waited else world.host(0).host_parameters
    rows = [
        _row(arm.name, hosts, seed, one, world.first_log(place), bare=bare, setting=setting, seconds=seconds)
        for place, (seed, one) in enumerate(zip(hosts.seeds, judged, strict=True))
    ]
    recording = None if recorder is None else recorder.take(firsts=len(wanted))
    return rows, None if recording is None else EpisodeFile.of(recording)


def _who(arm: Arm, hosts: Hosts) -> str:
    return arm.name if arm.members == 1 else f"{arm.name} {hosts.member}"


def _episodes(world: MeteredWorld, setting: Setting, staging: Staging, hosts: Hosts) -> Episodes:
    """Horizon and rent are the task's own for every arm; a controller observes what it did in its training."""
    settle: Settle = "worth"
    decisions = DecisionSettings()
    shown = reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    if staging.controller is not None:
        controller = open_controller(staging.controller, hosts.suite)
        config = controller.config
        shown = config.reward(task_rent=setting.rent, task_counts=controller.counts)
        reward = replace(shown, rent=setting.rent, counts=setting.counts)
        waited = hosts.known[WAIT, 0, hosts.instance]
        rows = {(row.instance, row.host_seed): row for row in waited}
        setting = replace(setting, space=controller.space, baselines=KnownBaselines(rows, setting.horizon))
        settle, decisions = config.settle, config.decisions
    elif isinstance(staging.player, RulePlayer):
        decisions = staging.player.decisions(len(hosts.seeds))
    setting = replace(setting, world=world, cases=CaseList((hosts.instance,)))
    return setting.episodes(
        reward=reward, shown_reward=shown, on_illegal="noop", settle=settle, decisions=decisions
    )


def _product(world: MeteredWorld, host: HostProtocol, counts: Counts) -> Product:
    log, parameters = world.log_of(host), host.host_parameters + host.added_parameters
    tested = _life_on_test(host, log) if counts == "life" else accuracy_on_test(host)
    trained = None
    if isinstance(host, TrainedHost):
        trained = sum(each.numel() for each in host.model.parameters() if each.requires_grad)
    return Product(tested, parameters, trained, log.seeds(host))


def _life_on_test(host: HostProtocol, log: EpisodeLog) -> float:
    """Test accuracy of the model at the end of each phase that it lived, mean over the epochs."""
    assert isinstance(host, TrainedHost)  # the toy has no lives
    ends = [*log.phase_ends, (host.epoch, host.model)]
    scores = phase_scores([model for _, model in ends], host.data.source)
    epochs = np.diff([0, *(epoch for epoch, _ in ends)])
    return float(np.average([score.accuracy for score in scores], weights=epochs))


def _row(
    arm: str,
    hosts: Hosts,
    seed: int,
    judged: Judged[Product],
    log: EpisodeLog,
    *,
    bare: int,
    setting: Setting,
    seconds: float,
) -> BenchRow:
    summary, product, rent = judged.summary, judged.seen, setting.rent
    added = None if product is None else product.parameters - bare
    accuracy, life_added = summary.validation_accuracy, None
    if setting.counts == "life" and product is not None:
        # the last epoch is the product's: settling came after it
        life_added = float(np.mean([*log.parameters[1:-1], product.parameters])) - bare
    return BenchRow(
        suite=hosts.suite,
        instance=hosts.instance,
        arm=arm,
        member=hosts.member,
        seed=seed,
        host_seed=summary.host_seed,
        test_accuracy=None if product is None else product.test_accuracy,
        validation_accuracy=accuracy,
        utility=_worth(log, accuracy, added if life_added is None else life_added, bare, setting),
        rent=rent,
        host_parameters=bare,
        added_parameters=added,
        training_flops=float(sum(log.epoch_flops)) if log.epoch_flops else None,
        wall_seconds=seconds,
        epochs=summary.epochs,
        decisions=log.decisions,
        rolled_back=summary.rolled_back or ("lost" if summary.lost else None),
        seeds=() if product is None else product.seeds,
        validation_accuracies=tuple(log.validation_accuracies),
        validation_losses=tuple(log.validation_losses),
        train_accuracies=tuple(log.train_accuracies),
        epoch_flops=tuple(map(float, log.epoch_flops)),
        life_added=life_added,
        lives=log.lives,
        epoch_parameters=tuple(each - bare for each in log.parameters),
        parameter_budget=None if log.parameter_budget is None else _budget(hosts.instance, bare),
        trained_parameters=None if product is None else product.trained,
    )


def _budget(instance: str, bare: int) -> int:
    """Parameters that may be added to the bare host, also where an arm's own host is a wider one."""
    return int((Instance.parse(instance).cap or 0.0) * bare)


def _worth(
    log: EpisodeLog, accuracy: float | None, added: float | None, bare: int, setting: Setting
) -> float | None:
    """The utility on validation of the product, or of the life; None where there is no product."""
    if accuracy is None or added is None:
        return None
    if setting.counts == "life":
        lived = [*log.validation_accuracies[1:-1], accuracy]
        accuracy = float(np.mean([each for each in lived if each is not None]))
    return utility(accuracy, setting.rent, added, bare)
