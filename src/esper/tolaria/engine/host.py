"""One host in training: its model, its optimiser and learning rates, its data, and how it sees them."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from esper.kasmina import GrowingModel, Slot
from esper.kasmina.hosts.pretrained import FrozenBody
from esper.kasmina.model import GrowingHost
from esper.kasmina.persistence import laid_out_like
from esper.leyline import ActionSpec, EventSink, LifecycleOp, Stage, Style, gate_parameters
from esper.tolaria.data import Split, TaskData
from esper.tolaria.tasks import Instance, OptimiserSpec, Task
from esper.tolaria.tasks.task import Augmentation, RateSchedule

WARM_UP = {"one_cycle": 0.25, "warm_up_cosine": 0.05}
"""Schedule -> the share of the epochs in which the rate rises."""
COLD = 0.04


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What a host is trained on in one epoch, minibatch by minibatch."""

    order: Tensor
    """(step, batch) indices of training samples"""
    views: Tensor | None
    """(step, batch) how each of them is shown (see `shown`); None: as it is"""
    rates: Tensor | None
    """(step,) learning rates; None where they never change"""

    @property
    def steps(self) -> int:
        """Minibatches."""
        return len(self.order)

    def clone(self) -> "EpochPlan":
        """The same in memory of its own."""
        parts = (None if part is None else part.clone() for part in (self.views, self.rates))
        return EpochPlan(self.order.clone(), *parts)


