"""A decision about one host in words, the settings it is made under, and what came of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from esper.leyline.heads import CHOICES, Curve, LifecycleOp, Style
from esper.leyline.slots import BlueprintCard, LegalOperations, SlotSnapshot


@dataclass(frozen=True, slots=True)
class HostSignals:
    """A host after one epoch of training. Accuracies are 0..1; what has not been measured is None."""

    epoch: int
    """Epochs trained."""
    horizon: int
    """Epochs of the whole episode."""
    training_samples: int | None
    """Samples in the training set."""
    train_loss: float | None
    """Mean over the last epoch."""
    train_accuracy: float | None
    """Over the last epoch."""
    validation_loss: float | None
    """After the last epoch."""
    validation_accuracy: float | None
    """After the last epoch."""
    plateau_epochs: int
    """Epochs since validation last improved."""
    gradient_norm: float | None
    """Norm of the host's gradients in the last epoch."""
    host_parameters: int
    """Parameters of the host before anything was grown."""
    added_parameters: int
    """Parameters of all seeds that it has now."""
    parameter_budget: int | None
    """Parameters that may be added in all; None is no limit."""
    last_operation: LifecycleOp
    """The operation executed before the last epoch."""
    score: float | None = None
    """How well validation goes, more is better: accuracy, or what a `Grower` makes of a loss or a metric."""
    learning_rate_share: float | None = None
    """The learning rate over the highest so far: 1 until it falls, 0 when nothing is learned any more."""
    fossil_parameters: int = 0
    """Parameters that retiring every fossil would free."""

    @property
    def room(self) -> float:
        """Parameters that the budget has left; infinite without one."""
        return math.inf if self.parameter_budget is None else self.parameter_budget - self.added_parameters


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One operation with everything it needs. Fields that the operation does not use are ignored."""

    op: LifecycleOp = LifecycleOp.WAIT
    """What to do."""
    slot: str | None = None
    """Where; None for WAIT."""
    blueprint: str | None = None
    """The kind of seed to GERMINATE."""
    style: Style = Style.LINEAR_ADD
    """How a new seed composes, or the style after SET_ALPHA_TARGET."""
    tempo: int = 3
    """Epochs of a new seed's first ramp."""
    alpha_target: float = 1.0
    """The alpha that a ramp ends at."""
    alpha_speed: int = 0
    """Epochs of a later ramp, or of fading out; 0 is at once."""
    alpha_curve: Curve = Curve.LINEAR
    """The shape of a later ramp."""


PLATEAU_THRESHOLD = 0.005
"""By how much validation accuracy must rise, by default, to end a plateau."""
ObservationUnits = Literal["absolute", "ratios"]
"""Of what a controller observes: numbers as they are, or over those of the host's own beginning and noise."""


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """What a decider may do and how its host is read: the same in training, on a controller's card and in use."""

    frozen_heads: Mapping[str, str | int | float] = field(default_factory=dict)
    """head -> its only choice, wherever that choice is legal, such as {"style": "gate", "tempo": 5}."""
    first_growth: int = 0
    """Epochs that a host trains before anything may be germinated in it."""
    menu: tuple[str, ...] | None = None
    """The only blueprints that may be germinated; None is all that a host offers."""
    plateau_threshold: float = PLATEAU_THRESHOLD
    """By how much validation accuracy must rise to end a plateau; where a task has none, how much loss must fall."""
    retire: bool = False
    """Whether fossils may be retired; then what each contributes is measured in every epoch, and seen."""
    decay_epochs: int = 3
    """Epochs in a row in which a fossil's contribution is below its rent, after which it counts as decayed."""
    decay_rent: float = 0.01
    """Utility that a fossil as large as the host must contribute in order not to decay."""
    observation_units: ObservationUnits = "absolute"
    """What a controller's inputs are measured in; rules read the same numbers in either."""

    def __post_init__(self) -> None:
        if not isinstance(self.frozen_heads, Mapping):
            raise ValueError(f"frozen_heads is {self.frozen_heads!r}; expected head -> its only choice")
        for head, value in self.frozen_heads.items():
            if head not in CHOICES:
                raise ValueError(
                    f"frozen_heads has {head}={value!r}; expected heads among {', '.join(CHOICES)}"
                )
            if value not in CHOICES[head]:
                raise ValueError(
                    f"frozen_heads has {head}={value!r}; expected one of {', '.join(map(str, CHOICES[head]))}"
                )
        first_growth: object = self.first_growth
        if not isinstance(first_growth, int) or first_growth < 0:
            raise ValueError(f"first_growth is {first_growth!r}; expected a whole number >= 0")
        menu: object = self.menu
        if menu is not None:
            named = isinstance(menu, tuple | list) and all(isinstance(name, str) for name in menu)
            if not named or not menu:
                raise ValueError(f"menu is {menu!r}; expected names, such as ('mixer',), or None")
        threshold: object = self.plateau_threshold
        if not isinstance(threshold, int | float) or not 0 <= threshold < float("inf"):
            raise ValueError(f"plateau_threshold is {threshold!r}; expected a number >= 0")
        self._check_retiring()
        if self.observation_units not in get_args(ObservationUnits):
            raise ValueError(
                f"observation_units is {self.observation_units!r}; expected one of "
                f"{', '.join(get_args(ObservationUnits))}"
            )

    def _check_retiring(self) -> None:
        retire: object = self.retire
        if not isinstance(retire, bool):
            raise ValueError(f"retire is {retire!r}; expected True or False")
        if not retire and self.frozen_heads.get("op") == LifecycleOp.RETIRE:
            raise ValueError("frozen_heads has op=RETIRE, which retire=False does not offer; set retire=True")
        epochs: object = self.decay_epochs
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise ValueError(f"decay_epochs is {epochs!r}; expected a whole number >= 1")
        rent: object = self.decay_rent
        if not isinstance(rent, int | float) or not 0 <= rent < math.inf:
            raise ValueError(f"decay_rent is {rent!r}; expected a number >= 0")

    @property
    def frozen_choices(self) -> dict[str, int]:
        """head -> the index of its only choice, as masks and actions count choices."""
        return {head: CHOICES[head].index(value) for head, value in self.frozen_heads.items()}


@dataclass(frozen=True, slots=True)
class IllegalChoice:
    """Why an action could not be executed."""

    head: str
    value: str
    legal: tuple[str, ...]
    """What that head could have been."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """What was asked of a host, and what was done."""

    asked: ActionSpec
    executed: ActionSpec
    """WAIT if what was asked was illegal."""
    illegal: IllegalChoice | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """A host and its slots as a rule-based policy reads them before it decides."""

    signals: HostSignals
    """The host."""
    slots: tuple[SlotSnapshot, ...]
    """Its slots, in order."""
    legal: Mapping[str, LegalOperations]
    """By slot name: exactly what can be executed now."""
    cards: Mapping[str, tuple[BlueprintCard, ...]]
    """By slot name: the blueprints offered there."""
