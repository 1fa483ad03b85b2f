"""One episode, looked up in the file on demand: its steps, and what they say as names and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from esper.karn import texts
from esper.karn.watch.lines import whole
from esper.karn.watch.state import RunState
from esper.leyline import DecisionTaken, EpisodeFinished, LifecycleOp, Stage
from esper.nissa.wire import BrokenLine, UnknownKind, decode_event

MOST_DECISIONS = 5000
"""Steps of an episode that are read."""
_EMPTY = (Stage.DORMANT.name, Stage.EMBARGOED.name)
_CHOICES = ("slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
Fact = tuple[str, str]
"""A name and a value."""


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot at a decision; what was not recorded is None."""

    name: str
    stage: str | None
    alpha: float | None
    contribution: float | None
    blueprint: str | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of an episode: the decision, and the slots as they were then."""

    decision: DecisionTaken
    slots: tuple[SlotView, ...]

    @property
    def epoch(self) -> int:
        """Epoch that was trained after the decision."""
        return self.decision.epoch


def read_episode(state: RunState, file: BinaryIO, row: EpisodeFinished) -> list[Frame]:
    """The steps of an episode in order; empty if its decisions were not recorded."""
    mark = b'"env":%d,"episode":%d,' % (row.env, row.episode)
    # Its steps are in the rounds from the end of that env's episode before, to its own end.
    before = [other.round or 0 for other in state.by_env.get(row.env, ()) if other.episode < row.episode]
    first, last = max(before, default=0), row.round or 0
    by_epoch: dict[int, DecisionTaken] = {}
    for round_number in [number for number in state.blocks if first <= number <= last]:
        for line in state.decisions(file, round_number):
            if mark in line[:300] and len(by_epoch) < MOST_DECISIONS:
                decision = _decision(line)
                if decision is not None:
                    by_epoch[decision.epoch] = decision
    return frames([by_epoch[epoch] for epoch in sorted(by_epoch)])


def frames(decisions: Sequence[DecisionTaken]) -> list[Frame]:
    """The steps with the blueprint that grows at each slot, which only the germination records."""
    recorded = next((decision.stages for decision in decisions if decision.stages is not None), None)
    # In the order of the network; where slots were not recorded, those that something was done to.
    names = tuple(recorded or sorted({decision.slot for decision in decisions if decision.slot is not None}))
    growing: dict[str, str | None] = {}
    found: list[Frame] = []
    for decision in decisions:
        found.append(Frame(decision, tuple(_view(decision, name, growing.get(name)) for name in names)))
        if decision.op is LifecycleOp.GERMINATE and decision.slot is not None:
            growing[decision.slot] = decision.blueprint
    return found


def _view(decision: DecisionTaken, name: str, blueprint: str | None) -> SlotView:
    stage, alpha, contribution = (
        (decision.stages or {}).get(name),
        (decision.alphas or {}).get(name),
        (decision.contributions or {}).get(name),
    )
    return SlotView(name, stage, alpha, contribution, None if stage in _EMPTY else blueprint)


def _decision(line: bytes) -> DecisionTaken | None:
    try:
        event = decode_event(line)
    except (BrokenLine, UnknownKind):
        return None
    return event if isinstance(event, DecisionTaken) and whole(event.epoch) is not None else None


def decision_facts(frame: Frame | None) -> list[Fact]:
    """What was decided, and its result."""
    if frame is None:
        return [("decision", texts.UNKNOWN)]
    decision = frame.decision
    rows = [("operation", texts.operation(decision.op.name))]
    used = ((name, getattr(decision, name)) for name in _CHOICES)
    rows += [
        (name.replace("_", " "), texts.clipped(str(value), 60)) for name, value in used if value is not None
    ]
    if decision.illegal is not None:
        rows.append(("illegal", texts.clipped(decision.illegal)))
    rows += [
        ("value", texts.signed(decision.value)),
        ("log-probability", texts.number(decision.log_prob)),
        ("contribution", texts.signed(decision.contribution)),
        ("accuracy after", texts.number(decision.validation_accuracy)),
        ("reward", texts.signed(decision.reward, 4)),
    ]
    return rows + [
        (f"· {texts.clipped(name, 40).replace('_', ' ')}", texts.signed(part, 4))
        for name, part in decision.reward_components.items()
        if part
    ]


def observation_facts(frame: Frame | None) -> list[Fact]:
    """What the policy saw, feature by feature."""
    seen = None if frame is None else frame.decision.observation
    if seen is None:
        return [(texts.UNKNOWN, "recorded with --run-telemetry debug")]
    return [(texts.clipped(name, 60), texts.number(value, 4)) for name, value in seen.items()]


def episode_line(row: EpisodeFinished | None, *, recorded: bool) -> str:
    """An episode in one line; `recorded` says whether its decisions were."""
    if row is None:
        return "no episode has ended"
    accuracy, baseline = texts.number(row.validation_accuracy), texts.number(row.control_accuracy)
    parts = [
        f"round {row.round}",
        f"accuracy {accuracy}, baseline {baseline}",
        f"added parameters {texts.whole(row.added_parameters)}",
    ]
    if row.rolled_back is not None:
        parts.append(f"rolled back: {texts.clipped(row.rolled_back)}")
    if row.lost:
        parts.append("lost")
    if not recorded:
        parts.append("decisions not recorded")
    return "  ·  ".join(parts)
