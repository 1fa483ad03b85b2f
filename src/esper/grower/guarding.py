"""What the gradients of an epoch looked like, read where every loop comes by: at the optimiser's steps."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from esper.grower.measuring import EpochMetrics
from esper.kasmina import GrowingModel
from esper.kasmina.governor import Governor, GovernorRules, Verdict, Vitals
from esper.kasmina.gradients import SeedGradientCollector
from esper.kasmina.snapshots import ModelSnapshot

# The governor in a user's loop: it takes a model that broke back to its last good epoch, and training goes on.


BROKEN_EPOCHS = 2
"""Epochs in a row that a seed may put out NaN or Inf before it is removed. One can be a scaler's overflow."""

LEAST_FIRST_LOSS = 1.0
"""A first loss can be small (a good start, or just the last batch's): noise over it is no divergence."""


class Guard:
    """Remembers the last good epoch in memory: a second copy of weights and optimiser state.

    A host is judged by its own past: diverged is a training loss over `divergence_factor` times the first epoch's,
    collapsed an accuracy that is nearly gone.
    """

    def __init__(self, model: GrowingModel, rules: GovernorRules | None) -> None:
        self._model = model
        self._governor = (
            None if rules is None else Governor(rules, chance_accuracy=0.0, untrained_loss=math.inf)
        )
        self._memory: ModelSnapshot | None = None
        self._broken: dict[str, int] = {}

    def remember(self) -> None:
        """The model as it is now is worth going back to."""
        if self._governor is None:
            return
        if self._memory is None:
            self._memory = ModelSnapshot(self._model)
        else:
            self._memory.take()

    def restore(self) -> None:
        """Go back to it, if anything was remembered."""
        if self._memory is not None:
            self._memory.restore()

    def judge(self, metrics: EpochMetrics, gradient_norm: float | None) -> Verdict | None:
        """None if the model may go on. What is unknown is not held against it."""
        governor = self._governor
        if governor is None:
            return None
        loss = metrics.train_loss
        if loss is None and not _finite_weights(self._model):
            loss = math.nan
        if math.isinf(governor.untrained_loss) and loss is not None and math.isfinite(loss) and loss > 0:
            governor.untrained_loss = max(loss, LEAST_FIRST_LOSS)
        return governor.judge(
            Vitals(
                train_loss=0.0 if loss is None else loss,
                gradient_norm=0.0 if gradient_norm is None else gradient_norm,
                validation_loss=0.0 if metrics.validation_loss is None else metrics.validation_loss,
                validation_accuracy=(
                    governor.best_accuracy
                    if metrics.validation_accuracy is None
                    else metrics.validation_accuracy
                ),
                seeds_finite=True,  # seeds are kept away from the host, and judged by `broken_seeds`
            )
        )

    @property
    def content(self) -> bool:
        """Whether the epoch judged last is worth going back to."""
        return self._governor is not None and self._governor.content

    def gives_up(self) -> bool:
        """Whether going back has not helped; from here on the model is left alone."""
        if self._governor is None or not self._governor.gives_up:
            return False
        self._governor = self._memory = None
        return True

    def broken_seeds(self) -> list[str]:
        """Live seeds that were not finite for `BROKEN_EPOCHS` epochs, this one included."""
        for name, slot in self._model.slots.items():
            broken = slot.stage.is_live and bool(slot.non_finite.any())
            self._broken[name] = self._broken.get(name, 0) + 1 if broken else 0
        return [name for name, epochs in self._broken.items() if epochs >= BROKEN_EPOCHS]

    def state_dict(self) -> dict[str, object]:
        governor = self._governor
        if governor is None:
            return {"governor": None, "untrained_loss": None, "broken": dict(self._broken)}
        return {
            "governor": governor.state_dict(),
            "untrained_loss": governor.untrained_loss,
            "broken": dict(self._broken),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        governor, untrained, broken = state["governor"], state["untrained_loss"], state["broken"]
        if self._governor is not None and isinstance(governor, dict) and isinstance(untrained, float):
            self._governor.load_state_dict(governor)
            self._governor.untrained_loss = untrained
        if isinstance(broken, dict):
            self._broken = dict(broken)


@torch.no_grad()
def _finite_weights(model: GrowingModel) -> bool:
    return all(bool(p.isfinite().all()) for p in model.host.parameters())


# Whether a change of the model makes torch.compile work again.


class CompileWatch:
    """Remembers what had been compiled before the model was grown: that is not its affair."""

    def __init__(self, model: GrowingModel) -> None:
        self._model, self._graphs_before = model, _compiled_graphs()

    def topology(self) -> tuple[object, ...]:
        """What a graph depends on; alpha does not belong to it."""
        slots = self._model.slots.values()
        return tuple((slot.life.births, slot.stage, slot.life.fading) for slot in slots)

    def recompiles(self, before: tuple[object, ...]) -> bool:
        """Whether the next forward compiles anew, the topology having been `before`."""
        return before != self.topology() and _compiled_graphs() > self._graphs_before


def _compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process."""
    if "torch._dynamo" not in sys.modules:  # a second's import, and without it nothing has been compiled
        return 0
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@dataclass(frozen=True, slots=True)
class SeedGradients:
    """Of one seed, mean over the epoch's steps. Without a step nothing is known."""

    norm: float
    health: float
    finite: bool


@dataclass(slots=True)
class _Sum:
    total: Tensor
    steps: Tensor | float


class GradientWatch:
    """Counts the optimiser's steps and sums gradient norms on the device; nothing waits until `take`.

    Steps in which the host's gradient is not finite are left out: a `GradScaler` skips them.
    """

    def __init__(self, model: GrowingModel, optimizer: Optimizer, before_first: Callable[[], None]) -> None:
        self.steps = 0
        """Of the optimiser since `take`."""
        self._model, self._collector = model, SeedGradientCollector()
        self._before_first: Callable[[], None] | None = before_first
        self._host: _Sum | None = None
        self._seeds: dict[str, _Sum] = {}
        optimizer.register_step_pre_hook(self._look)

    def take(self) -> tuple[float | None, dict[str, SeedGradients]]:
        """The host's gradient norm and what is known of each seed; begins the next epoch."""
        host, seeds = self._host, self._seeds
        self.steps, self._host, self._seeds = 0, None, {}
        found = {}
        for name, part in seeds.items():
            norm, vanished, exploded, steps = [*part.total.tolist(), float(part.steps)]
            slot = self._model.slots[name]
            if not steps or slot.seed is None:
                continue
            finite = math.isfinite(norm) and not bool(slot.non_finite.any())
            health = max(1.0 - (vanished + exploded) / steps, 0.0)
            found[name] = SeedGradients(norm / steps, health, finite)
        norm = None if host is None or not float(host.steps) else float(host.total) / float(host.steps)
        return norm, found

    @torch.no_grad()
    def _look(self, optimizer: Optimizer, *_: object) -> None:
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        self.steps += 1
        host = _norm(self._model.host.parameters())
        if host is None:
            return
        host = host / _scale(optimizer, host)
        usable = torch.isfinite(host)
        self._host = _added(self._host, torch.where(usable, host, 0.0), usable.float())
        for name, slot in self._model.slots.items():
            if slot.seed is None or not slot.stage.is_live or slot.life.fading:
                continue
            seen = self._collector.collect_async(slot.seed.parameters())
            if seen is None:
                continue
            seen[0] /= _scale(optimizer, seen)
            here = usable.to(seen.device)
            self._seeds[name] = _added(self._seeds.get(name), torch.where(here, seen, 0.0), here.float())


def _added(so_far: _Sum | None, reading: Tensor, steps: Tensor) -> _Sum:
    if so_far is None:
        return _Sum(reading, steps)
    return _Sum(so_far.total + reading, so_far.steps + steps)


def _norm(parameters: Iterable[Tensor]) -> Tensor | None:
    gradients = [p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse]
    if not gradients:
        return None
    return torch.nn.utils.get_total_norm(gradients).float()


def _scale(optimizer: Optimizer, like: Tensor) -> Tensor | float:
    """By which a `GradScaler` has scaled the gradients that a fused optimiser is about to unscale itself."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale.to(like.device) if isinstance(scale, Tensor) else 1.0
