"""One run as far as it was read: rounds, episodes and sums, but not its decisions, which are looked up on demand.

`RunState` follows the end of a run's events: `LineTail` reads the lines added since the last look, and `Points` sums
up the rounds for drawing.
"""

import math
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from pydantic import JsonValue
from scipy.special import stdtrit

from esper.karn.drawing import finite
from esper.karn.seeds import SeedCount, SeedTally
from esper.leyline import (
    HEAD_NAMES,
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    RoundFinished,
    RunFinished,
    RunStarted,
)
from esper.nissa.event_file import decode_event

PIECE = 1 << 20
"""Bytes read at a time."""
LONGEST_LINE = 1 << 22
"""Bytes; a longer line cannot be an event and is skipped."""
POINTS = 240
"""Points of a curve, at most."""
MOST_ANOMALIES = 1000
"""Anomalies kept, the last ones."""
_KIND = b'{"kind":"'
_DECISION = _KIND + f'{DecisionTaken.kind}"'.encode()
_READ = tuple(
    _KIND + f'{event.kind}"'.encode()
    for event in (EpisodeFinished, RoundFinished, AnomalyRaised, EvaluationFinished, RunStarted, RunFinished)
)


def whole(value: object) -> int | None:
    """A count that fits in 63 bits; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


# Reading a growing file: whole lines only, in pieces that fit in memory


class LineTail:
    """Remembers how far a growing file was read.

    >>> tail.began_anew(file)    # is it another file, or was it cut? then forget what was read
    >>> for offset, lines in tail.read(file): ...    # as many as fit in memory at a time
    """

    __slots__ = ("_identity", "_skipping", "offset", "too_long")

    def __init__(self) -> None:
        self.offset = 0
        """Bytes whose lines were returned."""
        self.too_long = 0
        """Lines that were skipped because of their length."""
        self._identity: tuple[int, int] | None = None
        self._skipping = False

    def began_anew(self, file: BinaryIO) -> bool:
        """Whether this is another file than before, or it is shorter now; reading then starts at its beginning."""
        now = os.fstat(file.fileno())
        identity = (now.st_dev, now.st_ino)
        other = self._identity is not None and (identity != self._identity or now.st_size < self.offset)
        if other:
            self.offset, self.too_long, self._skipping = 0, 0, False
        self._identity = identity
        return other

    def read(self, file: BinaryIO) -> Iterator[tuple[int, list[bytes]]]:
        """The lines since the last reading, without newlines, and the offset of the first of them in bytes.

        A line that has no newline yet waits for the next reading.
        """
        file.seek(self.offset)
        begun = b""  # the start of a line whose end is not yet written
        while data := file.read(PIECE):
            lines = data.split(b"\n")
            lines[0] = begun + lines[0]
            begun = lines.pop()
            if not lines:
                if len(begun) > LONGEST_LINE:
                    self.offset += len(begun)
                    begun, self._skipping = b"", True
                continue
            offset = self.offset
            self.offset = file.tell() - len(begun)
            if self._skipping:  # the rest of a line that was too long
                offset += len(lines.pop(0)) + 1
                self._skipping = False
                self.too_long += 1
            yield offset, lines


# Rounds summed up in as many points as a screen can show, each computed once


@dataclass(slots=True)
class Moments:
    """Count, sum and sum of squares of finite numbers, from which mean and interval follow."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float | None) -> None:
        """Add a number; None, NaN, Inf and what is too large to square are not counted."""
        if value is not None and abs(value) < 1e100:
            self.count += 1
            self.total += value
            self.squares += value * value

    @property
    def mean(self) -> float | None:
        """None without numbers."""
        return self.total / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean, by Student's t; None with fewer than two numbers."""
        if self.count < 2:
            return None
        mean = self.total / self.count
        variance = max(self.squares - self.count * mean * mean, 0.0) / (self.count - 1)
        half = float(stdtrit(self.count - 1, 0.975)) * math.sqrt(variance / self.count)
        return mean - half, mean + half


def pooled(parts: Iterable[Moments]) -> Moments:
    """The moments of all numbers together."""
    together = Moments()
    for part in parts:
        together.count += part.count
        together.total += part.total
        together.squares += part.squares
    return together


EPISODE_MEASURES: Mapping[str, Callable[[EpisodeFinished], float | None]] = {
    "gain": lambda row: row.gain,
    "utility": lambda row: row.utility,
    "baseline_utility": lambda row: (
        None if row.utility is None or row.gain is None else row.utility - row.gain
    ),
    "accuracy": lambda row: row.validation_accuracy,
    "baseline_accuracy": lambda row: row.control_accuracy,
}
"""Name -> what is averaged over the episodes of a round."""
ROUND_MEASURES: Mapping[str, Callable[[RoundFinished], float | None]] = {
    "explained_variance": lambda row: row.explained_variance,
    "approx_kl": lambda row: row.approx_kl,
    "grad_norm": lambda row: row.grad_norm,
    "env_epochs_per_second": lambda row: row.env_epochs_per_second,
    "seconds": lambda row: row.seconds,
    "peak_memory": lambda row: None if (size := whole(row.peak_memory_bytes)) is None else size / 2**20,
}
"""Name -> what is drawn of a round; memory in MiB. The entropies of the heads are drawn too, by the heads' names."""
RoundSums = defaultdict[str, Moments]
"""Name of an episode measure -> its moments over the episodes that ended in a round and were not lost."""