def derived_seed(seed: int, purpose: str) -> int:
    """An rng seed of its own for each purpose, so that no two random streams are one."""
    digest = hashlib.blake2b(f"{purpose}/{seed}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class ShuffledStream:
    """One permutation of the training set after another, cut into minibatches.

    A permutation that ends inside a minibatch is followed by the next one, so every sample is seen equally often
    whatever the sizes. The numbers are drawn on the CPU: a host sees the same samples on every device.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(derived_seed(seed, "minibatches"))
        self._samples = range(0)
        self._rest = torch.empty(0, dtype=torch.int64)

    def draw(self, samples: range, steps: int, batch: int) -> Tensor:
        """Indices (step, batch) out of `samples`; when these are others than before, a new permutation begins."""
        if not len(samples):
            raise ValueError("samples is empty: there is nothing to train on")
        if samples != self._samples:
            self._samples, self._rest = samples, self._rest[:0]
        wanted = steps * batch
        parts, held = [self._rest], len(self._rest)
        while held < wanted:
            parts.append(torch.randperm(len(samples), generator=self._generator) + samples.start)
            held += len(samples)
        order = torch.cat(parts)
        self._rest = order[wanted:]
        return order[:wanted].view(steps, batch)

    def state_dict(self) -> dict[str, Tensor]:
        """Where the stream stands."""
        return {
            "generator": self._generator.get_state(),
            "samples": torch.tensor([self._samples.start, self._samples.stop]),
            "rest": self._rest.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on where `state_dict` was taken."""
        self._generator.set_state(state["generator"])
        start, stop = state["samples"].tolist()
        self._samples = range(start, stop)
        self._rest = state["rest"].clone()


class ResidentData:
    """A task's data on the device, the training sets of all phases behind one another.

    A change of phase is then a change of indices: captured programs read the same memory before and after it.
    """

    def __init__(self, data: TaskData, task: Task, device: torch.device) -> None:
        self.source = data
        phases = list({id(phase.train): phase.train for phase in data.phases}.values())  # a state may return
        self.inputs = _place(_joined([train.inputs for train in phases]), task, device)
        self.targets = _joined([train.targets for train in phases]).to(device)
        halves = [phase.validation.halves() for phase in data.phases]
        self.validations = [
            Split(
                _place(torch.cat((observed.inputs, judged.inputs)), task, device),
                torch.cat((observed.targets, judged.targets)).to(device),
            )
            for observed, judged in halves
        ]
        """For each phase, the half to observe and settle by, then the half to reward and select by."""
        self.observed = [len(observed) for observed, _ in halves]
        """For each phase, the samples of the first half."""
        self.chances = [0.0 if data.regression else observed.commonest_share for observed, _ in halves]
        """For each phase, the observed score of the best constant prediction: the commonest class, or the mean."""
        self.variance = data.untrained_loss if data.regression else math.nan
        """Variance of the quantities to train on; NaN for classes."""
        self.validation_variances = [
            phase.validation.variance if data.regression else math.nan for phase in data.phases
        ]
        """For each phase, of all quantities to validate on."""
        ends = torch.tensor([len(train) for train in phases]).cumsum(0).tolist()
        places = {id(train): range(end - len(train), end) for end, train in zip(ends, phases, strict=True)}
        self.ranges = [places[id(phase.train)] for phase in data.phases]
        self._starts = [phase.start_epoch for phase in data.phases]

    def phase_at(self, epoch: int) -> int:
        """The phase in which epoch `epoch` (from 0) is trained."""
        return max(index for index, start in enumerate(self._starts) if start <= epoch)


def _joined(parts: list[Tensor]) -> Tensor:
    """One behind another. A single one is not copied: nothing writes into data, and they can be large."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _place(inputs: Tensor, task: Task, device: torch.device) -> Tensor:
    inputs = inputs.to(device)
    return inputs.to(memory_format=torch.channels_last) if task.channels_last and inputs.ndim == 4 else inputs


class TrainedHost(GrowingHost):
    """A growing host with everything that belongs to its training, shared with no other host."""

    def __init__(
        self,
        task: Task,
        data: ResidentData,
        *,
        case: str,
        seed: int,
        device: torch.device,
        events: EventSink | None = None,
    ) -> None:
        self.task, self.data, self.case, self.seed, self.device = task, data, case, seed, device
        if task.augmentation is not None:
            task.augmentation.require_pictures(task.name, tuple(data.inputs.shape[1:]))
        super().__init__(task.grow(data.source, seed=seed, device=device, events=events))
        if task.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        cap = Instance.parse(case).cap
        self.parameter_budget = None if cap is None else int(cap * self.host_parameters)
        self.optimizer = make_optimizer(task.optimiser, self.model, device)
        self.model.attach(self.optimizer, seed_lr_multiplier=task.seed_lr_multiplier, guard_gradients=False)
        self.non_finite = torch.zeros(len(self.slots), 2, dtype=torch.bool, device=device)
        """(slot, 2): the slots' own records, side by side."""
        for slot, record in zip(self.slots, self.non_finite, strict=True):
            slot.non_finite = record
        self.before_update: Callable[[], None] | None = None
        """Called between backward and each update, and captured with them: what else is done to gradients."""
        self.stream = ShuffledStream(seed)
        self.epoch = 0

    @property
    def training_samples(self) -> int:
        """Training samples of the epoch that was trained last (of the first one, before that)."""
        return len(self.data.ranges[self._met_phase])

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots themselves, in order."""
        return tuple(self.model.slots.values())

    @property
    def topology(self) -> tuple[object, ...]:
        """What a captured program depends on: which seeds there are and how each takes part in autograd."""
        return tuple(None if slot.seed is None else (slot.life.births, _role(slot)) for slot in self.slots)

    # What it is trained with

    @property
    def steps_per_epoch(self) -> int:
        """Minibatches of the epoch to come: the task's number, or as many as its training set fills."""
        return self.task.steps_per_epoch or max(len(self._coming_samples) // self.task.batch, 1)

    @property
    def validation(self) -> Split:
        """The validation set of the epoch that was trained last (of the first one, before that)."""
        return self.data.validations[self._met_phase]

    @property
    def observed_samples(self) -> int:
        """The first samples of that set, which are observed and settled by; the others judge."""
        return self.data.observed[self._met_phase]

    @property
    def chance_accuracy(self) -> float:
        """The score on the observed half of the best constant prediction."""
        return self.data.chances[self._met_phase]

    @property
    def validation_variance(self) -> float:
        """Variance of the quantities of the validation set; NaN for classes."""
        return self.data.validation_variances[self._met_phase]

    @property
    def phase_ended(self) -> bool:
        """Whether the data of the epoch to come are others than those of the last one; not for deciders to see."""
        return self.epoch > 0 and self.data.phase_at(self.epoch) != self._met_phase

    @property
    def phase_began(self) -> bool:
        """Whether the epoch that was trained last was the first on its data, and there were others before."""
        return self.epoch > 1 and self.data.phase_at(self.epoch - 2) != self._met_phase

    @property
    def _met_phase(self) -> int:
        """The phase of the epoch that was trained last: all that an observer may know of the data."""
        return self.data.phase_at(max(self.epoch - 1, 0))

    @property
    def _coming_samples(self) -> range:
        return self.data.ranges[self.data.phase_at(self.epoch)]

    def adopt_statistics(self, epoch: int) -> None:
        """Give a host whose statistics are to be its target's those of the inputs that epoch `epoch` trains on.

        They are estimated in place, with the network as it is; labels are not needed.
        """
        if isinstance(self.model.host, FrozenBody):
            samples = self.data.ranges[self.data.phase_at(epoch)]
            self.model.host.adopt_statistics(self.data.inputs[samples.start : samples.stop])

    def training_inputs(self, count: int) -> Tensor:
        """The first training samples of the epoch that was trained last, at most so many."""
        samples = self.data.ranges[self._met_phase]
        return self.data.inputs[samples.start : min(samples.stop, samples.start + count)]

    def plan_epoch(self) -> EpochPlan:
        """Samples, how they are shown and learning rates of the epoch to come; the stream of samples moves on."""
        order = self.stream.draw(self._coming_samples, self.steps_per_epoch, self.task.batch)
        return EpochPlan(order, self._coming_views(), self._coming_rates())

    def _coming_views(self) -> Tensor | None:
        """From rng seed and epoch alone: whatever happened to a host, its twins are shown the same."""
        if self.task.augmentation is None:
            return None
        generator = torch.Generator().manual_seed(derived_seed(self.seed, f"views of epoch {self.epoch}"))
        return draw_views(self.task.augmentation, self.steps_per_epoch, self.task.batch, generator=generator)

    def _coming_rates(self) -> Tensor | None:
        """As the task's schedule has them."""
        factors = rate_factors(self.task.schedule, self.epoch, self.steps_per_epoch, self.task.epochs)
        return None if factors is None else self.task.optimiser.lr * torch.tensor(factors)

    # What is done to it

    def set_rate(self, rate: Tensor) -> None:
        """Train on at this learning rate; seeds follow, times their multiplier."""
        group = self.optimizer.param_groups[0]  # the host's own: seeds have theirs behind it
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(rate)  # in place, as captured programs need it
        else:
            group["lr"] = float(rate)

    def lay_out_seeds(self) -> None:
        """Seeds that are new here, and what the optimiser keeps of them, in the task's memory format."""
        if not self.task.channels_last:
            return
        seeds = [slot.seed for slot in self.slots if slot.seed is not None]
        for seed in seeds:
            seed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for parameter in (parameter for seed in seeds for parameter in seed.parameters()):
            state = self.optimizer.state.get(parameter, {})
            state |= {
                key: laid_out_like(parameter, value)
                for key, value in state.items()
                if isinstance(value, Tensor) and value.stride() != parameter.stride()
            }

    def apply(self, action: ActionSpec) -> None:
        """Execute one operation; an illegal one is refused by the model, one over the cap here."""
        self._require_room(action)
        self.model.execute(action)
        if action.op is LifecycleOp.GERMINATE:
            self.lay_out_seeds()

    def _require_room(self, action: ActionSpec) -> None:
        slot, cap = self.model.slots.get(action.slot or ""), self.parameter_budget
        if action.op is not LifecycleOp.GERMINATE or slot is None or cap is None:
            return
        card = next((card for card in slot.cards if card.name == action.blueprint), None)
        gate = gate_parameters(slot.snapshot().channels) if action.style is Style.GATE else 0
        grown = self.added_parameters + gate + (0 if card is None else card.parameters)
        if grown > cap:
            raise ValueError(
                f"{action.blueprint} at {action.slot!r} would make {grown:,} added parameters, and the cap of "
                f"{self.case} is {cap:,}: choose a smaller seed, prune one first, or raise cap="
            )


def _role(slot: Slot) -> str:
    if slot.life.fading:
        return "fading"
    return slot.stage.name if slot.stage in (Stage.TRAINING, Stage.FOSSILIZED) else "blended"


def make_optimizer(spec: OptimiserSpec, model: GrowingModel, device: torch.device) -> Optimizer:
    """Fused; on CUDA ready for capture, with the learning rate on the device."""
    captured = device.type == "cuda"
    lr = torch.tensor(spec.lr, device=device) if captured else spec.lr
    if spec.kind == "sgd":
        return SGD(model.parameters(), lr, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True)
    kind = Adam if spec.kind == "adam" else AdamW
    return kind(model.parameters(), lr, weight_decay=spec.weight_decay, fused=True, capturable=captured)


def rate_factors(schedule: RateSchedule, epoch: int, steps: int, epochs: int) -> list[float] | None:
    """One for each of the `steps` of epoch `epoch` (from 0); None if the rate never changes.

    A run that goes on after the task's epochs stays at the factor of their last step.
    """
    if schedule == "constant":
        return None
    last = (epochs * steps - 1) / (epochs * steps)
    return [rate_factor(schedule, min((epoch + step / steps) / epochs, last)) for step in range(steps)]


def rate_factor(schedule: RateSchedule, progress: float) -> float:
    """The learning rate as a factor of the task's own, when a share `progress` (p) of its epochs has been trained.

    cosine          (1 + cos(pi p)) / 2
    one_cycle       from 0.04 in a straight line to 1 at p = 0.25, then a cosine down to 0 (Smith and Topin, 2019)
    warm_up_cosine  the same with its peak at p = 0.05
    """
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        return _down(progress)
    peak = WARM_UP[schedule]
    if progress < peak:
        return COLD + (1.0 - COLD) * progress / peak
    return _down((progress - peak) / (1.0 - peak))


def _down(share: float) -> float:
    """From 1 to 0."""
    return (1.0 + math.cos(math.pi * share)) / 2.0


def draw_views(augmentation: Augmentation, steps: int, batch: int, *, generator: torch.Generator) -> Tensor:
    """Views (step, batch), each of the possible ones as likely as any other.

    A *view* is a whole number that says how one training picture is shown: mirrored or not, and cropped where. Views
    are drawn on the CPU, so that a host sees the same on every device, and carried out where the data are, inside the
    captured step: nothing waits for them.
    """
    places = (2 * augmentation.padding + 1) ** 2
    return torch.randint(places * (2 if augmentation.flip else 1), (steps, batch), generator=generator)


def shown(pictures: Tensor, indices: Tensor, views: Tensor, augmentation: Augmentation) -> Tensor:
    """The pictures `indices` (batch,) under their `views` (batch,): (batch, channel, height, width).

    With s = 2 padding + 1, the view 2 (s i + j) + m shows at (y, x) the pixel (y + i - padding, x + j - padding), and
    0 where there is none; m = 1 counts x from the right. Without flips a view is s i + j.

    pictures  (sample, channel, height, width), of which nothing is changed
    """
    height, width = pictures.shape[2:]
    padding, device = augmentation.padding, pictures.device
    across = torch.arange(width, device=device).expand(len(views), width)  # (batch, x)
    if augmentation.flip:
        across = torch.where((views % 2 == 1).unsqueeze(1), width - 1 - across, across)
        views = views // 2
    span = 2 * padding + 1
    rows = torch.arange(height, device=device) + (views // span - padding).unsqueeze(1)  # (batch, y)
    columns = across + (views % span - padding).unsqueeze(1)  # (batch, x)
    row, column = rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)
    seen = pictures.permute(0, 2, 3, 1)[indices.view(-1, 1, 1), row, column]  # (batch, y, x, channel)
    if padding:
        outside = ((rows < 0) | (rows >= height)).unsqueeze(2) | (
            (columns < 0) | (columns >= width)
        ).unsqueeze(1)
        seen.masked_fill_(outside.unsqueeze(3), 0.0)
    seen = seen.permute(0, 3, 1, 2)
    return seen.contiguous() if pictures.is_contiguous() else seen
