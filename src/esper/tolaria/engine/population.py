"""Many growing hosts on one device: an epoch of training for all of them, and validation under coalitions.

Minibatches are the outer loop and hosts the inner one; nothing waits for the device until the numbers are read.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.kasmina.coalitions import CoalitionPlan, plan_coalitions
from esper.leyline import EventSink
from esper.leyline.errors import EsperError
from esper.tolaria.engine.host import EpochPlan, ResidentData, TrainedHost
from esper.tolaria.engine.step import (
    FIRST_SLOT,
    HOST_NORM,
    LOSS,
    SCORE,
    CapturedStep,
    StreamPool,
    TrainingStep,
    autocast,
    explained,
    loss_and_hits,
    tally_width,
    upload,
    upload_plans,
)
from esper.tolaria.tasks import Instance

ROWS_AT_ONCE = 16384
"""Rows (samples x coalitions) of one forward on CUDA."""
ELEMENTS_AT_ONCE = 2**18
"""Elements of the samples in one forward on the CPU: a long text or many pictures would fill its memory at once."""


class OutOfDeviceMemory(EsperError, RuntimeError):
    """The device is too small for this many hosts."""


@contextmanager
def room_for(hosts: int, *, placed: int, device: torch.device) -> Iterator[None]:
    """Turn running out of memory inside, where the next host is placed, into an error that says how many fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(device).total_memory / 2**30
        raise OutOfDeviceMemory(
            f"{hosts} hosts do not fit on {device} ({total:.0f} GiB): it was full after {placed}, so about {placed} "
            "would fit. Use fewer hosts, a smaller batch, or another device"
        ) from error


@dataclass(frozen=True, slots=True)
class EpochTally:
    """Means over one epoch's steps, on the device. Slots without a trained seed are NaN."""

    loss: Tensor
    """(host,)"""
    accuracy: Tensor
    """(host,), 0..1; of quantities the share of their variance that is explained"""
    gradient_norm: Tensor
    """(host,) before clipping"""
    seed_gradient_norm: Tensor
    """(host, slot)"""
    seed_gradient_health: Tensor
    """(host, slot)"""
    seed_finite: Tensor
    """(host, slot) bool: no output and no gradient of the seed was NaN or Inf; True without a seed."""


@dataclass(frozen=True, slots=True)
class CoalitionScores:
    """What validation measured, on the device. Entries past a host's own coalitions are NaN.

    Loss and accuracy are of the half to observe and settle by, judged ones of the half to reward and select by.
    """

    plans: tuple[CoalitionPlan, ...]
    loss: Tensor
    """(host, coalition); the first coalition is the model as it is"""
    accuracy: Tensor
    """(host, coalition)"""
    judged_loss: Tensor
    """(host, coalition)"""
    judged_accuracy: Tensor
    """(host, coalition)"""


