"""What a grower did and why: one decision an epoch, in words and numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from esper.grower.metrics import EpochMetrics
from esper.kasmina import GrowingModel
from esper.kasmina.drawing import draw_text
from esper.leyline import ActionSpec, LifecycleOp, Situation, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStanding:
    """One slot at the end of an epoch, before the decision."""

    stage: Stage
    alpha: float
    blueprint: str | None
    contribution: float | None
    probe: float | None


def standings(model: GrowingModel) -> dict[str, SlotStanding]:
    return {
        name: SlotStanding(
            stage=slot.stage,
            alpha=slot.alpha,
            blueprint=None if slot.seed is None else slot.seed.blueprint_name,
            contribution=slot.contribution,
            probe=slot.probe,
        )
        for name, slot in model.slots.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided after an epoch. It is carried out at once; the next epoch shows it."""

    epoch: int
    """Epochs trained so far."""
    action: ActionSpec
    controller: str
    reason: str
    metrics: EpochMetrics
    score: float | None
    """Validation accuracy; without one, minus the validation loss over the first."""
    forecast: float | None
    """The score that was to be expected without growth: measured until the first birth, then extrapolated."""
    gain_forecast: float | None
    """Score minus rent, over that forecast. A forecast, not a measurement: nobody trained the other model."""
    added_parameters: int
    slots: dict[str, SlotStanding]
    probability: float | None = None
    rolled_back: str | None = None
    """Why the governor went back to the last good epoch."""
    notes: tuple[str, ...] = field(default=())
    """What else happened: warnings, recompilation, seeds that were removed."""

    def __str__(self) -> str:
        return f"epoch {self.epoch}: {described(self.action)} ({self.reason})"


DECISIONS = TypeAdapter(tuple[Decision, ...])
"""To and from JSON."""


def described(action: ActionSpec) -> str:
    """An action in words."""
    if action.op is LifecycleOp.WAIT:
        return "wait"
    verb = action.op.name.lower().replace("_", " ")
    if action.op is LifecycleOp.GERMINATE:
        return f"{verb} {action.blueprint} at {action.slot}"
    if action.op is LifecycleOp.SET_ALPHA_TARGET:
        return f"{verb} of {action.slot} to {action.alpha_target:g}"
    return f"{verb} {action.slot}"


def reason_for(action: ActionSpec, situation: Situation, rent: float, probability: float | None) -> str:
    """The facts that speak to a decision. What went on inside a controller nobody can tell."""
    signals = situation.signals
    facts: list[str] = []
    seed = next((slot for slot in situation.slots if slot.name == action.slot), None)
    if action.op is LifecycleOp.GERMINATE:
        card = next(card for card in situation.cards[str(action.slot)] if card.name == action.blueprint)
        facts.append(
            f"{card.parameters:,} parameters, {card.parameters / signals.host_parameters:.1%} of the host"
        )
        stuck = signals.plateau_epochs
        facts.append(f"validation has not improved for {stuck} epochs" if stuck else "validation improves")
    elif seed is not None:
        if seed.probe is not None:
            facts.append(f"switching it on would change the score by {seed.probe:+.3f}")
        if seed.contribution is not None:
            owed = rent * seed.parameters / signals.host_parameters
            facts.append(f"contribution {seed.contribution:+.3f} by leaving it out, rent {owed:.4f}")
        elif seed.probe is None:
            facts.append("its contribution is unknown")
        facts.append(f"{seed.age} epochs old")
    else:
        live = [slot.name for slot in situation.slots if slot.stage.is_live]
        facts.append(f"seeds at {', '.join(live)}" if live else "no seed is live")
    if probability is not None:
        facts.append(f"chosen with probability {probability:.2f}")
    return "; ".join(facts)


def explain(model: GrowingModel, history: Sequence[Decision], controller: str) -> str:
    """What was done and why, and where that has led."""
    lines = [f"controller {controller}, {len(history)} epochs", "", draw_text(model), ""]
    told = [
        decision
        for decision in history
        if decision.action.op is not LifecycleOp.WAIT or decision.rolled_back or decision.notes
    ]
    for decision in told:
        if decision.action.op is not LifecycleOp.WAIT or decision.rolled_back:
            lines.append(str(decision))
        lines += [f"epoch {decision.epoch}: {note}" for note in decision.notes]
    if not told:
        lines.append("nothing was grown")
    lines += ["", *_outcome(model, history)]
    return "\n".join(lines)


def _outcome(model: GrowingModel, history: Sequence[Decision]) -> list[str]:
    share = model.added_parameters / model.host_parameters
    lines = [
        f"added {model.added_parameters:,} parameters, {share:.1%} of the host's {model.host_parameters:,}"
    ]
    if not model.added_parameters:  # the forecast is of a model without growth, and this is one
        return lines
    scored = [decision for decision in history if decision.gain_forecast is not None]
    if scored and any(decision.added_parameters for decision in scored):
        last = scored[-1]
        lines.append(
            f"score {last.score:.4f} where {last.forecast:.4f} was forecast without growth: utility "
            f"{last.gain_forecast:+.4f} over the forecast, which is no measurement"
        )
    return lines
