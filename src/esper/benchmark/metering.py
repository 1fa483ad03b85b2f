"""A world that logs the decisions, the measurements and the cost of every host. It changes nothing."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper.benchmark.rows import SeedLife, SeedRow
from esper.leyline import (
    Beginning,
    HostProtocol,
    HostsLost,
    HostState,
    HostStep,
    LifecycleOp,
    SlotSnapshot,
    Stage,
    World,
)
from esper.tamiyo.rules import Clause, Schedule
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.step import forward


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
