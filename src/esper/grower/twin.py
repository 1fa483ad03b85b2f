"""The twin: the same model without growth, trained on the same batches; and the gain that is measured against it."""

import copy
import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from esper.grower.measuring import EpochMetrics, Scale, ValidateCall, measuring, read_validation
from esper.grower.validating import LoaderValidation, RunningMetric, Tally, joined
from esper.kasmina import GrowingModel, WrapError
from esper.kasmina.optimisers import blank_copy
from esper.statistics import LEAST, mean_interval

TrainStep = Callable[..., object]
"""(model, optimizer, batch) -> the loss: one step of training, forward, backward and the optimiser's step."""
METRIC_DRAWS = 200
"""Bootstrap draws of a metric that is one number of all samples, each computed anew."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Utility of the grown model minus that of its twin, both measured on the same validation."""

    grown: float | None
    """Score of the grown model; None where it could not be measured."""
    twin: float | None
    """Score of the twin."""
    rent: float
    """What the grown model's added parameters cost."""
    unit: str
    """What the score is, in words."""
    low: float | None = None
    """Of the 95 % interval of the gain, by a bootstrap over pairs; None where there are none, or too few."""
    high: float | None = None
    over: str = ""
    """What was paired: '300 samples' or '7 batches'; empty where the validation is one number."""

    @property
    def value(self) -> float | None:
        """Score of the grown model minus its rent, over the score of its twin; None where either is unknown."""
        return None if self.grown is None or self.twin is None else self.grown - self.rent - self.twin

    @property
    def pays(self) -> bool:
        """Whether the grown model is worth its rent; one that could not be measured is not."""
        return self.grown is not None and (self.value is None or self.value >= 0.0)

    @property
    def better(self) -> str:
        """Which of the two is given back, in words."""
        return "grown model" if self.pays else "twin, which is better"

    def __str__(self) -> str:
        if self.value is None:
            lost = "grown model" if self.grown is None else "twin"
            return f"gain unknown: the {lost} could not be measured"
        interval = f" [{self.low:+.4f}, {self.high:+.4f}]" if self.low is not None else ""
        pairs = f"paired over {self.over}" if self.over else "one number each, so without an interval"
        if self.over and self.low is None:
            pairs += ", too few for an interval"
        gained = f"gain {self.value:+.4f}{interval} over the twin, after rent of {self.rent:.4f}"
        return f"{gained} ({pairs}); score: {self.unit}"


