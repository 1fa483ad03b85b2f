"""The stage machine of a slot: waiting times, alpha ramps, which operation is legal when, and what each does.

Pure bookkeeping, no tensors. `LivingSlot` and `LivingHost` are what can be seen of it, whatever grows.
An operation is applied before the tick, the tick before the epoch's training. So at the next decision a
counter says how many epochs have been trained in that state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Annotated, ClassVar, NamedTuple, TypeVar

from pydantic import ConfigDict, Field

from esper.leyline import (
    ALPHA_TARGETS,
    STYLES,
    BlueprintCard,
    Curve,
    Layout,
    LegalOperations,
    LifecycleOp,
    SlotReading,
    SlotSnapshot,
    Stage,
    Style,
)
from esper.leyline.errors import EsperError

_Choice = TypeVar("_Choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRules:
    """When an operation becomes legal. Epochs are counted in calls of `GrowingModel.tick()`."""

    max_live_seeds: int = 2
    """Seeds that may be TRAINING, BLENDING or HOLDING at once; fossils count just while they fade out."""
    min_training_epochs: int = 1
    """Epochs a seed trains in isolation before ADVANCE."""
    min_prune_age: int = 3
    """Epochs of life before PRUNE; epochs as a fossil before RETIRE."""
    min_holding_epochs: int = 1
    """Epochs at the alpha target before FOSSILIZE."""
    embargo_epochs: int = 2
    """Epochs a slot stays empty after a seed was removed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "max_live_seeds" else 0
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"GrowthRules.{field.name} must be an integer >= {least}, not {value!r}")


Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]
_STEEPNESS = {Curve.SIGMOID_GENTLE: 6.0, Curve.SIGMOID_NORMAL: 10.0, Curve.SIGMOID_SHARP: 16.0}


def curve_value(curve: Curve, progress: float) -> float:
    """The share of a ramp covered at `progress` in [0, 1]: monotone, exactly 0 at 0 and exactly 1 at 1.

    linear   p
    cosine   (1 - cos pi p) / 2
    sigmoid  (s(p) - s(0)) / (s(1) - s(0)) with s(p) = 1 / (1 + exp(-k (p - 1/2)))
    """
    progress = min(max(progress, 0.0), 1.0)
    if curve is Curve.LINEAR:
        return progress
    if curve is Curve.COSINE:
        return (1.0 - math.cos(math.pi * progress)) / 2.0
    # s(p) - 1/2 = tanh(k (p - 1/2) / 2) / 2, which is odd about p = 1/2
    steepness = _STEEPNESS[curve]
    return 0.5 + 0.5 * math.tanh(steepness * (progress - 0.5) / 2.0) / math.tanh(steepness / 4.0)


