"""The governor: notices a host that broke, says why, and goes back to its last good epoch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TypeVar

from esper.kasmina.describing import Described, describe_remembered
from esper.kasmina.model import GrowingModel
from esper.kasmina.replicas import local
from esper.kasmina.snapshots import ModelSnapshot, Standing

_Seen = TypeVar("_Seen")


class Verdict(StrEnum):
    """Why a host was condemned."""

    NOT_FINITE = "not_finite"
    """A loss, or the host's gradient, was NaN or Inf."""
    SEED_NOT_FINITE = "seed_not_finite"
    """A seed's output or gradient was NaN or Inf. It was kept away from the host, and goes back with it."""
    DIVERGED = "diverged"
    """The training loss is far above that of a host that knows nothing."""
    COLLAPSED = "collapsed"
    """The host had learned, and is back at chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorRules:
    """What counts as broken, relative to chance and to the host's own best."""

    divergence_factor: float = 3.0
    """Training loss over this many times the loss of a uniform guess."""
    learned_margin: float = 0.1
    """A host has learned once its validation accuracy was this share of the way from chance to 1."""
    collapse_share: float = 0.1
    """It is back at chance with at most this share left of what it was above chance at its best."""
    collapse_patience: int = 2
    """Epochs in a row at chance before it is condemned: data that shift may cost one."""
    max_consecutive: int = 3
    """Rollbacks in a row after which a host is given up."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 1 if name in ("collapse_patience", "max_consecutive") else 0
            if not value >= least or (name == "divergence_factor" and not value > 1):
                bound = "> 1" if name == "divergence_factor" else f">= {least}"
                raise ValueError(f"GovernorRules.{name} must be {bound}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Vitals:
    """What one epoch showed of one host. Unknown is None, and is not held against it."""

    train_loss: float | None
    gradient_norm: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seeds_finite: bool = True


_MEMORY = {
    "best_accuracy": float,
    "last_accuracy": float,
    "epochs_at_chance": int,
    "rollbacks": int,
    "consecutive": int,
}


@dataclass(slots=True)
class Governor:
    """Watches one host, epoch after epoch."""

    rules: GovernorRules
    chance_accuracy: float
    untrained_loss: float
    best_accuracy: float = 0.0
    """After a change of data, that two epochs in a row have had: one alone may be what is left of the old ones."""
    last_accuracy: float = math.inf
    """The last that was known of a good epoch; infinite before the first."""
    epochs_at_chance: int = 0
    rollbacks: int = 0
    """In the host's whole life."""
    consecutive: int = 0

    def begin_at(self, loss: float) -> None:
        """Note the loss of the host before its first epoch.

        One that comes with weights may begin by being wrong with confidence, far above a uniform guess: it has
        diverged when it is as far above its own beginning.
        """
        if loss > self.rules.divergence_factor * self.untrained_loss:
            self.untrained_loss = loss

    def judge(self, vitals: Vitals, *, on_new_data: bool = False) -> Verdict | None:
        """None if the host may go on.

        on_new_data  whether the epoch was the first on data that have changed: a host that was confident of the old
                     ones is then far above a uniform guess, and has not diverged
        """
        verdict = self._verdict(vitals, on_new_data=on_new_data)
        if verdict is None:
            self.consecutive = 0
            if vitals.validation_accuracy is not None:
                held = min(self.last_accuracy, vitals.validation_accuracy)
                self.best_accuracy = max(self.best_accuracy, held)
                self.last_accuracy = vitals.validation_accuracy
        else:
            self.rollbacks += 1
            self.consecutive += 1
            self.epochs_at_chance = 0
        return verdict

    @property
    def content(self) -> bool:
        """Whether the epoch judged last is worth going back to: one at chance is not."""
        return self.consecutive == 0 and self.epochs_at_chance == 0

    def forget_best(self) -> None:
        """The data have changed: what was learned of the old ones is no measure any more."""
        self.best_accuracy, self.last_accuracy, self.epochs_at_chance = 0.0, 0.0, 0

    def would_condemn(self, vitals: Vitals) -> bool:
        """Whether a host that shows this is broken, by what is known of its past; nothing is remembered."""
        loss = vitals.train_loss or 0.0
        return loss > self.rules.divergence_factor * self.untrained_loss or self._at_chance(vitals)

    @property
    def gives_up(self) -> bool:
        """Whether as many rollbacks in a row as the rules allow have not helped."""
        return self.consecutive >= self.rules.max_consecutive

    def _verdict(self, vitals: Vitals, *, on_new_data: bool) -> Verdict | None:
        numbers = (vitals.train_loss, vitals.gradient_norm, vitals.validation_loss)
        if not all(number is None or math.isfinite(number) for number in numbers):
            return Verdict.NOT_FINITE
        if not vitals.seeds_finite:
            return Verdict.SEED_NOT_FINITE
        diverged = (vitals.train_loss or 0.0) > self.rules.divergence_factor * self.untrained_loss
        if diverged and not on_new_data:
            return Verdict.DIVERGED
        self.epochs_at_chance = self.epochs_at_chance + 1 if self._at_chance(vitals) else 0
        if self.epochs_at_chance >= self.rules.collapse_patience:
            return Verdict.COLLAPSED
        return None

    def _at_chance(self, vitals: Vitals) -> bool:
        """Whether a host that had learned has nothing left of it."""
        above_at_best = self.best_accuracy - self.chance_accuracy
        learned = above_at_best >= self.rules.learned_margin * (1.0 - self.chance_accuracy)
        if vitals.validation_accuracy is None or not learned:
            return False
        above_now = vitals.validation_accuracy - self.chance_accuracy
        return above_now <= self.rules.collapse_share * above_at_best

    def state_dict(self) -> dict[str, float | int]:
        """What it remembers of the host."""
        return {name: getattr(self, name) for name in _MEMORY}

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Remember what `state_dict` gave."""
        state = {"last_accuracy": math.inf, **state}  # earlier versions did not write it
        for name, kind in _MEMORY.items():
            setattr(self, name, kind(state[name]))


# A user's loop


BROKEN_EPOCHS = 2
"""Epochs in a row that a seed may put out NaN or Inf before it is removed. One can be a single batch."""

LEAST_FIRST_LOSS = 1.0
"""A first loss can be small (a good start, or just the last batch's): noise over it is no divergence."""


_Undecided = tuple[int, Standing]
"""An epoch, and how the model stood after it."""


class Guard:
    """Remembers the last good epoch in memory: a second copy of weights and optimiser state.

    The copy is of the model as it begins the next one, decided on: a broken epoch undoes no decision. As deciding
    leaves weights alone, how the model stood before it is remembered beside that without another copy.

    A host is judged by its own past: diverged is a training loss over `divergence_factor` times the first epoch's,
    collapsed an accuracy that is nearly gone.
    """

    def __init__(self, model: GrowingModel, rules: GovernorRules | None) -> None:
        self._model, self._rules = model, rules
        self._governor = self._new_governor()
        self._memory: ModelSnapshot | None = None
        self._undecided: _Undecided | None = None  # before the decision that the memory is of the model after
        self._latest: _Undecided | None = None  # before the last decision; None once it was trained with
        self._current = False  # whether no epoch was judged since it was remembered, or gone back to
        self._gave_up = False
        self._broken: dict[str, int] = {}

    def _new_governor(self) -> Governor | None:
        if self._rules is None:
            return None
        return Governor(self._rules, chance_accuracy=0.0, untrained_loss=math.inf)

    def before_decision(self, epoch: int) -> None:
        """The model stands as this epoch has left it, and is about to be decided on."""
        self._latest = epoch, Standing(self._model)

    def keep_decision(self) -> None:
        """The model was changed since it was decided on, or is another: there is nothing to take back."""
        self._latest = None

    def accept(self) -> None:
        """The model was changed after it was gone back to: from here on it is gone back to as it is now."""
        self.keep_decision()
        self.remember()

    def remember(self) -> None:
        """The model as it is now, decided on and about to begin an epoch, is worth going back to."""
        if self._governor is None:
            return
        if self._memory is None:
            self._memory = ModelSnapshot(self._model, epoch_begins=True)
        else:
            self._memory.take()
        self._undecided, self._current = self._latest, True

    def begin(self) -> None:
        """Before the first step: something to go back to, where nothing was remembered yet."""
        if self._memory is None:
            self.remember()

    def restore(self) -> None:
        """Go back to it, if anything was remembered."""
        if self._memory is not None:
            self._memory.restore()
            self._latest, self._current = self._undecided, True

    def take_back(self) -> int | None:
        """Undo the last decision, if nothing was trained or loaded since; returns the epoch that it followed."""
        if self._latest is None:
            return None
        (epoch, standing), self._latest = self._latest, None
        standing.restore()
        return epoch

    @property
    def repeated(self) -> bool:
        """Whether going back once has not helped: the epoch that was begun anew broke too."""
        return self._governor is not None and self._governor.consecutive > 1

    @property
    def in_doubt(self) -> bool:
        """Whether a rollback would undo more than the training of an epoch: those at chance are not remembered."""
        return self._memory is not None and not self._current and not self.content

    def judge(self, vitals: Vitals) -> Verdict | None:
        """None if the model may go on. `seeds_finite` is left True: broken seeds are removed, the host is kept."""
        governor, self._latest, self._current = self._governor, None, False
        if governor is None:
            return None
        loss = vitals.train_loss
        if loss is None and not self._weights_finite():
            vitals = replace(vitals, train_loss=math.nan)
        elif math.isinf(governor.untrained_loss) and loss is not None and math.isfinite(loss) and loss > 0:
            governor.untrained_loss = max(loss, LEAST_FIRST_LOSS)
        return governor.judge(vitals)

    def _weights_finite(self) -> bool:
        """Whether the host's parameters are finite, in all processes that hold some of them."""
        here = all(bool(local(p).isfinite().all()) for p in self._model.bare_parameters())
        return all(self._model.replicas.gather(here))

    def host_finite(self) -> bool:
        """Whether the host's parameters are finite and none of its buffers has a NaN (masks hold Inf on purpose)."""
        buffers = [local(buffer) for buffer in self._model.host.buffers()]
        here = not any(bool(buffer.isnan().any()) for buffer in buffers)
        return all(self._model.replicas.gather(here)) and self._weights_finite()

    @property
    def content(self) -> bool:
        """Whether the epoch judged last is worth going back to."""
        return self._governor is not None and self._governor.content

    def gives_up(self) -> bool:
        """Whether going back has not helped; from here on the model is left alone."""
        if self._governor is None or not self._governor.gives_up:
            return False
        self._governor, self._memory, self._undecided, self._gave_up = None, None, None, True
        return True

    def look_back(self, look: Callable[[], _Seen]) -> _Seen | None:
        """What `look` returns for the model as a rollback would leave it; None without one. It is back afterwards."""
        if self._memory is None:
            return None
        gradients = {parameter: parameter.grad for parameter in self._model.parameters()}
        present = ModelSnapshot(self._model)
        self._memory.restore()
        try:
            return look()
        finally:
            present.restore()
            for parameter, gradient in gradients.items():
                parameter.grad = gradient

    def describe_good(self) -> Described | None:
        """The model as a rollback would leave it, in plain data; None without one. Nothing is touched."""
        return None if self._memory is None else describe_remembered(self._memory)

    def would_condemn(self, vitals: Vitals) -> bool:
        """Whether a model that shows this is broken, by what is known of its past; nothing is remembered."""
        return self._governor is not None and self._governor.would_condemn(vitals)

    def begin_anew(self, loss: float | None) -> None:
        """The data have changed: the model that was condemned may go on, by new measures.

        loss  of the epoch's training, the first on the new data
        """
        governor = self._governor
        if governor is None:
            return
        governor.forget_best()
        governor.rollbacks -= 1
        governor.consecutive = 0
        if loss is not None and math.isfinite(loss):
            governor.untrained_loss = max(loss, LEAST_FIRST_LOSS)

    def broken_seeds(self) -> list[str]:
        """Live seeds that were not finite for `BROKEN_EPOCHS` epochs, this one included."""
        for name, slot in self._model.slots.items():
            broken = slot.stage.is_live and bool(slot.non_finite.any())
            self._broken[name] = self._broken.get(name, 0) + 1 if broken else 0
        return [name for name, epochs in self._broken.items() if epochs >= BROKEN_EPOCHS]

    def state_dict(self) -> dict[str, object]:
        """What the governor remembers; the last good epoch is remembered anew."""
        governor = self._governor
        return {
            "governor": None if governor is None else governor.state_dict(),
            "untrained_loss": None if governor is None else governor.untrained_loss,
            "gave_up": self._gave_up,
            "broken": dict(self._broken),
        }

    def load_state_dict(self, state: Mapping[str, object], *, as_it_is: bool = True) -> None:
        """Go on where `state_dict` was taken; the model as it is now, restored, is the one to go back to.

        as_it_is  whether training goes on from there, too
        """
        governor, untrained, broken = state["governor"], state["untrained_loss"], state["broken"]
        self._gave_up = bool(state["gave_up"])
        self._governor = None if self._gave_up else self._new_governor()
        if self._governor is None:
            self._memory = None
        elif isinstance(governor, dict) and isinstance(untrained, float):
            self._governor.load_state_dict(governor)
            self._governor.untrained_loss = untrained
        if isinstance(broken, dict):
            self._broken = dict(broken)
        self._latest = None
        self.remember()
        self._current = as_it_is
