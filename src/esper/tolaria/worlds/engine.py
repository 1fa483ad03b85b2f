"""The engine as a world: hosts that begin, are acted on, live through epochs under the governor, and settle."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from esper.kasmina import GrowingModel
from esper.kasmina.coalitions import Coalition
from esper.kasmina.governor import Governor, GovernorRules, Verdict, Vitals
from esper.kasmina.persistence import ModelRecord, describe, reinstate
from esper.kasmina.settling import settle
from esper.kasmina.snapshots import ModelSnapshot
from esper.leyline import (
    Beginning,
    EpochReport,
    HostRolledBack,
    HostSinks,
    HostsLost,
    HostState,
    HostStep,
    Settling,
)
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.population import CoalitionScores, EpochTally, Population

# Reading what an epoch measured: one wait for the device, then plain numbers, host by host.


@dataclass(frozen=True, slots=True)
class SeedNumbers:
    """What is known of one live seed. Unknown is None."""

    slot: int
    contribution: float | None
    """Of a blended seed: accuracy with it minus accuracy without it."""
    probe: float | None
    """Of a TRAINING seed: accuracy with it switched on minus accuracy as it is."""
    gradient_norm: float | None
    gradient_health: float | None
    finite: bool | None


@dataclass(frozen=True, slots=True)
class HostNumbers:
    """What is known of one host after an epoch. Before the first, nothing was trained."""

    train_loss: float | None
    train_accuracy: float | None
    gradient_norm: float | None
    validation_loss: float
    validation_accuracy: float
    coalitions: dict[Coalition, tuple[float, float]]
    """Coalition -> (loss, accuracy)"""
    seeds: tuple[SeedNumbers, ...]

    @property
    def seeds_finite(self) -> bool:
        return all(seed.finite is not False for seed in self.seeds)


def read(tally: EpochTally | None, scores: CoalitionScores) -> list[HostNumbers]:
    """Everything two passes over the population measured, with one wait for the device."""
    tensors = [scores.loss, scores.accuracy]
    if tally is not None:
        tensors += [tally.loss, tally.accuracy, tally.gradient_norm, tally.seed_gradient_norm]
        tensors += [tally.seed_gradient_health, tally.seed_finite.float()]
    fetched = _fetch(tensors)
    losses, accuracies = next(fetched), next(fetched)
    trained = None if tally is None else tuple(fetched)
    return [_host_numbers(row, scores, losses, accuracies, trained) for row in range(len(scores.hosts))]


def tell(model: GrowingModel, numbers: HostNumbers) -> None:
    """Report what was measured of the seeds to the model they live in."""
    names = model.slot_config.slot_ids
    for seed in numbers.seeds:
        model.report(
            names[seed.slot],
            contribution=seed.contribution,
            probe=seed.probe,
            gradient_norm=seed.gradient_norm,
            gradient_health=seed.gradient_health,
            gradients_finite=seed.finite,
        )


def _fetch(tensors: list[Tensor]) -> Iterator[list[list[float]]]:
    """Tensors (host, ...) as nested lists, (host, flattened rest)."""
    flat = torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1).cpu()
    widths = [tensor[0].numel() for tensor in tensors]
    return (part.tolist() for part in flat.split(widths, dim=1))


def _host_numbers(
    row: int,
    scores: CoalitionScores,
    losses: list[list[float]],
    accuracies: list[list[float]],
    trained: tuple[list[list[float]], ...] | None,
) -> HostNumbers:
    plan, loss, accuracy = scores.plans[row], losses[row], accuracies[row]
    seeds = []
    for slot, worth in zip(plan.places, plan.worths(accuracy).values(), strict=True):
        norm, health, finite = (None, None, None) if trained is None else (t[row][slot] for t in trained[3:])
        seeds.append(
            SeedNumbers(
                slot=slot,
                contribution=worth.contribution,
                probe=worth.probe,
                gradient_norm=_known(norm),
                gradient_health=_known(health),
                finite=None if finite is None else bool(finite),
            )
        )
    return HostNumbers(
        train_loss=None if trained is None else trained[0][row][0],
        train_accuracy=None if trained is None else trained[1][row][0],
        gradient_norm=None if trained is None else trained[2][row][0],
        validation_loss=loss[0],
        validation_accuracy=accuracy[0],
        coalitions=dict(zip(plan.coalitions, zip(loss, accuracy, strict=True), strict=False)),
        seeds=tuple(seeds),
    )


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class EngineWorld:
    """A population under a governor, one epoch at a time (leyline's `World`).

        world = EngineWorld(2)
        world.begin_many([Beginning(0, "digits", seed=0), Beginning(1, "mnist1d:noise=0.2", seed=0)])
        germinate = ActionSpec(LifecycleOp.GERMINATE, "blocks.1", "mixer")
        world.step_many([HostStep(0, germinate), HostStep(1)])

    governor  what counts as broken; None lets broken hosts be
    events    where what happens to each host is told
    """

    def __init__(
        self,
        size: int,
        device: torch.device | str = "cpu",
        *,
        governor: GovernorRules | None = GovernorRules(),  # noqa: B008  frozen
        events: HostSinks | None = None,
        max_slots: int = 16,
    ) -> None:
        self.population = Population(size, device, max_slots=max_slots)
        self._rules, self._events = governor, events
        self._governors: list[Governor | None] = [None] * size
        self._memories: list[tuple[ModelSnapshot, dict[str, Tensor]] | None] = [None] * size

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        for host_idx, case, seed in beginnings:
            sink = None if self._events is None else self._events(host_idx)
            host = self.population.begin(host_idx, case, seed, events=sink)
            self._memories[host_idx] = None
            if self._rules is not None:
                untrained_loss = host.data.source.untrained_loss
                self._governors[host_idx] = Governor(self._rules, host.chance_accuracy, untrained_loss)
        begun = [beginning.host_idx for beginning in beginnings]
        for host_idx, numbers in zip(begun, self._validated(begun), strict=True):
            self._file(host_idx, numbers, None)

    def host(self, host_idx: int) -> TrainedHost:
        return self.population.host(host_idx)

    def governor(self, host_idx: int) -> Governor | None:
        return self._governors[host_idx]

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """Apply the actions, then one epoch of all hosts that act, then settle those that are to be settled."""
        self.population.chosen([step.host_idx for step in steps])  # all are there, before any of them changes
        acting = [step.host_idx for step in steps if step.action is not None]
        for step in steps:
            if step.action is not None:
                self.host(step.host_idx).apply(step.action)
        if acting:
            self._epoch(acting)
        for settling in dict.fromkeys(step.settle for step in steps):
            if settling is not None:
                self._settle([step.host_idx for step in steps if step.settle == settling], settling)
        self._give_up_on([host_idx for host_idx in acting if self._is_lost(host_idx)])

    def _epoch(self, host_idxs: Sequence[int]) -> None:
        for index in host_idxs:
            self._notice_new_data(index)
            self.host(index).model.tick()
        tally = self.population.train_epoch(host_idxs)
        scores = self.population.validate(host_idxs)
        for index, numbers in zip(host_idxs, read(tally, scores), strict=True):
            self._file(index, numbers, self._judge(index, numbers))

    def _settle(self, host_idxs: Sequence[int], settling: Settling) -> None:
        """Make the products of these hosts, and validate those again that changed."""
        whole = [index for index in host_idxs if self.host(index).report.rolled_back is None]

        def measure(rows: Sequence[int]) -> list[dict[Coalition, float]]:
            validated = self._validated([whole[row] for row in rows])
            return [
                {members: accuracy for members, (_, accuracy) in numbers.coalitions.items()}
                for numbers in validated
            ]

        hosts = [self.host(index) for index in whole]
        models = [host.model for host in hosts]
        changed = settle(models, settling.rent, settle=settling.settle, measure=measure)
        for row, numbers in zip(changed, self._validated([whole[row] for row in changed]), strict=True):
            host = hosts[row]
            host.report = replace(
                host.report,
                validation_loss=numbers.validation_loss,
                validation_accuracy=numbers.validation_accuracy,
            )
            tell(host.model, numbers)

    def _validated(self, host_idxs: Sequence[int]) -> list[HostNumbers]:
        return read(None, self.population.validate(host_idxs)) if host_idxs else []

    # A whole host, mid-episode

    def snapshot(self, host_idxs: Sequence[int]) -> dict[int, HostState]:
        return {host_idx: self._state(host_idx) for host_idx in host_idxs}

    def restore(self, states: Mapping[int, HostState]) -> None:
        for host_idx, state in states.items():
            self._load(host_idx, state)

    def _state(self, host_idx: int) -> dict[str, object]:
        host, governor = self.host(host_idx), self._governors[host_idx]
        return {
            "case": host.case,
            "seed": host.seed,
            "epoch": host.epoch,
            "report": asdict(host.report),
            **_written(host.model),
            "stream": host.stream.state_dict(),
            "governor": None if governor is None else governor.state_dict(),
            "memory": self._memory_state(host_idx),
        }

    def _memory_state(self, host_idx: int) -> dict[str, object] | None:
        """What a rollback would go back to, which need not be what the host is now."""
        model, memory = self.host(host_idx).model, self._memories[host_idx]
        if memory is None:
            return None
        present = ModelSnapshot(model)
        memory[0].restore()
        try:
            return {**_written(model), "stream": memory[1]}
        finally:
            present.restore()

    def _load(self, host_idx: int, state: Mapping[str, Any]) -> None:
        self.begin_many([Beginning(host_idx, state["case"], state["seed"])])
        host, governor = self.host(host_idx), self._governors[host_idx]
        memory = state["memory"]
        if memory is not None and governor is not None:
            untrained = ModelSnapshot(host.model)
            _read_into(host, memory)
            self._memories[host_idx] = ModelSnapshot(host.model), memory["stream"]
            untrained.restore()
        _read_into(host, state)
        host.stream.load_state_dict(state["stream"])
        host.epoch = state["epoch"]
        host.report = EpochReport(**state["report"])
        if governor is not None and state["governor"] is not None:
            governor.load_state_dict(state["governor"])
        self.population.forget_step(host_idx)
        if memory is None:
            self._remember(host_idx)

    # Under the governor

    def _notice_new_data(self, host_idx: int) -> None:
        host, governor = self.host(host_idx), self._governors[host_idx]
        phase_at = host.data.phase_at
        if governor is not None and host.epoch and phase_at(host.epoch) != phase_at(host.epoch - 1):
            governor.forget_best()

    def _judge(self, host_idx: int, numbers: HostNumbers) -> Verdict | None:
        """Remember a host that is well; take one that broke back to when it was."""
        host, governor = self.host(host_idx), self._governors[host_idx]
        if governor is None:
            return None
        assert numbers.train_loss is not None
        assert numbers.gradient_norm is not None
        governor.chance_accuracy = host.chance_accuracy  # another one when classes have come
        verdict = governor.judge(
            Vitals(
                train_loss=numbers.train_loss,
                gradient_norm=numbers.gradient_norm,
                validation_loss=numbers.validation_loss,
                validation_accuracy=numbers.validation_accuracy,
                seeds_finite=numbers.seeds_finite,
            )
        )
        if verdict is None:
            return None
        self._restore(host_idx)
        if self._events is not None:
            self._events(host_idx).emit(
                HostRolledBack(host_idx, host.case, host.epoch, verdict.value, governor.rollbacks)
            )
        return verdict

    def _is_lost(self, host_idx: int) -> bool:
        governor = self._governors[host_idx]
        return governor is not None and governor.gives_up

    def _give_up_on(self, lost: Sequence[int]) -> None:
        """All other hosts have had their epoch by now."""
        if lost:
            told = "; ".join(
                f"host {index} ({self.host(index).case}, seed {self.host(index).seed}): "
                f"{self.host(index).report.rolled_back}"
                for index in lost
            )
            raise HostsLost(lost, f"restored in vain, {told}. Lower the learning rate or look at the data")

    def _file(self, host_idx: int, numbers: HostNumbers, verdict: Verdict | None) -> None:
        host, governor = self.host(host_idx), self._governors[host_idx]
        host.report = EpochReport(
            epoch=host.epoch,
            train_loss=numbers.train_loss,
            train_accuracy=numbers.train_accuracy,
            validation_loss=numbers.validation_loss,
            validation_accuracy=numbers.validation_accuracy,
            gradient_norm=numbers.gradient_norm,
            rolled_back=None if verdict is None else verdict.value,
        )
        if verdict is not None:
            return
        tell(host.model, numbers)
        if governor is not None and governor.content:
            self._remember(host_idx)

    def _remember(self, host_idx: int) -> None:
        host, memory = self.host(host_idx), self._memories[host_idx]
        if self._rules is None:
            return
        if memory is None:
            self._memories[host_idx] = ModelSnapshot(host.model), host.stream.state_dict()
        else:
            memory[0].take()
            self._memories[host_idx] = memory[0], host.stream.state_dict()

    def _restore(self, host_idx: int) -> None:
        memory = self._memories[host_idx]
        assert memory is not None
        memory[0].restore()
        self.host(host_idx).stream.load_state_dict(memory[1])
        self.population.forget_step(host_idx)


def _written(model: GrowingModel) -> dict[str, object]:
    record, tensors = describe(model)
    return {
        "model": record.model_dump_json(),
        "tensors": {name: tensor.clone() for name, tensor in tensors.items()},
    }


def _read_into(host: TrainedHost, state: Mapping[str, Any]) -> None:
    reinstate(host.model, ModelRecord.model_validate_json(state["model"]), state["tensors"])
    host.lay_out_seeds()
