"""Deciding in a user's loop: the decider, what it observes of the model, and what it is shown of its success."""

from collections.abc import Mapping
from dataclasses import replace

from esper.grower import checks
from esper.grower import history as reporting
from esper.grower import replicas as together
from esper.grower.history import Decision, Notes
from esper.grower.host import LoopHost
from esper.grower.measuring import EpochMetrics
from esper.leyline import ActionSpec, LifecycleOp
from esper.tamiyo.deciders import Choice, Decider, LearnedDecider
from esper.tamiyo.rules.policy import refusal
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

    @property
    def name(self) -> str:
        """Of the controller or rule."""
        return self.decider.name

    def record(self) -> None:
        """Observe the epoch that the host has taken in."""
        self.observer.record(0, self.host, self.last_operation)

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
        choice = together.ask(model.replicas, self.decider, self.observer, self.host, reward=reward)
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
            slots={slot.name: slot for slot in self.observer.situation(0).slots},
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
