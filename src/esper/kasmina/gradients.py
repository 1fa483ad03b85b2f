"""Gradients in few numbers: norm, health, vanishing, exploding; measured on the device, read once."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.kasmina.model import GrowingModel
from esper.kasmina.replicas import whole
from esper.kasmina.steps import before_updates
from esper.leyline import Stage

VANISHING_NORM = 1e-7
EXPLODING_NORM = 1e2


@dataclass(frozen=True, slots=True)
class SeedGradientStats:
    """What the gradients of one seed looked like. Without gradients nothing was measured."""

    gradient_norm: float
    gradient_health: float
    """0..1: the share of gradient tensors that are finite and neither vanish nor explode."""
    has_vanishing: bool
    has_exploding: bool
    """A norm over the threshold, or one that is not finite."""
    measured: bool


NOT_MEASURED = SeedGradientStats(0.0, 1.0, has_vanishing=False, has_exploding=False, measured=False)


class SeedGradientCollector:
    """Reads the `.grad` of a seed's parameters with one multi-tensor norm and no wait for the device.

    vanishing  a gradient tensor with a norm under this counts as vanished
    exploding  over this as exploded
    """

    def __init__(self, *, vanishing: float = VANISHING_NORM, exploding: float = EXPLODING_NORM) -> None:
        if not 0.0 <= vanishing < exploding:
            raise ValueError(f"vanishing={vanishing!r} must be >= 0 and below exploding={exploding!r}")
        self.vanishing, self.exploding = vanishing, exploding

    @torch.no_grad()  # not inference_mode: the caller writes into what is returned
    def collect_async(self, params: Iterable[Tensor]) -> Tensor | None:
        """(norm, share of vanished tensors, share of exploded ones) on the device; None without gradients."""
        gradients = [parameter.grad for parameter in params if parameter.grad is not None]
        if not gradients:
            return None
        return self.readings(norms_of(gradients).float())

    def readings(self, norms: Tensor) -> Tensor:
        """(..., tensor), the norm of each gradient -> (..., 3), as `collect_async` returns them."""
        vanished = norms < self.vanishing
        exploded = ~(norms <= self.exploding)  # NaN is not below anything
        found = (
            torch.linalg.vector_norm(norms, dim=-1),
            vanished.float().mean(-1),
            exploded.float().mean(-1),
        )
        return torch.stack(found, dim=-1)

    def collect(self, params: Iterable[Tensor]) -> SeedGradientStats:
        """The same for one seed, read at once."""
        return materialize_grad_stats([self.collect_async(params)])[0]


def norms_of(gradients: list[Tensor]) -> Tensor:
    """(tensor,): the norm of each, on the device of the first."""
    return together(torch._foreach_norm(gradients))


def together(norms: Sequence[Tensor]) -> Tensor:
    """(tensor,): single numbers as one tensor, whole, on the device of the first."""
    return whole(torch.stack([norm.to(norms[0].device) for norm in norms]))


def materialize_grad_stats(readings: Sequence[Tensor | None]) -> list[SeedGradientStats]:
    """What `collect_async` left on the device, for many seeds, with one wait for it."""
    present = [reading for reading in readings if reading is not None]
    rows = iter(torch.stack(present).tolist() if present else [])
    return [NOT_MEASURED if reading is None else stats_from(*next(rows)) for reading in readings]


def stats_from(norm: float, vanished: float, exploded: float) -> SeedGradientStats:
    """The stats of one seed, from what `collect_async` measured."""
    return SeedGradientStats(
        gradient_norm=norm,
        gradient_health=max(1.0 - vanished - exploded, 0.0),
        has_vanishing=vanished > 0.0,
        has_exploding=exploded > 0.0,
        measured=True,
    )


# In a training loop of any kind: at the optimiser's steps


@dataclass(frozen=True, slots=True)
class SeedGradients:
    """The gradients of one seed, means over an epoch's steps."""

    norm: float
    health: float
    finite: bool


