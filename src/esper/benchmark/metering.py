"""A world that keeps a log of every host: what was done, what was measured, what it cost. It changes nothing."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.utils.flop_counter import FlopCounterMode

from esper.benchmark.rows import SeedRow
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

# What a training step costs, counted once for each topology.


Topology = tuple[object, ...]


class FlopLedger:
    """Forward and backward of one training step, in floating point operations.

    Matrix products and convolutions are counted, as is usual; norms, activations and the optimiser are not.
    """

    def __init__(self) -> None:
        self._known: dict[Topology, int] = {}

    def epoch(self, host: TrainedHost) -> int:
        """Of an epoch of this host as it stands."""
        topology = _topology(host)
        if topology not in self._known:
            self._known[topology] = count_step(host)
        return host.steps_per_epoch * self._known[topology]


def count_step(host: TrainedHost) -> int:
    """On a copy of the model: nothing of the host moves, not even the statistics of a batch norm."""
    twin = copy.copy(host)
    twin.model = copy.deepcopy(host.model)
    batch = torch.arange(host.task.batch, device=host.device) % len(host.data.inputs)
    with FlopCounterMode(display=False) as counter:
        loss, _ = forward(twin, host.data.inputs[batch], host.data.targets[batch])
        loss.backward()
    return int(counter.get_total_flops())


def _topology(host: TrainedHost) -> Topology:
    shapes = tuple(tuple(parameter.shape) for parameter in host.model.host.parameters())
    # What `host.topology` tells apart by birth number is told apart by blueprint here.
    roles = tuple(
        None if slot.seed is None else (slot.snapshot().blueprint, str(slot.life.style), role)
        for slot, role in zip(host.slots, host.topology, strict=True)
        for role in ((role[1] if isinstance(role, tuple) else None),)
    )
    return (host.data.inputs.shape[1:], host.task.batch, shapes, roles)


@dataclass(slots=True)
class EpisodeLog:
    """One episode of one host so far."""

    clauses: list[Clause] = field(default_factory=list)
    validation_accuracies: list[float | None] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    train_accuracies: list[float | None] = field(default_factory=list)
    flops: int | None = 0
    """None where nothing is trained: the toy."""
    before_settling: tuple[SlotSnapshot, ...] = ()

    @property
    def decisions(self) -> str:
        return str(Schedule(tuple(self.clauses)))

    def seeds(self, product: HostProtocol) -> tuple[SeedRow, ...]:
        """The blended seeds before settling, and which of them the product has."""
        left = {slot.name for slot in product.snapshots() if _blended(slot)}
        return tuple(
            SeedRow(
                slot=slot.name,
                blueprint=str(slot.blueprint),
                style=str(slot.style),
                alpha_target=_known(slot.alpha_target),
                parameters=slot.parameters,
                fossilized=slot.stage is Stage.FOSSILIZED,
                kept=slot.name in left,
                contribution=slot.contribution,
            )
            for slot in self.before_settling
            if _blended(slot)
        )


class MeteredWorld:
    """Another world with a log of each of its hosts (leyline's `World`)."""

    def __init__(self, world: World, size: int, ledger: FlopLedger) -> None:
        self.world = world
        self._logs: list[list[EpisodeLog]] = [[] for _ in range(size)]
        self._ledger = ledger

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        self.world.begin_many(beginnings)
        for host_idx, _, _ in beginnings:
            self._logs[host_idx].append(EpisodeLog())
            self._note(host_idx)

    def host(self, host_idx: int) -> HostProtocol:
        return self.world.host(host_idx)

    def first_log(self, host_idx: int) -> EpisodeLog:
        """Of the first episode in a place; one that ended early is followed by others that only keep the place."""
        return self._logs[host_idx][0]

    def log_of(self, host: HostProtocol) -> EpisodeLog:
        """Of the episode that this host is in."""
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
        return self.world.snapshot(host_idxs)

    def restore(self, states: Mapping[int, HostState]) -> None:
        self.world.restore(states)

    def _note(self, host_idx: int) -> None:
        log, report = self._logs[host_idx][-1], self.host(host_idx).report
        log.validation_accuracies.append(report.validation_accuracy)
        log.validation_losses.append(report.validation_loss)
        log.train_accuracies.append(report.train_accuracy)

    def _charge(self, host_idx: int) -> None:
        log, host = self._logs[host_idx][-1], self.host(host_idx)
        if not isinstance(host, TrainedHost) or log.flops is None:
            log.flops = None
            return
        log.flops += self._ledger.epoch(host)


def _blended(slot: SlotSnapshot) -> bool:
    """Takes part in what the model computes, and is meant to stay."""
    return slot.stage in (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED) and not slot.fading


def _known(alpha_target: float | None) -> float:
    assert alpha_target is not None  # a blended seed has one
    return alpha_target
