"""One episode, looked up in the file when somebody asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from esper.karn.watch.lines import EpisodeRow, whole
from esper.karn.watch.state import RunState
from esper.leyline import DecisionTaken, LifecycleOp, Stage
from esper.nissa.wire import BrokenLine, UnknownKind, decode

MOST_DECISIONS = 5000
_EMPTY = (Stage.DORMANT.name, Stage.EMBARGOED.name)


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot when it was decided about; what was not recorded is None."""

    name: str
    stage: str | None
    alpha: float | None
    contribution: float | None
    blueprint: str | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of an episode: how the slots stood, what was decided, and what came of it."""

    decision: DecisionTaken
    slots: tuple[SlotView, ...]

    @property
    def epoch(self) -> int:
        return self.decision.epoch


def read_episode(state: RunState, file: BinaryIO, row: EpisodeRow) -> list[Frame]:
    """The steps of an episode in order; empty when its decisions were not recorded."""
    mark = b'"env":%d,"episode":%d,' % (row.env, row.episode)
    by_epoch: dict[int, DecisionTaken] = {}
    for round_number in _rounds_of(state, row):
        for line in state.decisions(file, round_number):
            if mark in line[:300] and len(by_epoch) < MOST_DECISIONS:
                decision = _decision(line)
                if decision is not None:
                    by_epoch[decision.epoch] = decision
    return frames([by_epoch[epoch] for epoch in sorted(by_epoch)])


def frames(decisions: Sequence[DecisionTaken]) -> list[Frame]:
    """With the blueprint that grows at each slot, which only its birth tells."""
    growing: dict[str, str | None] = {}
    told: list[Frame] = []
    names = _slot_names(decisions)
    for decision in decisions:
        told.append(Frame(decision, tuple(_view(decision, name, growing.get(name)) for name in names)))
        if decision.op is LifecycleOp.GERMINATE and decision.slot is not None:
            growing[decision.slot] = decision.blueprint
    return told


def _view(decision: DecisionTaken, name: str, blueprint: str | None) -> SlotView:
    stage = None if decision.stages is None else decision.stages.get(name)
    return SlotView(
        name,
        stage,
        None if decision.alphas is None else decision.alphas.get(name),
        None if decision.contributions is None else decision.contributions.get(name),
        None if stage in _EMPTY else blueprint,
    )


def _slot_names(decisions: Sequence[DecisionTaken]) -> tuple[str, ...]:
    """In the order of the network; where the slots were not recorded, those that something was done to."""
    for decision in decisions:
        if decision.stages is not None:
            return tuple(decision.stages)
    return tuple(sorted({decision.slot for decision in decisions if decision.slot is not None}))


def _rounds_of(state: RunState, row: EpisodeRow) -> list[int]:
    """The rounds an episode can have steps in: from the end of that env's one before, to its own."""
    before = [other.round for other in state.by_env.get(row.env, ()) if other.episode < row.episode]
    first = max(before, default=0)
    return [number for number in state.blocks if first <= number <= row.round]


def _decision(line: bytes) -> DecisionTaken | None:
    try:
        event = decode(line).event
    except (BrokenLine, UnknownKind):
        return None
    return event if isinstance(event, DecisionTaken) and whole(event.epoch) is not None else None