class Twin:
    """A copy of the model and its optimiser as they were before anything grew, trained beside it.

    It sees the same batches with the same random numbers, and follows what the loop sets: the learning rates (and all
    other settings) of the model's own parameter groups, which parameters are trained, and the modes of its modules.
    Without growth both stay the same bit for bit on the CPU.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, train_step: TrainStep) -> None:
        try:
            self.model = copy.deepcopy(model)
        except (RuntimeError, TypeError) as error:
            raise WrapError(f"the model cannot be copied, so it can have no twin: {error}") from error
        self.batches = 0
        self.seconds, self.seconds_beside = 0.0, 0.0
        """Of its training, and of the grown model's; on the CPU, where a call ends when its work does."""
        self._train_step = train_step
        self._steps = 0
        self._groups = len(optimizer.param_groups)
        self._modules = list(zip(model.modules(), self.model.modules(), strict=True))
        self._parameters = list(zip(model.parameters(), self.model.parameters(), strict=True))
        self.optimizer = _copy_over(optimizer, {id(theirs): ours for theirs, ours in self._parameters})
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: object) -> None:
        self._steps += 1

    def train(self, grown: nn.Module, optimizer: Optimizer, batch: object) -> object:
        """One step of both; returns what the grown model's gave, detached."""
        self._follow(optimizer)
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        random, on_devices = torch.get_rng_state(), [torch.cuda.get_rng_state(each) for each in devices]
        began = time.perf_counter()
        found = tree_map_only(Tensor, lambda loss: loss.detach(), self._train_step(grown, optimizer, batch))
        middle, rates, before = time.perf_counter(), self._settings(optimizer), _versions(grown)
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(random)
            for device, state in zip(devices, on_devices, strict=True):
                torch.cuda.set_rng_state(state, device)
            self._train_step(self.model, self.optimizer, batch)
        if _versions(grown) != before:
            raise RuntimeError(
                "twin= trained the model of your loop while it was given the twin: it must use its arguments (model, "
                "optimizer, batch) and no model from outside"
            )
        if [group["lr"] for group in rates] != [group["lr"] for group in self._settings(optimizer)]:
            raise RuntimeError(
                "the learning rate of the model's optimizer changed while the twin was trained: twin= must use only "
                "its arguments. Call scheduler.step() in your loop, after grower.train(batch)"
            )
        self.batches += 1
        self.seconds_beside += middle - began
        self.seconds += time.perf_counter() - middle
        return found

    def _follow(self, optimizer: Optimizer) -> None:
        """Take over what the loop may set in the model and its optimiser."""
        late = [p for group in optimizer.param_groups[self._groups :] for p in group["params"]]
        owned = {id(theirs) for theirs, _ in self._parameters}
        if any(id(parameter) in owned for parameter in late):
            raise ValueError(
                "the optimizer was given more parameters of the model after the Grower was made, which the twin's "
                "does not have: give it all of them at first, and freeze some with requires_grad_(False)"
            )
        for group, values in zip(self.optimizer.param_groups, self._settings(optimizer), strict=True):
            group.update(values)
        self._follow_modes()

    def _follow_modes(self) -> None:
        for theirs, ours in self._modules:
            ours.training = theirs.training
        for parameter, copied in self._parameters:
            copied.requires_grad_(parameter.requires_grad)

    def export(self) -> nn.Module:
        """A copy of it in the modes of the model, without gradients."""
        self._follow_modes()
        plain = copy.deepcopy(self.model)
        for parameter in plain.parameters():
            parameter.grad = None
        return plain

    def _settings(self, optimizer: Optimizer) -> list[dict[str, object]]:
        """Learning rate, momentum and so on of each group that was there from the start."""
        return [
            {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in group.items()
                if name not in ("params", "param_names")
            }
            for group in optimizer.param_groups[: self._groups]
        ]

    def require_same(self, steps: int) -> None:
        """Raise unless its optimiser stepped as often in this epoch as the model's did."""
        if self._steps != steps:
            raise RuntimeError(
                f"the optimizer stepped {steps} times in this epoch and the twin's {self._steps} times: train only "
                "with grower.train(batch), and let twin= step the optimizer that it is given"
            )

    def begin_epoch(self) -> None:
        """Count steps anew."""
        self._steps = 0

    def story(self, gain: Gain | None) -> str:
        """What it cost, and at the end what it has shown."""
        told = [] if gain is None else [str(gain), f"finish: gave back the {gain.better}"]
        return "\n".join([self._cost(), *told])

    def _cost(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        told = f"twin: trained on {self.batches:,} batches, {parameters:,} parameters more in memory"
        on_cpu = all(parameter.device.type == "cpu" for parameter in self.model.parameters())
        if not on_cpu or not self.batches:
            return told
        return f"{told}, {self.seconds:.1f} s beside the {self.seconds_beside:.1f} s of the grown model"

    def state_dict(self) -> dict[str, object]:
        """Weights, the optimiser's state and what it has cost so far, as copies."""
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "batches": self.batches,
            "steps": self._steps,
            "seconds": [self.seconds, self.seconds_beside],
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken."""
        weights, optimizer = state["model"], state["optimizer"]
        batches, steps, seconds = state["batches"], state["steps"], state["seconds"]
        if not isinstance(weights, dict) or not isinstance(optimizer, dict):
            raise TypeError("the twin's state is not that of a state_dict")
        if not isinstance(batches, int) or not isinstance(steps, int):
            raise TypeError(
                f"the twin's batches are {batches!r}, its steps {steps!r}; expected whole numbers"
            )
        if not isinstance(seconds, list) or len(seconds) != 2:
            raise TypeError(f"the twin's seconds are {seconds!r}; expected two numbers")
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(optimizer)
        self.batches, (self.seconds, self.seconds_beside) = batches, map(float, seconds)
        self._steps = steps


def _copy_over(optimizer: Optimizer, counterparts: Mapping[int, Tensor]) -> Optimizer:
    """A copy of an optimiser over other parameters: id of each -> the one in its place."""
    copied = blank_copy(optimizer)
    for group in optimizer.param_groups:
        options = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        members = [counterparts[id(parameter)] for parameter in group["params"]]
        copied.param_groups.append(options | {"params": members})
    for parameter, state in optimizer.state.items():
        copied.state[counterparts.get(id(parameter), parameter)] = copy.deepcopy(state)
    return copied


def twin_of(
    model: nn.Module,
    optimizer: Optimizer,
    train_step: TrainStep | None,
    *,
    validate: ValidateCall | None,
    scaled: bool,
    keep_best: bool,
    processes: int,
) -> Twin | None:
    """The twin of a model that has not been wrapped yet, None without a step; raises where none can be honest.

    scaled     whether gradients are scaled, by a scaler that two models would share
    keep_best  whether the model may go back to its best epoch
    processes  that train the model together
    """
    if train_step is None:
        return None
    if not _takes_three(train_step):
        raise TypeError(
            f"twin is {train_step!r}; expected a function (model, optimizer, batch) -> loss that trains"
        )
    if isinstance(model, GrowingModel):
        raise WrapError(
            "the model is a GrowingModel and was wrapped already: a twin is copied from a plain model"
        )
    if validate is None:
        raise ValueError("twin is given and validate is not: there is nothing to measure the gain with")
    if processes > 1:
        raise WrapError(
            f"twin is given, and {processes} processes train the model: a twin is trained in one process"
        )
    if scaled:
        raise ValueError(
            "twin and scaler are given: two models cannot share a GradScaler. bfloat16 needs none"
        )
    if keep_best:
        raise ValueError(
            "twin and keep_best=True are given: the best of many epochs is better than the last one of the twin even "
            "where nothing grew. Leave one of them out"
        )
    owned = {id(parameter) for parameter in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in owned]
    if foreign:
        raise ValueError(
            f"the optimizer holds {len(foreign)} tensors that are no parameters of the model: the twin would train "
            "them too. Make them a part of the model"
        )
    return Twin(model, optimizer, train_step)


def _takes_three(function: object) -> bool:
    """Whether it can be called with three arguments; what does not show its arguments counts as if it could."""
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind("model", "optimizer", "batch")
    except TypeError:
        return False
    return True


# The gain


def measure_gain(
    grown: nn.Module, twin: nn.Module, validate: ValidateCall, scale: Scale, *, rent: float
) -> Gain:
    """Both on the same validation, batch by batch together, so that a loader may shuffle."""
    if not isinstance(validate, LoaderValidation):
        ours, theirs = (_metrics(model, validate, scale) for model in (grown, twin))
        _begin(scale, ours)
        return Gain(scale.score(ours), scale.score(theirs), rent, str(scale))
    with measuring(grown), measuring(twin):
        tallies = validate.tallies(grown, twin)
    ours, theirs = (read_validation(tally.result(), scale.mode)[0] for tally in tallies)
    _begin(scale, ours)
    gain = Gain(scale.score(ours), scale.score(theirs), rent, str(scale))
    if gain.value is None or scale.unit is None:
        return gain
    sign = 1.0 if scale.by == "accuracy" or scale.mode == "max" else -1.0
    found = (
        _whole_interval(tallies) if scale.by == "metric" else _row_interval(tallies, scale.by == "accuracy")
    )
    if found is None:
        return gain
    bounds, over = found
    if bounds is None:
        return replace(gain, over=over)
    low, high = bounds
    ends = sorted((sign * low / scale.unit, sign * high / scale.unit))
    return replace(gain, low=ends[0] - rent, high=ends[1] - rent, over=over)


def _metrics(model: nn.Module, validate: ValidateCall, scale: Scale) -> EpochMetrics:
    with measuring(model):
        return read_validation(validate(model), scale.mode)[0]


def _begin(scale: Scale, metrics: EpochMetrics) -> None:
    """A loop that reported its own numbers, and never had a live seed, has no unit of `validate` yet."""
    scale.observe(metrics)
    scale.close()


def _row_interval(
    tallies: Sequence[Tally], by_accuracy: bool
) -> tuple[tuple[float, float] | None, str] | None:
    """Of the difference of means, by a bootstrap over samples, or batches where only their means are known.

    A mean is sum(t) / sum(c) of totals and counts; its bootstrap is that of the mean of
    D + (d_i - D c_i) / mean(c), with d_i the difference of totals and D that of means.
    """
    ours, theirs = (tally.hits if by_accuracy else tally.losses for tally in tallies)
    difference = torch.cat([a.totals.double() - b.totals.double() for a, b in zip(ours, theirs, strict=True)])
    counts = torch.cat([rows.counts.double() for rows in ours])
    if len(difference) < 2 or not bool(difference.isfinite().all()):
        return None
    mean = difference.sum() / counts.sum()
    parts = mean + (difference - mean * counts) / counts.mean()
    kind = "samples" if len(difference) == tallies[0].samples else "batches"
    return mean_interval(parts.cpu().numpy()), f"{len(difference):,} {kind}"


def _whole_interval(tallies: Sequence[Tally]) -> tuple[tuple[float, float] | None, str] | None:
    """Of the difference of a metric of all samples, computed anew for samples drawn with replacement."""
    metric = tallies[0].metric
    if metric is None or isinstance(metric, RunningMetric):
        return None
    wholes = [joined(tally.gathered) for tally in tallies]
    samples = tallies[0].samples
    if any(len(leaf) != samples for leaf in tree_leaves(wholes)):
        return None
    if samples < LEAST:
        return None, f"{samples:,} samples"
    random, draws = np.random.default_rng(0), []
    for _ in range(METRIC_DRAWS):
        rows = torch.from_numpy(random.integers(samples, size=samples))
        drawn = [tree_map_only(Tensor, rows_of(rows), whole) for whole in wholes]
        try:
            one, other = (float(metric(*whole)) for whole in drawn)  # type: ignore[arg-type]
        except Exception:
            return None
        draws.append(one - other)
    if not all(map(math.isfinite, draws)):
        return None
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    return (low, high), f"{samples:,} samples"


def rows_of(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """The function that picks these rows of a tensor."""
    return lambda tensor: tensor[rows]


def _versions(model: nn.Module) -> list[tuple[int, int | None, int | None]]:
    """Which values the parameters and their gradients have: any that is written to changes it."""
    return [
        (p._version, None if p.grad is None else id(p.grad), None if p.grad is None else p.grad._version)
        for p in model.parameters()
    ]
