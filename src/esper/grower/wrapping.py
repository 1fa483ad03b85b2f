"""The model that a grower grows: wrapped here as its options say, or wrapped already."""

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import nn
from torch.optim import Optimizer

from esper.kasmina import GrowingModel, GrowthRules, WrapError, wrap
from esper.kasmina.probing import ExampleInput
from esper.leyline import (
    BlueprintCard,
    EpochReport,
    EventSink,
    Layout,
    LegalOperations,
    SlotConfig,
    SlotReading,
    SlotSnapshot,
)
from esper.tamiyo.deciders import Decider

# What a training loop is warned of, and what else there is to note of an epoch.


_PACKAGE = __name__.partition(".")[0]


class GrowthWarning(UserWarning):
    """Something is not as it should be; training goes on, and the message says what to do."""


@dataclass(slots=True)
class Notes:
    """What happened since the last decision, for the next one to carry."""

    told_once: set[str] = field(default_factory=set)
    _pending: list[str] = field(default_factory=list)

    def add(self, note: str) -> None:
        self._pending.append(note)

    def warn(self, message: str, *, once: str | None = None) -> None:
        """Warn and note it; what has a name in `once` only the first time."""
        if once is not None:
            if once in self.told_once:
                return
            self.told_once.add(once)
        self.add(message)
        warnings.warn(message, GrowthWarning, stacklevel=_levels_to_user() + 1)

    def take(self) -> tuple[str, ...]:
        taken, self._pending = tuple(self._pending), []
        return taken


def _levels_to_user() -> int:
    """Frames from the caller up to the first that is not Esper's: a warning points at the user's own line."""
    frame, levels = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, levels = frame.f_back, levels + 1
    return levels - 1


# What a grower does not take on, and what it has doubts about, told when it is made.


EPOCHS_TO_BLEND = 2
"""Of a seed's life until the output shows it: one behind the host, and one of its ramp."""


def refuse_parallel(model: nn.Module) -> None:
    """Growth changes a model's parameters; replicas would have to change together."""
    kind = type(model).__name__
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) or kind.startswith(
        "FullyShard"
    ):
        raise WrapError(
            f"the model is a {kind}: growing several replicas together is not supported yet. Grow the plain model in "
            "one process on one device, and distribute what finish() gives back"
        )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        processes = torch.distributed.get_world_size()
        if processes > 1:
            raise WrapError(
                f"torch.distributed runs {processes} processes: growing several replicas together is not supported "
                "yet. Grow in one process, and distribute what finish() gives back"
            )


def require_count(name: str, value: object) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is not None and not whole:
        raise ValueError(f"{name} is {value!r}; expected a whole number >= 1, or None where it is unknown")


def untrained_part(host: nn.Module, optimizer: Optimizer) -> str | None:
    """What to say of an optimiser that leaves out parameters that could be trained; None if it has them all."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trainable = {name: p for name, p in host.named_parameters() if p.requires_grad}
    missing = [name for name, parameter in trainable.items() if id(parameter) not in owned]
    if not missing:
        return None
    total = sum(parameter.numel() for parameter in trainable.values())
    held = total - sum(trainable[name].numel() for name in missing)
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"the optimizer holds {held:,} of the model's {total:,} trainable parameters: {missing[0]}{others} will not "
        "be trained. Make it from model.parameters(), or call requires_grad_(False) on what is meant to stay as it is"
    )


def too_short(who: Decider, epochs: int | None) -> str | None:
    """What to say of a run in which this decider cannot grow anything; None if it can."""
    first_growth = who.settings.first_growth
    if epochs is None or not first_growth or epochs >= first_growth + EPOCHS_TO_BLEND:
        return None
    return (
        f"controller {who.name} germinates nothing before epoch {first_growth}, so in epochs={epochs} no seed can "
        "take part: train longer, or choose a rule such as probe_and_keep"
    )


def nothing_on_the_menu(who: Decider, cards: Mapping[str, Sequence[BlueprintCard]]) -> str | None:
    """What to say of a model whose slots are offered nothing that this decider germinates; None if some are."""
    menu = who.settings.menu
    if menu is None or any(card.name in menu for offered in cards.values() for card in offered):
        return None
    return (
        f"controller {who.name} germinates {', '.join(menu)} only, and no slot is offered that: nothing will grow. "
        "Choose another controller, or a rule such as probe_and_keep"
    )


# A growing model in somebody else's loop, as deciders read hosts.


UNTRAINED = EpochReport(0, None, None, math.nan, None, None, None)
TYPICAL_SAMPLES = 1000
"""Stands for a training set whose size nobody told: the middle of the observation's scale."""


class LoopHost:
    """Leyline's `HostProtocol`; whoever owns the loop writes `report` after each epoch."""

    def __init__(self, model: GrowingModel, training_samples: int | None) -> None:
        self.model, self.report = model, UNTRAINED
        self._samples = TYPICAL_SAMPLES if training_samples is None else training_samples

    @property
    def slot_config(self) -> SlotConfig:
        return self.model.slot_config

    @property
    def cards(self) -> Mapping[str, tuple[BlueprintCard, ...]]:
        return {name: slot.cards for name, slot in self.model.slots.items()}

    @property
    def host_parameters(self) -> int:
        return self.model.host_parameters

    @property
    def added_parameters(self) -> int:
        return self.model.added_parameters

    @property
    def training_samples(self) -> int:
        return self._samples

    def readings(self) -> list[SlotReading]:
        return self.model.readings()

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        return tuple(slot.snapshot() for slot in self.model.slots.values())

    def legal_operations(self) -> Mapping[str, LegalOperations]:
        return self.model.legal_operations()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """What `esper.wrap` is asked for; a default is what nobody has asked for."""

    slots: Sequence[str] | None = None
    example_input: ExampleInput | None = None
    layout: Layout | str | Mapping[str, Layout | str] | None = None
    causal: bool = False
    blueprints: Sequence[str] | None = None
    rules: GrowthRules | None = None
    events: EventSink | None = None
    isolation_penalty: float = 1.0

    def growing(self, model: nn.Module, *, accumulate: int, seed: int) -> GrowingModel:
        """The model, ready to grow. One that is a GrowingModel is taken as it is, and options are refused."""
        if isinstance(model, GrowingModel):
            self._refuse()
            return model
        if self.slots is None or self.example_input is None:
            raise WrapError(
                "slots and example_input are missing: where may the model grow, and what goes through it?"
            )
        return wrap(
            model,
            self.slots,
            self.example_input,
            layout=self.layout,
            causal=self.causal,
            blueprints=self.blueprints,
            rules=self.rules,
            isolation_penalty=self.isolation_penalty / accumulate,
            seed=seed,
            events=self.events,
        )

    def _refuse(self) -> None:
        """Somebody else has wrapped the model: options of wrapping would change nothing in it."""
        asked = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        # Only numbers are compared by value: a tensor would answer with a tensor.
        given = [
            name
            for name, (value, usual) in asked.items()
            if not (value == usual if isinstance(value, int | float) else value is usual)
        ]
        if given:
            raise WrapError(
                f"the model is a GrowingModel and was wrapped already: leave out {', '.join(given)}, or give them to "
                "esper.wrap"
            )