class Population:
    """Hosts trained together, each with its own weights, order of data and growth; data are shared by instance."""

    def __init__(self, size: int, device: torch.device | str = "cpu", *, max_slots: int = 16) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        self.device = torch.device(device)
        self.max_slots = max_slots
        self._hosts: list[TrainedHost | None] = [None] * size
        self._data: dict[str, ResidentData] = {}
        self._tally = torch.zeros(size, tally_width(max_slots), device=self.device)
        self._steps: list[TrainingStep | CapturedStep | None] = [None] * size
        self._pool = StreamPool(self.device, size) if self.device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._hosts)

    def begin(self, host_idx: int, case: str, seed: int, *, events: EventSink | None = None) -> TrainedHost:
        """Put a new, untrained host of the task instance `case` in place `host_idx`; it emits to `events`."""
        self._require_place(host_idx)
        instance = Instance.parse(case)
        self.forget_step(host_idx)
        self._hosts[host_idx] = None
        with room_for(len(self), placed=self._begun(), device=self.device):
            data = self._resident(instance)
            host = TrainedHost(
                instance.row, data, case=str(instance), seed=seed, device=self.device, events=events
            )
        if len(host.slots) > self.max_slots:
            raise ValueError(
                f"{case} has {len(host.slots)} slots, this population was made for max_slots={self.max_slots}"
            )
        self._hosts[host_idx] = host
        return host

    def host(self, host_idx: int) -> TrainedHost:
        """The host in a place."""
        self._require_place(host_idx)
        host = self._hosts[host_idx]
        if host is None:
            raise ValueError(f"host {host_idx} has not begun: call begin({host_idx}, case, seed) first")
        return host

    # Training

    def train_epoch(self, host_idxs: Sequence[int] | None = None) -> EpochTally:
        """Train these hosts (all by default) for one epoch. The caller has ticked their alphas."""
        chosen = self.chosen(host_idxs)
        self._tally.zero_()
        plans = [self.host(index).plan_epoch() for index in chosen]
        if self._pool is None:
            self._run_eagerly(chosen, plans)
        else:
            self._run_captured(chosen, plans, self._pool)
        for index in chosen:
            self.host(index).epoch += 1
        return self._read_tally(chosen, [plan.steps for plan in plans])

    def _run_eagerly(self, chosen: Sequence[int], plans: Sequence[EpochPlan]) -> None:
        steps = [self._eager_step(index) for index in chosen]
        for batch in range(max(plan.steps for plan in plans)):
            for step, plan in zip(steps, plans, strict=True):
                if batch < plan.steps:
                    views = None if plan.views is None else plan.views[batch]
                    step(plan.order[batch], views, None if plan.rates is None else plan.rates[batch])

    def _run_captured(self, chosen: Sequence[int], plans: Sequence[EpochPlan], pool: StreamPool) -> None:
        placed = upload_plans(plans, self.device)
        steps = [self._captured_step(i, plan, pool) for i, plan in zip(chosen, placed, strict=True)]
        for step, plan in zip(steps, placed, strict=True):
            step.begin_epoch(plan)
        with pool.fork():
            for step in steps:  # the first minibatch, in which steps that are new are captured
                with room_for(len(self), placed=self._captured(), device=self.device):
                    step()
            for batch in range(1, max(plan.steps for plan in plans)):
                for step, plan in zip(steps, plans, strict=True):
                    if batch < plan.steps:
                        step()

    def _eager_step(self, host_idx: int) -> TrainingStep:
        host, step = self.host(host_idx), self._steps[host_idx]
        if not isinstance(step, TrainingStep) or step.topology != host.topology:
            step = self._steps[host_idx] = TrainingStep(host, self._tally[host_idx])
        return step

    def _captured_step(self, host_idx: int, plan: EpochPlan, pool: StreamPool) -> CapturedStep:
        host, step = self.host(host_idx), self._steps[host_idx]
        fits = (
            isinstance(step, CapturedStep)
            and step.topology == host.topology
            and step.plan.order.shape == plan.order.shape
        )
        if not fits:
            self.forget_step(host_idx)
            fresh = TrainingStep(host, self._tally[host_idx])
            step = self._steps[host_idx] = CapturedStep(fresh, pool, host_idx, plan)
        assert isinstance(step, CapturedStep)
        return step

    def forget_step(self, host_idx: int) -> None:
        """Drop what was prepared (on CUDA: captured) for a host, as when it was put back to an earlier state."""
        step, self._steps[host_idx] = self._steps[host_idx], None
        if isinstance(step, CapturedStep):
            step.release()

    def _read_tally(self, chosen: tuple[int, ...], steps: Sequence[int]) -> EpochTally:
        rows = self._tally.index_select(0, self._place(torch.tensor(chosen)))
        means = rows / self._place(torch.tensor(steps, dtype=torch.float32)).unsqueeze(1)
        seeds = means[:, FIRST_SLOT:].view(len(chosen), self.max_slots, 2)
        trained = torch.zeros(len(chosen), self.max_slots, dtype=torch.bool)
        finite = torch.isfinite(seeds[..., 0])
        for row, index in enumerate(chosen):
            for column, slot in enumerate(self.host(index).slots):
                if slot.stage.is_live:
                    trained[row, column] = not slot.life.fading
                    finite[row, column] &= ~slot.non_finite.any()
        untrained = self._place(~trained)
        return EpochTally(
            loss=means[:, LOSS],
            accuracy=means[:, SCORE].clamp(min=0.0),
            gradient_norm=means[:, HOST_NORM],
            seed_gradient_norm=seeds[..., 0].masked_fill(untrained, torch.nan),
            seed_gradient_health=seeds[..., 1].masked_fill(untrained, torch.nan),
            seed_finite=finite,
        )

    def _place(self, tensor: Tensor) -> Tensor:
        """A small CPU tensor on the device, without waiting for it."""
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    # Validation

    def validate(
        self, host_idxs: Sequence[int] | None = None, *, fossils: Collection[int] = ()
    ) -> CoalitionScores:
        """Loss and accuracy of these hosts (all by default) on their whole validation sets, under each coalition.

        fossils  the hosts whose fossils are weighed too
        """
        chosen = self.chosen(host_idxs)
        plans = tuple(plan_coalitions(self.host(index).model, fossils=index in fossils) for index in chosen)
        widest = max(len(plan.coalitions) for plan in plans)
        scores = torch.full((len(chosen), widest, 2, 2), torch.nan, device=self.device)
        if self._pool is None:
            for row, (index, plan) in enumerate(zip(chosen, plans, strict=True)):
                validate_host(self.host(index), plan, None, scores[row, : len(plan.coalitions)])
        else:
            alphas = upload([torch.tensor(plan.alphas) for plan in plans], self.device)
            with self._pool.fork():
                for row, (index, plan) in enumerate(zip(chosen, plans, strict=True)):
                    with (
                        room_for(len(self), placed=self._begun() - 1, device=self.device),
                        torch.cuda.stream(self._pool.streams[self._pool.index_of(index)]),
                    ):
                        out = scores[row, : len(plan.coalitions)]
                        validate_host(self.host(index), plan, alphas[row], out)
        (loss, accuracy), (judged_loss, judged_accuracy) = (half.unbind(-1) for half in scores.unbind(2))
        return CoalitionScores(plans, loss, accuracy, judged_loss, judged_accuracy)

    def chosen(self, host_idxs: Sequence[int] | None) -> tuple[int, ...]:
        """These hosts (all by default), which must have begun."""
        chosen = tuple(range(len(self)) if host_idxs is None else host_idxs)
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"host_idxs must name at least one host and none twice, not {list(chosen)}")
        for index in chosen:
            self.host(index)
        return chosen

    # Helpers

    def _begun(self) -> int:
        return sum(host is not None for host in self._hosts)

    def _captured(self) -> int:
        return sum(isinstance(step, CapturedStep) and step.is_captured for step in self._steps)

    def _require_place(self, host_idx: int) -> None:
        if not 0 <= host_idx < len(self):
            raise ValueError(
                f"host_idx must be 0..{len(self) - 1}, not {host_idx}: there are {len(self)} places"
            )

    def _resident(self, instance: Instance) -> ResidentData:
        """The instance's data on the device; what no host uses any more is let go."""
        used = {host.case for host in self._hosts if host is not None}
        self._data = {case: data for case, data in self._data.items() if case in used}
        case = str(instance)
        if case not in self._data:
            self._data[case] = ResidentData(instance.load(), instance.row, self.device)
        return self._data[case]


