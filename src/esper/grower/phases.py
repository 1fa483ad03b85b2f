"""The phases of a run without an end: what came of each, in a few numbers, however long it goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from pydantic import TypeAdapter

from esper.grower.history import Decision, described
from esper.leyline import LifecycleOp
from esper.tamiyo.tracker import FALL, Level

DECISIONS_KEPT = 100
"""The last decisions of a run without an end that are kept whole."""
PHASES_KEPT = 20
"""The last phases that are kept apart; the oldest two become one beyond that."""
ACTIONS_KEPT = 12
"""The last operations of a phase that are named; of the others their number is known."""
PATIENCE = 2
"""Epochs that validation is below its level by `FALL` before a new phase begins: with the first of them."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Epochs between two falls of validation."""

    first: int
    """Epoch."""
    last: int
    """Epoch."""
    first_score: float | None
    """The first that was known."""
    best_score: float | None
    last_score: float | None
    added_parameters: int
    """After its last epoch."""
    actions: tuple[str, ...] = ()
    """The last operations with their epochs, in words."""
    operations: int = 0
    """How many there were."""
    rollbacks: int = 0
    """How often the governor went back."""

    def __str__(self) -> str:
        scores = "validation unknown"
        if self.first_score is not None:
            scores = f"score {self.first_score:.3f} to {self.last_score:.3f}, at best {self.best_score:.3f}"
        back = f", {self.rollbacks} times back to a good epoch" if self.rollbacks else ""
        return (
            f"epochs {self.first} to {self.last}: {scores}; {self.added_parameters:,} parameters added{back}"
        )


def _of(decision: Decision) -> Phase:
    """A phase of one epoch."""
    score, epoch, action = decision.score, decision.epoch, decision.action
    named = () if action.op is LifecycleOp.WAIT else (f"epoch {epoch}: {described(action)}",)
    return Phase(
        first=epoch,
        last=epoch,
        first_score=score,
        best_score=score,
        last_score=score,
        added_parameters=decision.added_parameters,
        actions=named,
        operations=len(named),
        rollbacks=int(decision.rolled_back is not None),
    )


def _joined(one: Phase, other: Phase) -> Phase:
    """Two phases that follow each other as one."""
    known = [score for score in (one.best_score, other.best_score) if score is not None]
    return Phase(
        first=one.first,
        last=other.last,
        first_score=other.first_score if one.first_score is None else one.first_score,
        best_score=max(known, default=None),
        last_score=one.last_score if other.last_score is None else other.last_score,
        added_parameters=other.added_parameters,
        actions=(*one.actions, *other.actions)[-ACTIONS_KEPT:],
        operations=one.operations + other.operations,
        rollbacks=one.rollbacks + other.rollbacks,
    )


@dataclass
class Phases:
    """Divides a run where validation falls, and sums each part up. Its size does not grow."""

    level: Level = field(default_factory=Level)
    closed: list[Phase] = field(default_factory=list)
    """Phases that have ended, the oldest first."""
    running: Phase | None = None
    """The one that goes on; None before the first epoch."""
    doubtful: list[Phase] = field(default_factory=list)
    """The last epochs below the level, one by one: of this phase, or the first of the next."""

    def record(self, decision: Decision) -> None:
        """Take in an epoch."""
        self.doubtful.append(_of(decision))
        if self.level.record(decision.score, drop=FALL, patience=PATIENCE) is not None:
            self.closed += [] if self.running is None else [self.running]
            self.running = None
        elif self.level.below and decision.score is not None:
            return
        self.running, self.doubtful = self._with_doubtful(), []
        if len(self.closed) > PHASES_KEPT:
            self.closed[:2] = [_joined(*self.closed[:2])]

    def _with_doubtful(self) -> Phase | None:
        """The running phase, and what has not been told from it."""
        parts = [*([] if self.running is None else [self.running]), *self.doubtful]
        return reduce(_joined, parts) if parts else None

    def lines(self) -> list[str]:
        """The phases in words, each with its last operations; none while the decisions kept say it all."""
        running = self._with_doubtful()
        if running is None or (not self.closed and running.last - running.first < DECISIONS_KEPT):
            return []
        lines: list[str] = []
        for phase in (*self.closed, running):
            lines.append(str(phase))
            hidden = phase.operations - len(phase.actions)
            lines += [f"  ({hidden} operations before these)"] if hidden else []
            lines += [f"  {action}" for action in phase.actions]
        return lines

    def state_dict(self) -> dict[str, object]:
        """Plain data."""
        plain: dict[str, object] = _PHASES.dump_python(self, mode="json")
        return plain


_PHASES = TypeAdapter(Phases)


def read_phases(state: object, history: Sequence[Decision]) -> Phases:
    """What `Phases.state_dict` gave; None, of a run whose end was known, is put together from its history."""
    if state is not None:
        return _PHASES.validate_python(state)
    phases = Phases()
    for decision in history:
        phases.record(decision)
    return phases
