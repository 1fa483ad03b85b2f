"""Is it learning, is it healthy: the answers in a few words, each with what it rests on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from esper.karn.watch import texts
from esper.karn.watch.points import Moments, pooled
from esper.karn.watch.state import RunState
from esper.leyline import AnomalyRaised

Mood = Literal["good", "neutral", "bad", "unknown"]
WINDOW = 10
"""Rounds that 'now' means."""
MARKS: dict[Mood, str] = {"good": "▲", "neutral": "●", "bad": "▼", "unknown": "?"}


@dataclass(frozen=True, slots=True)
class Tile:
    """One answer."""

    title: str
    value: str
    detail: str
    mood: Mood = "neutral"


@dataclass(frozen=True, slots=True)
class Warning:
    """Anomalies of one kind, summed up."""

    name: str
    times: int
    last: AnomalyRaised
    recent: bool
    """Raised in the last rounds."""

    @property
    def when(self) -> str:
        often = "once" if self.times == 1 else f"{self.times:,} times"
        return (
            f"{often}, last in round {self.last.round:,}"
            if self.times > 1
            else f"{often}, in round {self.last.round:,}"
        )


def recent_gain(state: RunState) -> Moments:
    return pooled(state.sums[row.round].gain for row in state.rounds[-WINDOW:] if row.round in state.sums)


def learning(state: RunState) -> Tile:
    gain = recent_gain(state)
    if gain.interval is None:
        return Tile(
            "Is it learning?", "unknown yet", "no round with a wait-only control has ended", "unknown"
        )
    low, high = gain.interval
    rests = f"gain {texts.interval(low, high)}, {gain.count:,} episodes of the last {WINDOW} rounds"
    if low > 0:
        return Tile("Is it learning?", "better than waiting", rests, "good")
    if high < 0:
        return Tile("Is it learning?", "worse than waiting", rests, "bad")
    return Tile("Is it learning?", "no different from waiting", rests, "neutral")


def health(state: RunState) -> Tile:
    if not state.rounds:
        return Tile("Is it healthy?", "unknown yet", "no update has been made", "unknown")
    recent = [warning for warning in warnings(state) if warning.recent]
    broken = sum(row.had_non_finite for row in state.rounds[-WINDOW:])
    if broken:
        return Tile("Is it healthy?", "NaN or Inf", f"in {broken} of the last updates", "bad")
    if recent:
        names = ", ".join(texts.clipped(warning.name, 30).replace("_", " ") for warning in recent[:3])
        return Tile("Is it healthy?", "look at it", f"{names}, in the last {WINDOW} rounds", "bad")
    return Tile("Is it healthy?", "nothing looks wrong", f"no anomaly in the last {WINDOW} rounds", "good")


def tiles(state: RunState, standing: str, planned_rounds: int | None) -> list[Tile]:
    """The first row of the page."""
    recent = [state.sums[row.round] for row in state.rounds[-WINDOW:] if row.round in state.sums]
    accuracy, control = (
        pooled(each.accuracy for each in recent).mean,
        pooled(each.control_accuracy for each in recent).mean,
    )
    last = state.rounds[-1] if state.rounds else None
    done = texts.whole(None if last is None else last.round)
    of = "" if planned_rounds is None else f" of {planned_rounds:,}"
    steps = texts.whole(None if last is None else last.env_steps)
    return [
        learning(state),
        health(state),
        Tile("Accuracy now", texts.number(accuracy), f"wait-only control {texts.number(control)}"),
        _held_out(state),
        Tile("Round", f"{done}{of}", f"{standing}, {steps} env-epochs"),
    ]


def warnings(state: RunState) -> list[Warning]:
    """By kind, the latest first."""
    counted = Counter(anomaly.name for anomaly in state.anomalies)
    latest: dict[str, AnomalyRaised] = {anomaly.name: anomaly for anomaly in state.anomalies}
    first_recent = _first_recent(state)
    found = [Warning(name, counted[name], last, last.round >= first_recent) for name, last in latest.items()]
    return sorted(found, key=lambda warning: -warning.last.round)


def _held_out(state: RunState) -> Tile:
    judged = [each for each in state.evaluations if each.policy == "learned"]
    if not judged:
        return Tile("Held-out gain", texts.UNKNOWN, "not judged yet", "unknown")
    last = judged[-1]
    known = texts.interval(last.gain_low, last.gain_high)
    detail = f"{known}, round {last.round}" if known != texts.UNKNOWN else f"round {last.round}"
    mood: Mood = "neutral"
    if last.gain_low is not None and last.gain_low > 0:
        mood = "good"
    elif last.gain_high is not None and last.gain_high < 0:
        mood = "bad"
    return Tile("Held-out gain", texts.signed(last.mean_gain), detail, mood)


def _first_recent(state: RunState) -> int:
    rounds: Sequence[int] = [row.round for row in state.rounds[-WINDOW:]]
    return rounds[0] if rounds else 0
