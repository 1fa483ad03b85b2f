"""The engine as a world: hosts that are trained under a governor, validated, and settled."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from esper.kasmina.coalitions import Coalition, CoalitionPlan, settle
from esper.kasmina.describing import ModelRecord, describe, describe_remembered, plain_data
from esper.kasmina.governor import Governor, GovernorRules, Verdict, Vitals
from esper.kasmina.persistence import reinstate
from esper.kasmina.snapshots import ModelSnapshot
from esper.leyline import (
    ActionSpec,
    Beginning,
    EpochReport,
    HostRolledBack,
    HostSinks,
    HostsLost,
    HostState,
    HostStep,
    LifecycleOp,
    Settling,
)
from esper.leyline.utility import Family, score_by_loss
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.engine.population import CoalitionScores, EpochTally, Population


class SeedReport(TypedDict):
    """What is known of one live seed, as `GrowingModel.report` takes it. Unknown is None."""

    contribution: float | None
    probe: float | None
    gradient_norm: float | None
    gradient_health: float | None
    gradients_finite: bool | None


@dataclass(frozen=True, slots=True)
class HostNumbers:
    """What was measured of one host. Where nothing was trained, what training measures is None."""

    report: EpochReport
    losses: dict[Coalition, float]
    """Coalition -> validation loss on the observed half."""
    accuracies: dict[Coalition, float]
    """Coalition -> validation accuracy on the observed half."""
    seeds: dict[str, SeedReport]
    """Slot -> what is known of its live seed."""

    def scores(self, family: Family, untrained_loss: float) -> dict[Coalition, float]:
        """Coalition -> the score that this family of rewards pays for, on the observed half."""
        if family == "contribution":
            return self.accuracies
        return {members: score_by_loss(loss, untrained_loss) for members, loss in self.losses.items()}


def read(tally: EpochTally | None, scores: CoalitionScores, epochs: Sequence[int]) -> Iterator[HostNumbers]:
    """What training (if any) and validation measured, host by host, with one wait for the device.

    epochs  how many each host has been trained for
    """
    tensors = [scores.loss, scores.accuracy, scores.judged_loss[:, :1], scores.judged_accuracy[:, :1]]
    if tally is not None:
        tensors += [tally.loss, tally.accuracy, tally.gradient_norm, tally.seed_gradient_norm]
        tensors += [tally.seed_gradient_health, tally.seed_finite.float()]
    flat = torch.cat([tensor.reshape(len(tensor), -1) for tensor in tensors], dim=1).cpu()
    parts = [part.tolist() for part in flat.split([tensor[0].numel() for tensor in tensors], dim=1)]
    for plan, epoch, measured in zip(scores.plans, epochs, zip(*parts, strict=True), strict=True):
        yield _host_numbers(plan, epoch, *measured)


def _host_numbers(
    plan: CoalitionPlan,
    epoch: int,
    losses: list[float],
    accuracies: list[float],
    judged_loss: list[float],
    judged_accuracy: list[float],
    *trained: list[float],
) -> HostNumbers:
    train_loss = train_accuracy = gradient_norm = None
    if trained:
        (train_loss,), (train_accuracy,), (gradient_norm,), norms, health, finite = trained
    seeds: dict[str, SeedReport] = {}
    for place, (name, worth) in zip(plan.places, plan.worths(accuracies).items(), strict=True):
        seeds[name] = {
            "contribution": worth.contribution,
            "probe": worth.probe,
            "gradient_norm": _known(norms[place]) if trained else None,
            "gradient_health": _known(health[place]) if trained else None,
            "gradients_finite": bool(finite[place]) if trained else None,
        }
    report = EpochReport(
        epoch=epoch,
        train_loss=train_loss,
        train_accuracy=train_accuracy,
        validation_loss=losses[0],
        validation_accuracy=accuracies[0],
        gradient_norm=gradient_norm,
        rolled_back=None,
        judged_loss=judged_loss[0],
        judged_accuracy=judged_accuracy[0],
    )
    # past its own coalitions there is only padding
    by_loss, by_accuracy = (dict(zip(plan.coalitions, row, strict=False)) for row in (losses, accuracies))
    return HostNumbers(report, by_loss, by_accuracy, seeds)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


class EngineWorld:
    """A population under a governor, one epoch at a time (leyline's `World`).

        world = EngineWorld(2)
        world.begin_many([Beginning(0, "digits", seed=0), Beginning(1, "mnist1d:noise=0.2", seed=0)])
        germinate = ActionSpec(LifecycleOp.GERMINATE, "blocks.1", "mixer")
        world.step_many([HostStep(0, germinate), HostStep(1)])

    governor  what counts as broken; None lets broken hosts be
    events    where what happens to each host is reported
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
        self._untrained_losses = [math.nan] * size
        """Of each host, on the observed half."""
        self._memories: list[tuple[ModelSnapshot, dict[str, Tensor]] | None] = [None] * size

    def begin_many(self, beginnings: Sequence[Beginning]) -> None:
        """Replace hosts by new ones and validate them."""
        for host_idx, case, seed in beginnings:
            sink = None if self._events is None else self._events(host_idx)
            host = self.population.begin(host_idx, case, seed, events=sink)
            self._memories[host_idx] = None
            if self._rules is not None:
                untrained_loss = host.data.source.untrained_loss
                self._governors[host_idx] = Governor(self._rules, host.chance_accuracy, untrained_loss)
        begun = [beginning.host_idx for beginning in beginnings]
        for host_idx, numbers in zip(begun, self._validated(begun), strict=True):
            self._untrained_losses[host_idx] = numbers.report.validation_loss
            governor = self._governors[host_idx]
            if governor is not None:
                governor.begin_at(numbers.report.validation_loss)
            self._take_over(host_idx, numbers)

    def host(self, host_idx: int) -> TrainedHost:
        """One host, with its model, optimiser and data."""
        return self.population.host(host_idx)

    def governor(self, host_idx: int) -> Governor | None:
        """The governor of one host."""
        return self._governors[host_idx]

    def step_many(self, steps: Sequence[HostStep]) -> None:
        """Apply the actions, then one epoch of all hosts that act, then settle those that are to be settled.

        A host that the governor has given up takes no further step: `HostsLost`, after the others had theirs.
        """
        self.population.chosen([step.host_idx for step in steps])  # all are there, before any of them changes
        given_up = self._given_up(steps)
        steps = [step for step in steps if step.host_idx not in given_up]
        acting = {step.host_idx: step.weigh_fossils for step in steps if step.action is not None}
        for step in steps:
            if step.action is not None:
                self.host(step.host_idx).apply(step.action)
                self._notice_what_goes(step.host_idx, step.action)
        if acting:
            self._epoch(acting)
        for settling in dict.fromkeys(step.settle for step in steps):
            if settling is not None:
                self._settle([step.host_idx for step in steps if step.settle == settling], settling)
        self._refuse(given_up)

    def _epoch(self, acting: Mapping[int, bool]) -> None:
        """One epoch of these hosts (index -> whether its fossils are weighed)."""
        host_idxs = list(acting)
        for index in host_idxs:
            self._notice_new_data(index)
            self.host(index).model.tick()
        tally = self.population.train_epoch(host_idxs)
        weighed = [index for index, weigh in acting.items() if weigh]
        for index, numbers in zip(host_idxs, self._validated(host_idxs, tally, weighed), strict=True):
            verdict = self._judge(index, numbers)
            if verdict is None:
                self._take_over(index, numbers)
            else:
                self.host(index).report = replace(numbers.report, rolled_back=verdict.value)

    def _settle(self, host_idxs: Sequence[int], settling: Settling) -> None:
        """Make the products of these hosts, and validate those again that changed."""
        indices = [index for index in host_idxs if self.host(index).report.rolled_back is None]
        hosts = [self.host(index) for index in indices]

        def measure(rows: Sequence[int]) -> list[dict[Coalition, float]]:
            chosen = [indices[row] for row in rows]
            measured = zip(chosen, self._validated(chosen), strict=True)
            return [each.scores(settling.family, self._untrained_losses[index]) for index, each in measured]

        models = [host.model for host in hosts]
        live = [len(model.live_slots) for model in models]
        changed = settle(models, settling.rent, settle=settling.settle, measure=measure)
        for row, numbers in zip(changed, self._validated([indices[row] for row in changed]), strict=True):
            host, now = hosts[row], numbers.report
            host.report = replace(
                host.report,
                validation_loss=now.validation_loss,
                validation_accuracy=now.validation_accuracy,
                judged_loss=now.judged_loss,
                judged_accuracy=now.judged_accuracy,
                seeds_settled=live[row] - len(host.model.live_slots),
            )
            _report_seeds(host, numbers)

    def _validated(
        self, host_idxs: Sequence[int], tally: EpochTally | None = None, fossils: Sequence[int] = ()
    ) -> list[HostNumbers]:
        """Validate hosts, and read what was measured of them; fossils of those in `fossils` are weighed."""
        if not host_idxs:
            return []
        epochs = [self.host(index).epoch for index in host_idxs]
        return list(read(tally, self.population.validate(host_idxs, fossils=fossils), epochs))

    # A whole host, mid-episode

    def snapshot(self, host_idxs: Sequence[int]) -> dict[int, HostState]:
        """Models, optimisers, order of the data, governors and what these would go back to."""
        return {host_idx: self._state(host_idx) for host_idx in host_idxs}

    def restore(self, states: Mapping[int, HostState]) -> None:
        """Replace hosts by those whose states `snapshot` returned."""
        for host_idx, state in states.items():
            self._load(host_idx, state)

    def _state(self, host_idx: int) -> dict[str, object]:
        host, governor = self.host(host_idx), self._governors[host_idx]
        return {
            "case": host.case,
            "seed": host.seed,
            "epoch": host.epoch,
            "report": asdict(host.report),
            **plain_data(describe(host.model)),
            "stream": host.stream.state_dict(),
            "governor": None if governor is None else governor.state_dict(),
            "memory": self._memory_state(host_idx),
        }

    def _memory_state(self, host_idx: int) -> dict[str, object] | None:
        """What a rollback would go back to, which need not be what the host is now."""
        memory = self._memories[host_idx]
        return None if memory is None else {**plain_data(describe_remembered(memory[0])), "stream": memory[1]}

    def _load(self, host_idx: int, state: Mapping[str, Any]) -> None:
        self.begin_many([Beginning(host_idx, state["case"], state["seed"])])
        host, governor = self.host(host_idx), self._governors[host_idx]
        memory = state["memory"]
        if memory is not None and governor is not None:
            untrained = ModelSnapshot(host.model, options=True)
            _read_into(host, memory)
            self._memories[host_idx] = ModelSnapshot(host.model, options=True), memory["stream"]
            untrained.restore()
        _read_into(host, state)
        host.stream.load_state_dict(state["stream"])
        host.epoch = state["epoch"]
        host.report = EpochReport(**state["report"])
        if governor is not None and state["governor"] is not None:
            governor.load_state_dict(state["governor"])
        self.population.forget_step(host_idx)
        if memory is None and governor is not None:
            self._remember(host_idx)

    # Under the governor

    def _notice_new_data(self, host_idx: int) -> None:
        host, governor = self.host(host_idx), self._governors[host_idx]
        if not host.phase_ended:
            return
        host.adopt_statistics(host.epoch)
        if governor is not None:
            governor.forget_best()

    def _notice_what_goes(self, host_idx: int, action: ActionSpec) -> None:
        """What was learned with a seed that is given back is no measure of a head that has to learn without it."""
        host, governor = self.host(host_idx), self._governors[host_idx]
        fading = any(slot.life.fading for slot in host.model.slots.values())
        if governor is not None and (fading or action.op in (LifecycleOp.PRUNE, LifecycleOp.RETIRE)):
            governor.forget_best()

    def _judge(self, host_idx: int, numbers: HostNumbers) -> Verdict | None:
        """Why the host is broken, in which case it has been restored; None if it is well."""
        host, governor = self.host(host_idx), self._governors[host_idx]
        if governor is None:
            return None
        report = numbers.report
        assert report.train_loss is not None
        assert report.gradient_norm is not None
        assert report.validation_accuracy is not None
        governor.chance_accuracy = host.chance_accuracy  # another one when classes have come
        verdict = governor.judge(
            Vitals(
                train_loss=report.train_loss,
                gradient_norm=report.gradient_norm,
                validation_loss=report.validation_loss,
                # one that overfits explains nothing either: of quantities only losses condemn
                validation_accuracy=None if host.data.source.regression else report.validation_accuracy,
                seeds_finite=all(seed["gradients_finite"] is not False for seed in numbers.seeds.values()),
            ),
            on_new_data=host.phase_began,
        )
        if verdict is None:
            return None
        self._restore(host_idx)
        if self._events is not None:
            self._events(host_idx).emit(
                HostRolledBack(host_idx, host.case, host.epoch, verdict.value, governor.rollbacks)
            )
        return verdict

    def _given_up(self, steps: Sequence[HostStep]) -> list[int]:
        """The hosts that are to train on, although they broke again and again."""
        governors = [
            (step.host_idx, self._governors[step.host_idx]) for step in steps if step.action is not None
        ]
        return [host_idx for host_idx, governor in governors if governor is not None and governor.gives_up]

    def _refuse(self, given_up: Sequence[int]) -> None:
        if given_up:
            reasons = "; ".join(
                f"host {index} ({host.case}, seed {host.seed}): {host.report.rolled_back}"
                for index, host in zip(given_up, map(self.host, given_up), strict=True)
            )
            raise HostsLost(
                given_up, f"restored in vain, {reasons}. Lower the learning rate or look at the data"
            )

    def _take_over(self, host_idx: int, numbers: HostNumbers) -> None:
        """Make what was measured of a host known, and remember the host where that is worth going back to."""
        host, governor = self.host(host_idx), self._governors[host_idx]
        host.report = replace(numbers.report, validation_samples=host.observed_samples)
        _report_seeds(host, numbers)
        if governor is not None and governor.content:
            self._remember(host_idx)

    def _remember(self, host_idx: int) -> None:
        host, memory = self.host(host_idx), self._memories[host_idx]
        if memory is None:
            snapshot = ModelSnapshot(host.model, options=True)
        else:
            snapshot = memory[0]
            snapshot.take()
        self._memories[host_idx] = snapshot, host.stream.state_dict()

    def _restore(self, host_idx: int) -> None:
        memory = self._memories[host_idx]
        assert memory is not None
        memory[0].restore()
        host = self.host(host_idx)
        if len(host.data.source.phases) > 1:  # the memory may be of an earlier one
            host.adopt_statistics(host.epoch - 1)
        host.stream.load_state_dict(memory[1])
        self.population.forget_step(host_idx)


def _report_seeds(host: TrainedHost, numbers: HostNumbers) -> None:
    for slot, measured in numbers.seeds.items():
        host.model.report(slot, **measured)


def _read_into(host: TrainedHost, state: Mapping[str, Any]) -> None:
    reinstate(host.model, ModelRecord.model_validate_json(state["model"]), state["tensors"])
    host.lay_out_seeds()