def add_episode(sums: RoundSums, row: EpisodeFinished) -> None:
    """Add the measures of one episode."""
    for name, pick in EPISODE_MEASURES.items():
        sums[name].add(pick(row))


@dataclass(frozen=True, slots=True)
class Point:
    """Neighbouring rounds together."""

    round: int
    """The last of them."""
    measured: Mapping[str, float | None]
    """Name of a round measure, or of a head for its entropy -> the mean over rounds where it is known."""
    operations: Mapping[str, int]
    """Operation -> times it was executed."""
    episodes: Mapping[str, Moments]
    """Name of an episode measure -> its moments over all their episodes."""

    @staticmethod
    def of(rounds: Sequence[RoundFinished], sums: Mapping[int, RoundSums]) -> "Point":
        """The point of these rounds; `sums` has the episodes by round."""
        measured = {name: _mean([pick(row) for row in rounds]) for name, pick in ROUND_MEASURES.items()}
        measured |= {head: _mean([row.entropy_by_head.get(head) for row in rounds]) for head in HEAD_NAMES}
        operations: Counter[str] = Counter()
        for row in rounds:
            operations.update(row.operations)
        parts = [sums[row.round] for row in rounds if row.round in sums]
        episodes = {name: pooled(part[name] for part in parts if name in part) for name in EPISODE_MEASURES}
        return Point(rounds[-1].round, measured, operations, episodes)


