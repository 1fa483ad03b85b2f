"""A teacher of streams: it knows what the data are like, and has a mixer grown while that pays.

What it knows no controller is shown. It is for teaching on drawn streams: a network (`esper.simic.teaching`), and a
rival as cheap as can be, a linear rule on what a host shows after each epoch.
"""

import math
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.benchmark.rivals import ridge
from esper.leyline import ActionSpec, HostSignals, LifecycleOp, Situation
from esper.simic.evaluation import Player, RulePlayer
from esper.statistics import Floats
from esper.tamiyo.rules.policy import Remembering, affordable, refusal
from esper.tolaria.tasks import Instance, task
from esper.tolaria.tasks.stream import phases_of

FORESIGHT, LOOK_ALWAYS = "foresight", "look_always"
SHUFFLED = 0.3
"""From here on positions count as shuffled, where a mixer pays."""
_BLUEPRINT, _PLACE = "mixer", 1
_KEEP, _GIVE_BACK = (LifecycleOp.ADVANCE,), (LifecycleOp.PRUNE, LifecycleOp.RETIRE)


@dataclass
class _Seen:
    """What a host showed an epoch ago; None before there was one."""

    validation: float | None = None
    train: float | None = None


class MixerPolicy(Remembering[_Seen]):
    """Has a mixer in the middle slot while it wants one, and nothing else at any time.

    In any state it says what leads to what it wants.
    """

    def __init__(self) -> None:
        super().__init__(_Seen)

    @abstractmethod
    def wants(self, situation: Situation) -> bool:
        """Whether a mixer is wanted now."""

    def act(self, situation: Situation) -> ActionSpec:
        """The first of: give back what is not wanted, go on with what is, plant it."""
        names = [slot.name for slot in situation.slots]
        wanted = names[_PLACE] if self.wants(situation) else None
        for slot in situation.slots:
            keeps = slot.name == wanted and slot.blueprint in (None, _BLUEPRINT)
            for op in _KEEP if keeps else _GIVE_BACK:
                if refusal(ActionSpec(op, slot.name), situation) is None:
                    return ActionSpec(op, slot.name)
        if wanted is not None:
            plant = ActionSpec(LifecycleOp.GERMINATE, wanted, _BLUEPRINT)
            cards = [card for card in situation.cards[wanted] if card.name == _BLUEPRINT]
            if cards and affordable(cards[0], situation.signals) and refusal(plant, situation) is None:
                return plant
        return ActionSpec()


class ForesightPolicy(MixerPolicy):
    """Goes by the data that were trained on last, as one who looks could.

    case  a stream, whose plan it reads
    """

    def __init__(self, case: str) -> None:
        super().__init__()
        phases = phases_of(task("stream").complete(dict(Instance.parse(case).parameters)))
        self._pays = [(start, state.shuffled >= SHUFFLED) for start, state in phases]

    def wants(self, situation: Situation) -> bool:
        """While positions are shuffled."""
        epoch = situation.signals.epoch
        return epoch > 0 and [pays for start, pays in self._pays if start < epoch][-1]


def foresight(cases: Sequence[str]) -> Player:
    """The teacher of envs whose cases are these."""
    return RulePlayer(lambda env_idx: ForesightPolicy(cases[env_idx]))


@dataclass(frozen=True, slots=True)
class LinearWish:
    """Wants a mixer where a constant and a weighted sum of what is seen come to more than 0."""

    constant: float
    weights: tuple[float, ...]

    def __str__(self) -> str:
        return f"{_BLUEPRINT}@{_PLACE} by rule {zlib.crc32(repr(self).encode()):08x}, each epoch"

    def wants(self, seen: Sequence[float]) -> bool:
        """Whether they do."""
        return (
            self.constant + sum(weight * each for weight, each in zip(self.weights, seen, strict=True)) > 0.0
        )


def fit_wish(seen: Floats, wanted: NDArray[np.bool_], penalty: float = 10.0) -> LinearWish:
    """By ridge regression of +1 and -1.

    seen    (epoch, number)
    wanted  (epoch,): whether the teacher wants a mixer there
    """
    mean, scale, fitted = ridge(seen, np.where(wanted, 1.0, -1.0)[:, None], penalty)
    weights = fitted[1:, 0] / scale
    return LinearWish(float(fitted[0, 0] - weights @ mean), tuple(map(float, weights)))


class LookAlwaysPolicy(MixerPolicy):
    """Asks a linear rule after every epoch what the data want. `seen` is what it was asked about last."""

    def __init__(self, wish: LinearWish | None) -> None:
        super().__init__()
        self.wish = wish
        self.seen: tuple[float, ...] | None = None

    def wants(self, situation: Situation) -> bool:
        """What the rule says; nothing where something it goes by is not known, or without a rule."""
        signals, before = situation.signals, self.memory
        grown = any(slot.stage.is_live for slot in situation.slots)
        self.seen = signs(signals, before.validation, before.train, grown=grown)
        self.memory = _Seen(signals.validation_accuracy, signals.train_accuracy)
        return self.wish is not None and self.seen is not None and self.wish.wants(self.seen)


def signs(
    signals: HostSignals, validation: float | None, train: float | None, *, grown: bool
) -> tuple[float, ...] | None:
    """What a linear rule goes by: levels, leads, last steps, and the same again where a seed is alive.

    validation, train  accuracies an epoch ago

    None where one of them was not measured.
    """
    samples, norm = signals.training_samples, signals.gradient_norm
    now, trained = signals.validation_accuracy, signals.train_accuracy
    loss, train_loss = signals.validation_loss, signals.train_loss
    if validation is None or train is None or now is None or trained is None:
        return None
    if samples is None or norm is None or loss is None or train_loss is None:
        return None
    numbers = (
        math.log2(samples),
        now,
        now - trained,
        now - validation,
        trained - train,
        loss,
        loss - train_loss,
        math.log(max(norm, 1e-6)),
    )
    return (*numbers, float(grown), *(number * grown for number in numbers))