def validate_host(host: TrainedHost, plan: CoalitionPlan, alphas: Tensor | None, out: Tensor) -> None:
    """Mean loss and score under each coalition into `out` (coalition, half, 2), the observed half first.

    Both halves come from one pass. Nothing of the model is changed.

    `alphas` (coalition, weighed seed) is on the device where coalitions are stacked into one forward, and None on the
    CPU, where each has a pass of its own: a seed that is off costs nothing there.
    """
    validation, observed = host.validation, host.observed_samples
    samples = len(validation)
    host.model.eval()
    out.zero_()
    size = validation.inputs[0].numel()
    rows = max(ELEMENTS_AT_ONCE // size if alphas is None else ROWS_AT_ONCE // len(plan.coalitions), 1)
    with torch.inference_mode(), autocast(host):
        for start in range(0, samples, rows):
            inputs = validation.inputs[start : start + rows]
            targets = validation.targets[start : start + rows]
            first = min(max(observed - start, 0), len(inputs))  # samples of the observed half
            if alphas is None:
                for row, coalition in zip(out, plan.alphas, strict=True):
                    row += _score(host, plan, coalition, inputs, targets, first, copies=1)[0]
            else:
                columns = alphas.repeat_interleave(len(inputs), dim=0).unbind(1)
                out += _score(host, plan, columns, inputs, targets, first, copies=len(plan.coalitions))
    out[:, 0] /= observed
    out[:, 1] /= samples - observed
    if host.data.source.regression:
        out[..., 1] = explained(out[..., 0], host.validation_variance)
    host.model.train()


def _score(
    host: TrainedHost,
    plan: CoalitionPlan,
    alphas: Sequence[Tensor | float],
    inputs: Tensor,
    targets: Tensor,
    first: int,
    *,
    copies: int,
) -> Tensor:
    """Loss and right answers summed over the `first` samples and over the others, (copy, half, 2)."""
    override = dict(zip(plan.weighed, alphas, strict=True))
    stacked = inputs if copies == 1 else inputs.repeat(copies, *[1] * (inputs.ndim - 1))
    with host.model.override_alpha(override):
        outputs = host.model(stacked)
    assert isinstance(outputs, Tensor)
    outputs = outputs.view(
        copies, len(inputs), -1, outputs.shape[-1]
    ).float()  # (copy, sample, position, class)
    each = loss_and_hits(outputs, targets)  # (copy, sample, 2)
    return torch.stack((each[:, :first].sum(1), each[:, first:].sum(1)), dim=1)