STRIDE = 3
"""While no seed learns, one step of so many is looked at: what is wanted of the host is a mean over an epoch.

An odd number: loops take turns in twos and fours.
"""
STEPS_TOGETHER = 64
"""Of how many steps a `GradientWatch` reads the norms at once."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """What a step's row holds: the norms of the host's gradients, then those of each seed's, then their scale."""

    host: int
    """How many gradients there are."""
    seeds: tuple[tuple[str, int], ...]
    """Slots, and how many gradients the seed of each has."""
    scaled: bool
    """Whether the last column is the number by which all gradients are too large."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """Parameters whose gradients are looked at."""

    host: list[nn.Parameter]
    seeds: dict[str, list[nn.Parameter]]
    """By slot."""
    stages: list[tuple[Stage, bool]]
    """Of each slot when they were found, and whether its seed fades."""


class GradientWatch:
    """Counts the optimiser's steps and sums gradient norms on the device; nothing waits until `take`.

    Every step is looked at while a seed is live and does not fade, the first of every `STRIDE` while none is. Steps
    in which the host's gradient is not finite are left out: a `GradScaler` skips them.
    before_first  called once, before the first step
    """

    def __init__(self, model: GrowingModel, optimizer: Optimizer, before_first: Callable[[], None]) -> None:
        self.steps = 0
        """Of the optimiser since `take`."""
        self._model, self._collector = model, SeedGradientCollector()
        self._before_first: Callable[[], None] | None = before_first
        self._host: Tensor | None = None  # (norm, steps), summed
        self._missed: dict[str, int] = {}  # slot -> steps without any gradient of its seed, which learns
        self._seeds: dict[str, Tensor] = {}  # slot -> (norm, share vanished, share exploded, steps), summed
        # Norms that are not yet in the sums, (step, column), in memory that lasts: small tensors that outlive a step
        # would break up the large blocks in which the next one's activations lie.
        self._unread: Tensor | None = None
        self._columns, self._rows = _Columns(0, (), scaled=False), 0
        self._watched: _Watched | None = None  # found at the first step since `take`
        self._optimizer = optimizer
        self._handle = before_updates(optimizer, self._look)
        if model.care is not None:
            model.care.handles.append(self._handle)

    def detach(self) -> None:
        """Take the hook off the optimiser."""
        self._handle.remove()

    def take(self) -> tuple[float | None, dict[str, SeedGradients]]:
        """The host's gradient norm and what is known of each seed, means over the steps that were looked at.

        Begins the next epoch.
        """
        self._read()
        host, seeds = self._host, self._seeds
        self.steps, self._host, self._seeds, self._missed, self._watched = 0, None, {}, {}, None
        found = {}
        for name, sums in seeds.items():
            norm, vanished, exploded, steps = sums.tolist()
            slot = self._model.slots[name]
            if not steps or slot.seed is None:
                continue
            finite = math.isfinite(norm) and not bool(slot.non_finite.any())
            health = max(1.0 - (vanished + exploded) / steps, 0.0)
            found[name] = SeedGradients(norm / steps, health, finite)
        norm, steps = (0.0, 0.0) if host is None else host.tolist()
        return norm / steps if steps else None, found

    @property
    def unreached(self) -> list[str]:
        """The slots of live seeds that no backward has reached since `take`; from one that broke it is kept."""
        missed = [name for name, steps in self._missed.items() if steps == self.steps]
        return [name for name in missed if not bool(self._model.slots[name].non_finite.any())]

    def state_dict(self) -> dict[str, object]:
        """What was seen since `take`, for a checkpoint in the middle of an epoch."""
        self._read()
        host = None if self._host is None else self._host.tolist()
        seeds = {name: sums.tolist() for name, sums in self._seeds.items()}
        return {"steps": self.steps, "host": host, "seeds": seeds, "missed": dict(self._missed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        device = next(self._model.host.parameters()).device
        self._rows, self._watched = 0, None
        self.steps = int(state["steps"])
        self._host = None if state["host"] is None else torch.tensor(state["host"], device=device)
        self._seeds = {name: torch.tensor(sums, device=device) for name, sums in state["seeds"].items()}
        self._missed = dict(state["missed"])

    @torch.no_grad()  # not inference_mode: what is remembered before the first step is trained on when restored
    def _look(self, evaluation: int) -> None:
        if evaluation:  # a closure that is called again, for the step that was counted
            return
        if self._before_first is not None:
            self._before_first()
            self._before_first = None
        self.steps += 1
        stages = [(slot.life.stage, slot.life.fading) for slot in self._model.slots.values()]
        if self._watched is None or self._watched.stages != stages:
            self._watched = self._find(stages)
        if not self._watched.seeds and (self.steps - 1) % STRIDE:
            return
        gradients = [p.grad for p in self._watched.host if p.grad is not None and not p.grad.is_sparse]
        hosts, counts = len(gradients), []
        for name, parameters in self._watched.seeds.items():
            theirs = [p.grad for p in parameters if p.grad is not None]
            if theirs:
                counts.append((name, len(theirs)))
                gradients += theirs
            elif any(p.requires_grad for p in parameters):
                self._missed[name] = self._missed.get(name, 0) + 1
        if hosts:
            scale = _scale(self._optimizer)
            norms = torch._foreach_norm(gradients)
            row = together(norms if scale is None else [*norms, scale])
            self._keep(row, _Columns(hosts, tuple(counts), scaled=scale is not None))

    def _keep(self, row: Tensor, columns: _Columns) -> None:
        """Remember what a step showed until it is read; rows that are read together have the same columns."""
        if self._rows == STEPS_TOGETHER or columns != self._columns:
            self._read()
        if self._unread is None or columns != self._columns:
            self._unread, self._columns = row.new_empty(STEPS_TOGETHER, len(row)), columns
        self._unread[self._rows] = row
        self._rows += 1

    @torch.no_grad()
    def _read(self) -> None:
        """Add the steps that wait for it to the sums, one after another."""
        rows, self._rows = self._rows, 0
        if self._unread is None or not rows:
            return
        columns, norms = self._columns, self._unread[:rows]  # (step, column)
        hosts = torch.linalg.vector_norm(norms[:, : columns.host], dim=1).float()  # (step,)
        scale = norms[:, -1].float() if columns.scaled else None
        hosts = hosts if scale is None else hosts / scale
        usable = torch.isfinite(hosts)
        self._host = _added(self._host, torch.stack((torch.where(usable, hosts, 0.0), usable.float()), dim=1))
        first = columns.host
        for name, count in columns.seeds:
            seen = self._collector.readings(norms[:, first : first + count].float())
            first += count
            if scale is not None:
                seen[:, 0] /= scale
            seen = torch.cat((torch.where(usable[:, None], seen, 0.0), usable[:, None].float()), dim=1)
            self._seeds[name] = _added(self._seeds.get(name), seen)  # (step, 4)

    def _find(self, stages: list[tuple[Stage, bool]]) -> _Watched:
        """The parameters of now: the host's, and those of seeds that are live and do not fade.

        A seed that takes another's slot within an epoch, in its stage, is watched from the next on.
        """
        seeds = {
            slot.name: list(slot.seed.parameters())
            for slot in self._model.slots.values()
            if slot.stage.is_live and not slot.life.fading and slot.seed is not None
        }
        return _Watched(list(self._model.bare_parameters()), seeds, stages)


def _added(sums: Tensor | None, rows: Tensor) -> Tensor:
    """(column,) plus the rows (step, column) in their order, so that it does not matter how many come at once."""
    for row in rows:
        sums = row if sums is None else sums.to(row.device) + row
    assert sums is not None
    return sums


def _scale(optimizer: Optimizer) -> Tensor | None:
    """By which a `GradScaler` has scaled the gradients that a fused optimiser is about to unscale itself."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale.detach().clone().view(()) if isinstance(scale, Tensor) else None
