"""Deciding in a user's loop: the decider, what it observes of the model, and what it is shown of its success.

Also which rule decides where no controller was named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from esper.grower import checks
from esper.grower import history as reporting
from esper.grower.history import Decision, Notes
from esper.grower.host import LoopHost
from esper.grower.measuring import EpochMetrics
from esper.kasmina import GrowingModel
from esper.kasmina.replicas import Replicas
from esper.kasmina.tree import is_frozen
from esper.leyline import ActionSpec, HostProtocol, Layout, LifecycleOp, Situation
from esper.tamiyo.deciders import Choice, Decider, LearnedDecider
from esper.tamiyo.observation import Observer
from esper.tamiyo.rules.by_layout import suited_candidates
from esper.tamiyo.rules.policy import affordable, refusal
from esper.tamiyo.tracker import Forecast, Paymaster

WAIT = Choice(ActionSpec())
USUAL_EPOCHS = 20
"""The length of a run that did not say: what controllers are trained on."""
EPOCHS_AHEAD = 8
"""A run of unknown length never has fewer left, nor one that outlives what it said."""


class Deciding:
    """Asks a decider once an epoch, and makes what it wants legal and affordable.

    epochs   of the whole run, as it is known at first; None is unknown
    bounded  whether a score cannot exceed 1
    """

    def __init__(
        self,
        decider: Decider,
        host: LoopHost,
        *,
        epochs: int | None,
        rent: float,
        parameter_budget: int | None,
        bounded: bool,
    ) -> None:
        self.decider, self.host = decider, host
        self.rent, self.parameter_budget = rent, parameter_budget
        card = decider.controller.card if isinstance(decider, LearnedDecider) else None
        self.pay = Paymaster(rent, None if card is None else card.reward, Forecast(bounded=bounded))
        self.observer = decider.observer(
            host, horizon=epochs or USUAL_EPOCHS, parameter_budget=parameter_budget
        )
        self.last_operation = LifecycleOp.WAIT
        self.good_epoch = 0
        """After which a rollback would begin anew: what was decided later goes with it."""
        self.remembered: dict[str, object] | None = None
        """What the decider remembered after that epoch, where it has been asked since."""

    @property
    def name(self) -> str:
        """Of the controller or rule."""
        return self.decider.name

    def record(self) -> None:
        """Observe the epoch that the host has taken in."""
        self.observer.record(0, self.host, self.last_operation)

    def begin_from(self, epoch: int, remembered: dict[str, object] | None = None) -> None:
        """A rollback would begin anew after this epoch; `remembered` is the decider's, if it was asked since."""
        self.good_epoch, self.remembered = epoch, remembered

    def doubt(self) -> None:
        """What is decided now may be undone by a rollback: keep what the decider remembers from before."""
        if self.remembered is None and self.decider.savable:
            self.remembered = self.decider.state_dict()

    def undo(self, history: Sequence[Decision]) -> list[Decision]:
        """Remember what the decider did when the model was as it is again; returns the decisions that are undone."""
        if self.remembered is not None:
            self.decider.load_state_dict(self.remembered)
        undone = [
            decision
            for decision in history
            if decision.epoch > self.good_epoch and decision.action.op is not LifecycleOp.WAIT
        ]
        self.begin_from(self.host.report.epoch)
        return undone

    def choose(self, score: float | None, notes: Notes, *, epochs: int | None) -> tuple[Choice, str]:
        """What is to be done after the epoch that was recorded, and why; `epochs` may have changed since."""
        model, epoch = self.host.model, self.host.report.epoch
        if epoch > (epochs or epoch):
            notes.warn(f"step() was called more often than epochs={epochs} says; going on", once="epochs")
        late = epoch + EPOCHS_AHEAD > USUAL_EPOCHS if epochs is None else epoch > epochs
        if late:
            self.observer.extend(0, epoch + EPOCHS_AHEAD)
        grown = any(slot.alpha > 0.0 for slot in model.slots.values())
        reward = self.pay.pay(score, model.added_parameters, model.host_parameters, grown=grown)
        if epoch == epochs:
            return WAIT, "the last epoch: finish() settles"
        choice = ask(model.replicas, self.decider, self.observer, self.host, reward=reward)
        return self._made_legal(choice, notes)

    def _made_legal(self, choice: Choice, notes: Notes) -> tuple[Choice, str]:
        model, situation, action = self.host.model, self.observer.situation(0), choice.action
        if self.parameter_budget is not None:
            room = self.parameter_budget - model.added_parameters
            action = checks.affordable(model.slots, action, room)
        reason = refusal(action, situation)
        if reason is not None:
            notes.warn(f"controller {self.name} asked for what cannot be done, so nothing was: {reason}")
            return WAIT, reason
        first_growth = self.decider.settings.first_growth
        if self.host.report.epoch < first_growth and not model.live_slots:
            return choice, f"controller {self.name} germinates nothing before epoch {first_growth}"
        facts = reporting.reason_for(action, situation, self.rent, choice)
        return replace(choice, action=action), facts

    def decision(
        self,
        metrics: EpochMetrics,
        score: float | None,
        choice: Choice,
        reason: str,
        *,
        rolled_back: str | None = None,
    ) -> Decision:
        """A decision with everything that is known at its time."""
        model = self.host.model
        added = model.added_parameters
        return Decision(
            epoch=self.host.report.epoch,
            action=choice.action,
            controller=self.name,
            reason=reason,
            metrics=metrics,
            score=score,
            forecast=self.pay.forecast.now,
            gain_forecast=self.pay.gain(score, added, model.host_parameters),
            added_parameters=added,
            slots={slot.name: slot for slot in self.observer.slots(0)},
            probability=choice.probability,
            rolled_back=rolled_back,
        )

    def state_dict(self) -> dict[str, object]:
        """The observer's, the decider's and the forecast's memory."""
        return {
            "last_operation": int(self.last_operation),
            "observer": self.observer.state_dict(0),
            "decider": self.decider.state_dict(),
            "pay": self.pay.state_dict(),
        }

    def load_state_dict(
        self,
        *,
        last_operation: LifecycleOp,
        observer: Mapping[str, object],
        decider: Mapping[str, object],
        pay: Mapping[str, object],
    ) -> None:
        """Go on from a `state_dict`, over the host of that time."""
        self.observer.load_state_dict(0, self.host, observer)
        self.decider.load_state_dict(decider)
        self.pay.load_state_dict(pay)
        self.last_operation = last_operation


