"""The answers in words: is it learning, is it healthy, what went wrong, what did it cost, which node did what."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from esper.karn.drawing import (
    UNKNOWN,
    Fact,
    clipped,
    duration,
    in_points,
    interval_in_points,
    number,
    share,
    size,
    thousands,
)
from esper.karn.watch.state import Moments, RunState, Watched, pooled
from esper.leyline import AnomalyRaised, RoundFinished

Mood = Literal["good", "neutral", "bad", "unknown"]
WINDOW = 10
"""Rounds that "now" means."""
MOST_PARTS = 12
"""Parts of a round that are listed."""
_MARKS: dict[Mood, str] = {"good": "✓ ", "neutral": "", "bad": "! ", "unknown": "? "}


@dataclass(frozen=True, slots=True)
class Tile:
    """One answer."""

    title: str
    """The question."""
    value: str
    """The answer in a few words."""
    detail: str
    """What it is based on."""
    mood: Mood = "neutral"

    @property
    def marked(self) -> str:
        """The answer with a mark for its mood, so that colour is not needed."""
        return f"{_MARKS[self.mood]}{self.value}"


@dataclass(frozen=True, slots=True)
class Warning:
    """Anomalies of one kind, summed up."""

    name: str
    times: int
    last: AnomalyRaised
    recent: bool
    """Raised in the last rounds."""

    @property
    def marked(self) -> str:
        """The name for people, with a mark if it is recent."""
        return f"{_MARKS['bad'] if self.recent else ''}{clipped(self.name, 60).replace('_', ' ')}"

    @property
    def when(self) -> str:
        """How often, and in which round."""
        if self.times == 1:
            return f"once, in round {self.last.round:,}"
        return f"{self.times:,} times, last in round {self.last.round:,}"


def _recent(state: RunState, measure: str) -> Moments:
    """A measure over the episodes of the last rounds."""
    sums = (state.sums[row.round] for row in state.rounds[-WINDOW:] if row.round in state.sums)
    return pooled(each[measure] for each in sums if measure in each)


def _mood(low: float | None, high: float | None) -> Mood:
    """Of an interval of gains."""
    if low is not None and low > 0:
        return "good"
    return "bad" if high is not None and high < 0 else "neutral"


def learning(state: RunState) -> Tile:
    """Whether the gain of the last rounds differs from 0."""
    gain = _recent(state, "gain")
    if gain.interval is None:
        return Tile("Is it learning?", "unknown yet", "no round with a baseline has ended", "unknown")
    low, high = gain.interval
    mood = _mood(low, high)
    answer = {"good": "better than waiting", "bad": "worse than waiting"}.get(
        mood, "no different from waiting"
    )
    basis = f"gain {interval_in_points(low, high)}, {gain.count:,} episodes of the last {WINDOW} rounds"
    return Tile("Is it learning?", answer, basis, mood)


def health(state: RunState) -> Tile:
    """Whether the last updates were finite and without anomalies."""
    if not state.rounds:
        return Tile("Is it healthy?", "unknown yet", "no update has been made", "unknown")
    recent = [warning.name for warning in warnings(state) if warning.recent]
    broken = sum(row.had_non_finite for row in state.rounds[-WINDOW:])
    if broken:
        return Tile("Is it healthy?", "NaN or Inf", f"in {broken} of the last updates", "bad")
    if recent:
        names = ", ".join(clipped(name, 30).replace("_", " ") for name in recent[:3])
        return Tile("Is it healthy?", "look at it", f"{names}, in the last {WINDOW} rounds", "bad")
    return Tile("Is it healthy?", "nothing looks wrong", f"no anomaly in the last {WINDOW} rounds", "good")


def tiles(watched: Watched) -> list[Tile]:
    """The first row of the page."""
    state = watched.state
    accuracy, baseline = (_recent(state, name).mean for name in ("accuracy", "baseline_accuracy"))
    last = state.rounds[-1] if state.rounds else None
    done = thousands(None if last is None else last.round)
    of = "" if watched.planned_rounds is None else f" of {watched.planned_rounds:,}"
    steps = thousands(None if last is None else last.env_steps)
    return [
        learning(state),
        health(state),
        Tile("Accuracy now", number(accuracy), f"baseline {number(baseline)}"),
        _held_out(state),
        Tile("Round", f"{done}{of}", f"{watched.standing}, {steps} env-epochs"),
    ]


def _held_out(state: RunState) -> Tile:
    last = next((each for each in reversed(state.evaluations) if each.policy == "learned"), None)
    if last is None:
        return Tile("Held-out gain", UNKNOWN, "not evaluated yet", "unknown")
    name, score = last.score
    if name == "utility":
        return Tile("Held-out utility", number(score, 4), f"round {last.round}, no baseline")
    known = interval_in_points(last.gain_low, last.gain_high)
    detail = f"{known}, round {last.round}" if known != UNKNOWN else f"round {last.round}"
    return Tile("Held-out gain", in_points(score), detail, _mood(last.gain_low, last.gain_high))


def warnings(state: RunState) -> list[Warning]:
    """The anomalies by kind, the latest first."""
    times = Counter(anomaly.name for anomaly in state.anomalies)
    latest = {anomaly.name: anomaly for anomaly in state.anomalies}
    first_recent = state.rounds[-WINDOW:][0].round if state.rounds else 0
    found = [Warning(name, times[name], last, last.round >= first_recent) for name, last in latest.items()]
    return sorted(found, key=lambda warning: -warning.last.round)


def cost_facts(watched: Watched) -> list[Fact]:
    """Time, speed and memory of a run so far."""
    rounds = watched.state.rounds
    last = rounds[-1] if rounds else None
    spent = None if last is None else sum(row.seconds for row in rounds if row.seconds == row.seconds)
    lost = sum(row.lost_episodes for row in rounds)
    speed = number(None if last is None else last.env_epochs_per_second, 1)
    return [
        ("env-epochs", thousands(None if last is None else last.env_steps)),
        ("speed now", f"{speed} env-epochs/s"),
        ("time in rounds", duration(spent)),
        ("last round", duration(None if last is None else last.seconds)),
        ("peak memory", size(None if last is None else last.peak_memory_bytes)),
        ("episodes", thousands(len(watched.state.episodes)) + (f", {lost:,} lost" if lost else "")),
        ("events read", thousands(watched.state.events)),
        ("unreadable lines", thousands(watched.state.unreadable_lines)),
    ]


def time_tree(rounds: Sequence[RoundFinished]) -> list[Fact]:
    """Where the time of these rounds went, as shares of it; parts inside others are indented."""
    timed = [row for row in rounds if row.seconds_by_part is not None and math.isfinite(row.seconds)]
    whole = sum(row.seconds for row in timed)
    parts: dict[str, float] = {}
    for row in timed:
        for path, seconds in (row.seconds_by_part or {}).items():
            parts[path] = parts.get(path, 0.0) + seconds
    if not parts:
        return [("parts of a round", UNKNOWN)]
    return [
        (f"{'· ' * path.count('/')}{clipped(path.rpartition('/')[2], 40)}", share(parts[path], whole))
        for path in sorted(parts)[:MOST_PARTS]
    ]


# The nodes of a cluster: their workers, how much they train, and what was lost there


@dataclass(slots=True)
class NodeWork:
    """What the workers of one node did in some rounds."""

    node: str
    workers: set[str] = field(default_factory=set)
    """Names of the workers that were there."""
    epochs: int = 0
    """Epochs that they trained hosts for."""
    busy_seconds: float = 0.0
    """Seconds in which they did, added up over workers."""
    seconds: float = 0.0
    """Time of the rounds, by the clock."""
    lost: int = 0
    """Hosts lost with a worker there."""
    replayed: int = 0
    """Epochs of hosts repeated there after a loss."""

    @property
    def epochs_per_second(self) -> float | None:
        """Env-epochs per second by the clock; None if no time passed."""
        return self.epochs / self.seconds if self.seconds > 0.0 else None


NODE_COLUMNS: dict[str, Callable[[NodeWork], str]] = {
    "node": lambda row: row.node,
    "workers": lambda row: ", ".join(sorted(row.workers)),
    "env-epochs": lambda row: thousands(row.epochs),
    "env-epochs/s": lambda row: number(row.epochs_per_second, 1),
    "at work": lambda row: share(row.busy_seconds, row.seconds * len(row.workers)),
    "hosts lost": lambda row: thousands(row.lost),
    "epochs replayed": lambda row: thousands(row.replayed),
}
"""Title of a column -> what it shows of a node; the first two are names."""


def work_by_node(rounds: Sequence[RoundFinished]) -> list[NodeWork]:
    """One row for each node that had a worker in these rounds, in the order of names; none without a cluster."""
    clustered = [row for row in rounds if row.epochs_by_worker is not None]
    found: dict[str, NodeWork] = {}
    for row in clustered:
        for worker, epochs in (row.epochs_by_worker or {}).items():
            name, _, node = worker.partition(" on ")
            work = found.setdefault(node, NodeWork(node))
            work.workers.add(name)
            work.epochs += epochs
            work.busy_seconds += _seconds_of(worker, row.seconds_by_part or {})
            work.lost += (row.lost_by_worker or {}).get(worker, 0)
            work.replayed += (row.replayed_by_worker or {}).get(worker, 0)
    for work in found.values():
        work.seconds = sum(row.seconds for row in clustered)
    return sorted(found.values(), key=lambda work: work.node)


def _seconds_of(worker: str, parts: Mapping[str, float]) -> float:
    """Seconds that a worker was at work, wherever in the time tree it is."""
    return sum(seconds for path, seconds in parts.items() if path.endswith(f"/{worker}"))


def cluster_line(row: RoundFinished) -> str:
    """A round on a cluster in a few words: nodes, workers, and what was lost; empty without a cluster."""
    nodes = work_by_node([row])
    if not nodes:
        return ""
    counts = Counter(lost=sum(node.lost for node in nodes), replayed=sum(node.replayed for node in nodes))
    parts = [f"nodes {len(nodes)}", f"workers {sum(len(node.workers) for node in nodes)}"]
    return "  ".join([*parts, *(f"{name} {count}" for name, count in counts.items() if count)])