class Points:
    """The points of a run that only grows. A full point is not made again until there are too many points."""

    __slots__ = ("_all", "_full", "_rounds", "_size")

    def __init__(self) -> None:
        self._full: list[Point] = []
        self._size = 1
        """Rounds in a point; it doubles."""
        self._all: list[Point] = []
        self._rounds = 0
        """Rounds that `_all` was made of."""

    def of(self, rounds: Sequence[RoundFinished], sums: Mapping[int, RoundSums]) -> list[Point]:
        """The points of all rounds so far."""
        rounds = rounds[:]  # another thread may add to them meanwhile
        if len(rounds) == self._rounds:
            return self._all
        while len(rounds) > self._size * POINTS:
            self._size *= 2
            self._full.clear()
        while len(rounds) - len(self._full) * self._size >= self._size:
            start = len(self._full) * self._size
            self._full.append(Point.of(rounds[start : start + self._size], sums))
        rest = rounds[len(self._full) * self._size :]
        self._all = [*self._full, Point.of(rest, sums)] if rest else list(self._full)
        self._rounds = len(rounds)
        return self._all


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known and finite."""
    known = [number for value in values if (number := finite(value)) is not None]
    return sum(value / len(known) for value in known) if known else None  # the sum of all might overflow


# The run


class RunState:
    """One run as far as it was read. `read` takes in what was added since the last time."""

    def __init__(self) -> None:
        self.version = 0
        """Grows whenever something new is known."""
        self._tail = LineTail()
        self._clear()

    def _clear(self) -> None:
        self.rounds: list[RoundFinished] = []
        self.sums: defaultdict[int, RoundSums] = defaultdict(lambda: defaultdict(Moments))
        """Round -> sums over its episodes; also for the round that has not ended."""
        self.episodes: list[EpisodeFinished] = []
        self.by_env: dict[int, list[EpisodeFinished]] = {}
        """The same episodes by env."""
        self.evaluations: list[EvaluationFinished] = []
        self.anomalies: list[AnomalyRaised] = []
        self.blocks: dict[int, tuple[int, int]] = {}
        """Round -> offsets in the file at which its decisions begin and end."""
        self.finished: RunFinished | None = None
        self.events = 0
        self.broken_lines = 0
        self._block_start: int | None = None
        self._points = Points()
        self._seeds = SeedTally()
        self._uncounted: deque[int] = deque()
        """Rounds whose seeds are not counted yet."""

    def read(self, file: BinaryIO) -> bool:
        """Read what was added; returns whether anything was."""
        changed = self._tail.began_anew(file)
        if changed:
            self._clear()
        for offset, lines in self._tail.read(file):
            changed = True
            self._absorb(lines, offset)
        if changed:
            self.version += 1
        return changed

    @property
    def unreadable_lines(self) -> int:
        """Lines that are not events, or too long to be read."""
        return self.broken_lines + self._tail.too_long

    def points(self) -> list[Point]:
        """The rounds, summed up for drawing."""
        return self._points.of(self.rounds, self.sums)

    def episode(self, env: int, episode: int) -> EpisodeFinished | None:
        """The last episode recorded with that number."""
        wanted = (row for row in reversed(self.by_env.get(env, ())) if row.episode == episode)
        return next(wanted, None)

    def decisions(self, file: BinaryIO, round_number: int) -> list[bytes]:
        """The lines of a round's decisions."""
        place = self.blocks.get(round_number)
        if place is None:
            return []
        file.seek(place[0])
        block = file.read(place[1] - place[0])
        return [line for line in block.split(b"\n") if line.startswith(_DECISION)]

    # Seeds are counted after a run was opened, since that takes a look into every decision.

    def count_seeds(self, file: BinaryIO, seconds: float) -> bool:
        """Count the seeds of one more round, and of others for so many seconds; returns whether any was left."""
        if not self._uncounted:
            return False
        deadline = time.monotonic() + seconds
        while self._uncounted:
            for line in self.decisions(file, self._uncounted.popleft()):
                self._seeds.decide(line)
            if time.monotonic() > deadline:
                break
        self.version += 1
        return True

    @property
    def seeds_counted(self) -> float:
        """Share of the rounds whose seeds are in `seed_counts`, 0..1."""
        return 1.0 - len(self._uncounted) / len(self.blocks) if self.blocks else 1.0

    def seed_counts(self) -> list[SeedCount]:
        """The seeds counted so far, by blueprint and slot."""
        return self._seeds.counts()

    def _absorb(self, lines: list[bytes], offset: int) -> None:
        # A million lines pass here when a run is opened, nearly all of them decisions: those are skipped by their
        # first bytes, and only where a stretch of them begins and ends is kept.
        others = [place for place, line in enumerate(lines) if not line.startswith(_DECISION)]
        passed = 0
        for place in [*others, len(lines)]:
            if place > passed and self._block_start is None:
                self._block_start = offset
            offset += sum(map(len, lines[passed:place])) + place - passed
            if place < len(lines):
                self._take(lines[place], offset)
                offset += len(lines[place]) + 1
            passed = place + 1
        self.events += len(lines)

    def _take(self, line: bytes, offset: int) -> None:
        """Anything but a decision."""
        if not line.startswith(_READ):
            self.broken_lines += bool(line) and not line.startswith(_KIND)
            return
        event = decode_event(line)
        if event is None:
            self.broken_lines += 1
        elif isinstance(event, EpisodeFinished):
            self._take_episode(event)
        elif isinstance(event, RoundFinished):
            self._take_round(event, offset)
        elif isinstance(event, AnomalyRaised):
            self.anomalies.append(event)
            del self.anomalies[:-MOST_ANOMALIES]
        elif isinstance(event, EvaluationFinished):
            self.evaluations.append(event)
        elif isinstance(event, RunStarted):
            self._take_start(event)
        elif isinstance(event, RunFinished):
            self.finished = event

    def _take_episode(self, event: EpisodeFinished) -> None:
        round_number = whole(event.round)
        if round_number is None or None in (whole(event.env), whole(event.episode)):
            self.broken_lines += 1
            return
        self.episodes.append(event)
        self.by_env.setdefault(event.env, []).append(event)
        if not event.lost:
            add_episode(self.sums[round_number], event)

    def _take_round(self, event: RoundFinished, offset: int) -> None:
        self.rounds.append(event)
        if self._block_start is not None:
            self.blocks[event.round] = (self._block_start, offset)
            self._uncounted.append(event.round)
        self._block_start = None

    def _take_start(self, event: RunStarted) -> None:
        """A run that resumes from a checkpoint, or starts again: what it recorded beyond no longer counts."""
        if event.resumed_from is None:
            self._clear()
        else:
            self._cut_after(event.resumed_from)
        self.finished = None

    def _cut_after(self, last: int) -> None:
        self.rounds = [row for row in self.rounds if row.round <= last]
        self.evaluations = [row for row in self.evaluations if row.round <= last]
        self.anomalies = [row for row in self.anomalies if row.round <= last]
        episodes, self.episodes, self.by_env = self.episodes, [], {}
        self.sums.clear()
        for row in episodes:
            if row.round is not None and row.round <= last:
                self._take_episode(row)
        self.blocks = {number: place for number, place in self.blocks.items() if number <= last}
        self._points = Points()
        # What became of a seed may have been recorded later: the seeds of all rounds are counted again.
        self._seeds, self._uncounted = SeedTally(), deque(self.blocks)
        self._block_start = None


@dataclass(slots=True)
class Watched:
    """A run, what is known of it, and its state."""

    name: str
    state: RunState = field(default_factory=RunState)
    config: dict[str, JsonValue] = field(default_factory=dict)
    standing: str = "unknown"
    """running, finished, interrupted, failed, crashed, not begun, or gone."""
    read_at: float = 0.0
    """When it was last read, on the monotonic clock."""

    @property
    def planned_rounds(self) -> int | None:
        """Rounds the run was configured for; None if unknown."""
        return whole(self.config.get("rounds"))

    @property
    def target_kl(self) -> float | None:
        """KL divergence the updates aim at; None if unknown."""
        return finite(self.config.get("target_kl"))