@dataclass(slots=True)
class Ramp:
    """Alpha on its way from `start` to `target` over `epochs` ticks; 0 epochs arrive on the first tick."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    start: Share
    target: Share
    epochs: Count
    curve: Curve
    elapsed: Count = 0

    @property
    def arrived(self) -> bool:
        """Whether alpha is at its target."""
        return self.elapsed >= max(self.epochs, 1)

    @property
    def epochs_left(self) -> int:
        """Ticks until it is."""
        return max(max(self.epochs, 1) - self.elapsed, 0)

    def tick(self) -> float:
        """Move one epoch on and return the new alpha."""
        self.elapsed += 1
        if self.arrived:
            return self.target
        return self.start + (self.target - self.start) * curve_value(self.curve, self.elapsed / self.epochs)


class Facts(NamedTuple):
    """Everything that legality depends on, at one slot at one time."""

    stage: Stage
    fading: bool
    place_free: bool
    """Fewer than `max_live_seeds` seeds are live."""
    prunable: bool
    """The seed has lived for `min_prune_age` epochs; a fossil has been one for as many."""
    trained: bool
    """The slot has been in its stage for `min_training_epochs` epochs."""
    held: bool
    """The slot has been in its stage for `min_holding_epochs` epochs."""
    finite: bool = True
    """No output or gradient of the seed was NaN or Inf in this epoch."""
    gradients_finite: bool | None = True
    """None where no gradient of the seed has been seen."""


Condition = tuple[Callable[[Facts], bool], str]
"""What must hold, and the reason that is given where it does not."""

_LIVE: tuple[Condition, ...] = (
    (lambda facts: not facts.fading, "the seed is fading out"),
    (lambda facts: facts.stage.is_live, "the slot has no live seed"),
)
_HOLDING: tuple[Condition, ...] = (
    *_LIVE,
    (lambda facts: facts.stage is Stage.HOLDING, "the seed is not HOLDING at its alpha target"),
)
LEGALITY: Mapping[LifecycleOp, tuple[Condition, ...]] = {
    LifecycleOp.WAIT: (),
    LifecycleOp.GERMINATE: (
        (lambda facts: facts.stage is Stage.DORMANT, "a seed can only be germinated in a DORMANT slot"),
        (
            lambda facts: facts.place_free,
            "as many seeds are live as max_live_seeds in rules=GrowthRules(...) allows",
        ),
    ),
    LifecycleOp.SET_ALPHA_TARGET: _HOLDING,
    LifecycleOp.PRUNE: (
        *_LIVE,
        (lambda facts: facts.prunable, "the seed is younger than min_prune_age"),
    ),
    LifecycleOp.FOSSILIZE: (
        *_HOLDING,
        (lambda facts: facts.held, "the seed has not held for min_holding_epochs (epochs begin with tick())"),
        (
            lambda facts: facts.finite,
            "the seed was not finite in this epoch, and the host would not be guarded from it any more",
        ),
    ),
    LifecycleOp.ADVANCE: (
        *_LIVE,
        (lambda facts: facts.stage is Stage.TRAINING, "only a seed in TRAINING can be advanced"),
        (
            lambda facts: facts.trained,
            "the seed has not trained for min_training_epochs (epochs begin with tick())",
        ),
        (
            lambda facts: facts.gradients_finite is not None,
            "no gradient of the seed has been seen; train an epoch first and ask before zero_grad(), or call "
            "report(slot, gradients_finite=True)",
        ),
        (lambda facts: bool(facts.gradients_finite), "the seed's gradients are not finite"),
    ),
    LifecycleOp.RETIRE: (
        (lambda facts: facts.stage is Stage.FOSSILIZED, "only a FOSSILIZED seed can be retired"),
        (lambda facts: facts.prunable, "the seed has not been a fossil for min_prune_age epochs"),
    ),
}
"""operation -> what must hold, in order. Legal operations, masks, refusals and their text all come from here."""


class IllegalOperation(EsperError, ValueError):
    """An operation that the slot's stage does not allow now."""

    def __init__(
        self, slot: str, stage: Stage, operation: LifecycleOp, reason: str, legal: frozenset[LifecycleOp]
    ) -> None:
        self.slot, self.stage, self.operation, self.reason, self.legal = slot, stage, operation, reason, legal
        names = ", ".join(op.name for op in sorted(legal))
        super().__init__(
            f"{operation.name} is not legal at slot {slot!r} in stage {stage.name}: {reason}. Legal now: {names}"
        )

    def __reduce__(self) -> tuple[type["IllegalOperation"], tuple[object, ...]]:
        return type(self), (self.slot, self.stage, self.operation, self.reason, self.legal)


def refusal(operation: LifecycleOp, facts: Facts) -> str | None:
    """Why `operation` is not legal, or None if it is."""
    return next((reason for holds, reason in LEGALITY[operation] if not holds(facts)), None)


def require_choice(name: str, value: object, choices: Sequence[_Choice]) -> _Choice:
    """The one of `choices` that equals the value; another value is an error that lists them."""
    for choice in choices:
        if choice == value:
            return choice
    raise ValueError(f"{name}={value!r} is not a choice here; choose from {', '.join(map(str, choices))}")


@cache  # there are a few hundred facts
def legal_bits(facts: Facts) -> int:
    """Bit `op` set where that operation is legal: the table in one number, for tensors."""
    return sum(1 << op for op in LifecycleOp if refusal(op, facts) is None)