def ask(
    replicas: Replicas, decider: Decider, observer: Observer, host: HostProtocol, *, reward: float
) -> Choice:
    """What the decider says. Of several processes rank 0 asks it, and all remember the same."""
    if replicas.size == 1:
        return decider.decide(observer, host, reward=reward)
    said: tuple[Choice, dict[str, object] | None] = (Choice(ActionSpec()), None)
    if replicas.rank == 0:
        choice = decider.decide(observer, host, reward=reward)
        said = (choice, decider.state_dict() if decider.savable else None)
    choice, memory = replicas.agree(said)
    if replicas.rank > 0 and memory is not None:
        decider.load_state_dict(memory)
    return choice


USUAL, USUAL_FOR_FROZEN = "by_layout", "frozen_spread"


def usual_rule(model: GrowingModel) -> str:
    """The rule for a host that trains as a whole, or for one that is frozen but perhaps for its head."""
    return USUAL_FOR_FROZEN if is_frozen(model.host, list(model.slots)) else USUAL


def nothing_suits(rule: str, situation: Situation) -> str | None:
    """What to say of slots for which `by_layout` has no candidate, or none that the parameter budget has room for.

    None if it has some, or another rule decides.
    """
    if rule != USUAL:
        return None
    candidates = suited_candidates(situation)
    if candidates:
        return _too_dear(candidates, situation)
    slots = ", ".join(slot.name for slot in situation.slots)
    return (
        f"the rule {USUAL} has nothing that suits {slots}, and nothing will grow: name blocks with weights and an "
        "activation, such as Sequential(Linear, ReLU), as slots, or pass controller='probe_and_keep'"
    )


def bare_linear(rule: str, model: GrowingModel) -> str | None:
    """What to say of slots where `by_layout` tries a copy of a linear layer without its activation; None of none."""
    flat = (Layout.FLAT, Layout.ROWS)
    slots = [name for name, slot in model.slots.items() if slot.layout in flat]
    bare = [name for name in slots if type(model.host.get_submodule(name)) is nn.Linear]
    if rule != USUAL or not bare:
        return None
    return (
        f"slot {', '.join(bare)} is a bare Linear, and the copy of it that the rule {USUAL} tries expresses nothing "
        "new: name a block with its activation, such as Sequential(Linear, ReLU), as slot"
    )


def _too_dear(candidates: list[tuple[str, str]], situation: Situation) -> str | None:
    """What to say where the parameter budget has room for none of the candidates; None if it has."""
    signals = situation.signals
    cards = [(slot, card) for slot, kind in candidates for card in situation.cards[slot] if card.name == kind]
    if any(affordable(card, signals) for _, card in cards):
        return None
    slot, least = min(cards, key=lambda each: each[1].parameters)
    return (
        f"parameter_budget is {signals.parameter_budget:,}, and nothing will grow: the smallest that the rule "
        f"{USUAL} would try is {least.name} at {slot} with {least.parameters:,} parameters. Raise the budget to "
        f"{signals.added_parameters + least.parameters:,} or more, or choose another controller"
    )