@dataclass(slots=True)
class Life:
    """Where one slot stands."""

    rules: GrowthRules
    stage: Stage = Stage.DORMANT
    fading: bool = False
    """Pruned or retired with a ramp: frozen, on its way out."""
    age: int = 0
    epochs_in_stage: int = 0
    births: int = 0
    alpha: float = 0.0
    alpha_target: float | None = None
    style: Style | None = None
    tempo: int = 0
    ramp: Ramp | None = None

    @property
    def epochs_to_target(self) -> int:
        """Epochs left of the ramp; 0 without one."""
        return 0 if self.ramp is None else self.ramp.epochs_left

    def facts(self, *, free_places: int) -> Facts:
        """What legality depends on; a slot adds what is known of its seed's outputs and gradients."""
        rules = self.rules
        lived = self.epochs_in_stage if self.stage is Stage.FOSSILIZED else self.age
        return Facts(
            self.stage,
            self.fading,
            free_places > 0,
            lived >= rules.min_prune_age,
            self.epochs_in_stage >= rules.min_training_epochs,
            self.epochs_in_stage >= rules.min_holding_epochs,
        )

    def germinate(self, style: Style, tempo: int, alpha_target: float) -> None:
        """DORMANT -> TRAINING."""
        self._enter(Stage.TRAINING)
        self.births += 1
        self.style, self.tempo, self.alpha_target = style, tempo, alpha_target

    def advance(self) -> None:
        """TRAINING -> BLENDING, on the first ramp."""
        assert self.style is not None
        assert self.alpha_target is not None
        self._enter(Stage.BLENDING)
        self.ramp = Ramp(self.alpha, self.alpha_target, self.tempo, self.style.first_curve)

    def set_alpha_target(self, alpha_target: float, style: Style, speed: int, curve: Curve) -> None:
        """HOLDING -> BLENDING, on another ramp."""
        self._enter(Stage.BLENDING)
        self.style, self.alpha_target = style, alpha_target
        self.ramp = Ramp(self.alpha, alpha_target, speed, curve)

    def fossilize(self) -> None:
        """HOLDING -> FOSSILIZED."""
        self._enter(Stage.FOSSILIZED)

    def take_out(self, speed: int, curve: Curve) -> None:
        """PRUNE, RETIRE: remove the seed now (speed 0, or nothing to fade), or begin to fade it out."""
        if speed == 0 or self.stage is Stage.TRAINING:
            self._embargo()
            self._thaw()
            return
        if self.stage is not Stage.BLENDING:
            self._enter(Stage.BLENDING)
        self.fading = True
        self.ramp = Ramp(self.alpha, 0.0, speed, curve)

    def tick(self) -> None:
        """Begin the next epoch: alphas move, arrivals happen, cooldowns run out."""
        if self.stage is Stage.DORMANT:
            return
        self.epochs_in_stage += 1
        if self.stage is Stage.EMBARGOED:
            self._thaw()
            return
        self.age += 1
        if self.ramp is None:
            return
        self.alpha = self.ramp.tick()
        if not self.ramp.arrived:
            return
        if self.fading:
            self._embargo()
        else:
            self._enter(Stage.HOLDING)
        self.epochs_in_stage = 1  # the epoch that now begins is the first in the new stage
        self._thaw()

    def _enter(self, stage: Stage) -> None:
        self.stage, self.epochs_in_stage, self.ramp = stage, 0, None

    def _embargo(self) -> None:
        self._enter(Stage.EMBARGOED)
        self.fading, self.age, self.alpha = False, 0, 0.0
        self.alpha_target, self.style, self.tempo = None, None, 0

    def _thaw(self) -> None:
        if self.stage is Stage.EMBARGOED and self.epochs_in_stage >= self.rules.embargo_epochs:
            self._enter(Stage.DORMANT)


class LivingSlot:
    """What can be seen of a slot and whether it may be acted on, whatever grows there."""

    name: str
    layout: Layout
    """What the axes of the activation mean."""
    channels: int
    """Width of the activation."""
    life: Life
    contribution: float | None = None
    weighed: bool = False
    """Whether the contribution of a fossil is of the epoch that ended, not the last word on it before it was one."""
    probe: float | None = None
    gradient_norm: float | None = None
    gradient_health: float | None = None

    @property
    def cards(self) -> tuple[BlueprintCard, ...]:
        """The blueprints offered here with what each would cost."""
        raise NotImplementedError

    @property
    def card_index(self) -> int:
        """The place of the seed's blueprint in `cards`; -1 without a seed."""
        raise NotImplementedError

    @property
    def parameter_count(self) -> int:
        """Parameters of the seed and its gate; 0 without a seed."""
        raise NotImplementedError

    def gradients_finite(self) -> bool | None:
        """Whether the seed's gradients were finite in this epoch; None if that is unknown."""
        raise NotImplementedError

    @property
    def stage(self) -> Stage:
        """The stage of the slot's life."""
        return self.life.stage

    def facts(self, *, free_places: int) -> Facts:
        """What legality depends on."""
        return self.life.facts(free_places=free_places)

    def legal(self, *, free_places: int) -> LegalOperations:
        """The operations that may be executed here now, and what they may be done with."""
        bits, life = legal_bits(self.facts(free_places=free_places)), self.life
        operations = frozenset(op for op in LifecycleOp if bits >> op & 1)
        germinate = LifecycleOp.GERMINATE in operations
        if not germinate and LifecycleOp.SET_ALPHA_TARGET not in operations:
            return LegalOperations(operations, (), (), ())
        return LegalOperations(
            operations=operations,
            blueprints=tuple(card.name for card in self.cards) if germinate else (),
            styles=STYLES if germinate or life.style is None else life.style.compatible,
            alpha_targets=tuple(target for target in ALPHA_TARGETS if target != life.alpha_target),
        )

    def require_legal(self, operation: LifecycleOp, *, free_places: int) -> None:
        """Raise `IllegalOperation`, which says why, unless the operation may be executed here now."""
        reason = refusal(operation, self.facts(free_places=free_places))
        if reason is not None:
            legal = self.legal(free_places=free_places).operations
            raise IllegalOperation(self.name, self.stage, operation, reason, legal)

    def snapshot(self) -> SlotSnapshot:
        """The slot as other parts read it."""
        life, card = self.life, self.card_index
        return SlotSnapshot(
            name=self.name,
            layout=self.layout,
            channels=self.channels,
            stage=life.stage,
            fading=life.fading,
            alpha=life.alpha,
            alpha_target=life.alpha_target,
            epochs_to_target=life.epochs_to_target,
            age=life.age,
            epochs_in_stage=life.epochs_in_stage,
            blueprint=None if card < 0 else self.cards[card].name,
            style=life.style,
            parameters=self.parameter_count,
            contribution=self.contribution,
            gradients_finite=self.gradients_finite() if life.stage.is_live else None,
            probe=self.probe,
            gradient_norm=self.gradient_norm,
            gradient_health=self.gradient_health,
        )

    def reading(self, *, free_places: int) -> SlotReading:
        """The slot in numbers, for tensors."""
        life, card = self.life, self.card_index
        if card < 0:
            return _empty(int(life.stage), life.epochs_in_stage, free_places > 0)
        return SlotReading(
            int(life.stage),
            life.fading,
            life.alpha,
            _number(life.alpha_target),
            life.epochs_to_target,
            life.age,
            life.epochs_in_stage,
            card,
            -1 if life.style is None else STYLES.index(life.style),
            self.parameter_count,
            legal_bits(self.facts(free_places=free_places)),
            math.nan if life.stage is Stage.FOSSILIZED and not self.weighed else _number(self.contribution),
            _number(self.probe),
            _number(self.gradient_norm),
            _number(self.gradient_health),
        )


@lru_cache(maxsize=64)
def _empty(stage: int, epochs_in_stage: int, free: bool) -> SlotReading:
    """A slot without a seed: most slots are, most of the time."""
    legal = legal_bits(Life(GrowthRules(), Stage(stage)).facts(free_places=int(free)))
    nan = math.nan
    return SlotReading(stage, False, 0.0, nan, 0, 0, epochs_in_stage, -1, -1, 0, legal, nan, nan, nan, nan)


def _number(measured: float | None) -> float:
    return math.nan if measured is None else measured


class LivingHost:
    """The slots of one host together: what can be seen of them and what may be done there, whatever grows."""

    slots: Mapping[str, LivingSlot]
    """Name -> slot, in order."""

    @property
    def rules(self) -> GrowthRules:
        """The waiting times and limits that hold for every slot."""
        return next(iter(self.slots.values())).life.rules

    @property
    def cards(self) -> dict[str, tuple[BlueprintCard, ...]]:
        """Slot -> the blueprints offered there."""
        return {name: slot.cards for name, slot in self.slots.items()}

    @property
    def added_parameters(self) -> int:
        """Parameters of live and fossilised seeds, gates included."""
        return sum(slot.parameter_count for slot in self.slots.values())

    @property
    def fossils(self) -> tuple[str, ...]:
        """The names of the slots with fossils, in order."""
        return tuple(name for name, slot in self.slots.items() if slot.life.stage is Stage.FOSSILIZED)

    @property
    def live_slots(self) -> tuple[str, ...]:
        """The names of the slots with live seeds, in order."""
        return tuple(name for name, slot in self.slots.items() if slot.life.stage.is_live)

    @property
    def free_places(self) -> int:
        """Seeds that may still come to live beside those that do; below 0 while a fossil fades out beside as many."""
        return self.rules.max_live_seeds - len(self.live_slots)

    def legal_operations(self) -> dict[str, LegalOperations]:
        """What may be executed now at each slot: exactly that, no more and no less."""
        free = self.free_places
        return {name: slot.legal(free_places=free) for name, slot in self.slots.items()}

    def readings(self) -> list[SlotReading]:
        """Every slot in numbers, in order."""
        free = self.free_places
        return [slot.reading(free_places=free) for slot in self.slots.values()]

    def snapshots(self) -> tuple[SlotSnapshot, ...]:
        """Every slot in words, in order."""
        return tuple(slot.snapshot() for slot in self.slots.values())
