"""What is known of one run, brought up to date from the end of its events: sums and rows, never all the decisions."""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from esper.karn.watch.lines import EpisodeRow, LineTail, episode_row, fields_of
from esper.karn.watch.points import Point, Points, RoundSums
from esper.karn.watch.seed_tally import SeedCount, SeedTally
from esper.leyline import (
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    Event,
    RoundFinished,
    RunFinished,
    RunStarted,
)
from esper.nissa.wire import BrokenLine, UnknownKind, decode

MOST_ANOMALIES = 1000
_DECISION = f'{{"kind":"{DecisionTaken.kind}"'.encode()
_EPISODE = f'{{"kind":"{EpisodeFinished.kind}"'.encode()
_READ = tuple(
    f'{{"kind":"{event.kind}"'.encode()
    for event in (RoundFinished, AnomalyRaised, EvaluationFinished, RunStarted, RunFinished)
)
_KIND = b'{"kind":"'


class RunState:
    """One run as it is known. `read` takes in what was added since the last time."""

    __slots__ = (
        "_block_start",
        "_points",
        "_seeds",
        "_tail",
        "_uncounted",
        "anomalies",
        "blocks",
        "broken_lines",
        "by_env",
        "episodes",
        "evaluations",
        "events",
        "finished",
        "last_time",
        "rounds",
        "started",
        "started_time",
        "sums",
        "version",
    )

    def __init__(self) -> None:
        self.version = 0
        """Grows whenever something new is known."""
        self._tail = LineTail()
        self._clear()

    def _clear(self) -> None:
        self.rounds: list[RoundFinished] = []
        self.sums: dict[int, RoundSums] = {}
        """By round; of the round that is being collected, too."""
        self.episodes: list[EpisodeRow] = []
        self.by_env: dict[int, list[EpisodeRow]] = {}
        """The same, by env."""
        self.evaluations: list[EvaluationFinished] = []
        self.anomalies: list[AnomalyRaised] = []
        self.blocks: dict[int, tuple[int, int]] = {}
        """Round -> where in the file its decisions begin and end."""
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.started_time: float | None = None
        self.last_time: float | None = None
        """Of the last event that was read whole, in seconds since the epoch."""
        self.events = 0
        self.broken_lines = 0
        self._block_start: int | None = None
        self._points = Points()
        self._seeds = SeedTally()
        self._uncounted: deque[int] = deque()
        """Rounds whose decisions the seeds are yet to be counted from."""

    def read(self, file: BinaryIO) -> bool:
        """Take in what is new; returns whether anything is."""
        changed = self._tail.began_anew(file)
        if changed:
            self._clear()
        for piece in self._tail.read(file):
            changed = True
            self._absorb(piece.lines, piece.offset)
        if changed:
            self.version += 1
        return changed

    @property
    def unreadable_lines(self) -> int:
        return self.broken_lines + self._tail.too_long

    def points(self) -> list[Point]:
        """The rounds, summed up for drawing."""
        return self._points.of(self.rounds, self.sums)

    def episode(self, env: int, episode: int) -> EpisodeRow | None:
        """The latest of that number."""
        wanted = (row for row in reversed(self.by_env.get(env, ())) if row.episode == episode)
        return next(wanted, None)

    def decisions(self, file: BinaryIO, round_number: int) -> list[bytes]:
        """The lines that tell the decisions of a round."""
        place = self.blocks.get(round_number)
        if place is None:
            return []
        file.seek(place[0])
        block = file.read(place[1] - place[0])
        return [line for line in block.split(b"\n") if line.startswith(_DECISION)]

    # Seeds: counted after a run was opened, since that means to look into every decision

    def count_seeds(self, file: BinaryIO, seconds: float) -> bool:
        """Look into one more round, and into others for about as long; returns whether anything was new."""
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
        """The share of rounds, 0..1, whose seeds are in `seed_counts`."""
        return 1.0 - len(self._uncounted) / len(self.blocks) if self.blocks else 1.0

    def seed_counts(self) -> list[SeedCount]:
        return self._seeds.counts()

    def _absorb(self, lines: list[bytes], offset: int) -> None:
        # A million lines pass here when a run is opened, nearly all of them decisions: those are passed over by their
        # first bytes, and only where a stretch of them begins and ends is remembered.
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
        if line.startswith(_EPISODE):
            self._take_episode(line)
        elif line.startswith(_READ):
            self._take_rare(line, offset)
        elif line and not line.startswith(_KIND):
            self.broken_lines += 1

    def _take_episode(self, line: bytes) -> None:
        data = fields_of(line)
        row = None if data is None else episode_row(data)
        if row is None:
            self.broken_lines += 1
            return
        self.episodes.append(row)
        self.by_env.setdefault(row.env, []).append(row)
        if not row.lost:
            self.sums.setdefault(row.round, RoundSums()).add(row)

    def _take_rare(self, line: bytes, offset: int) -> None:
        try:
            record = decode(line)
        except (BrokenLine, UnknownKind):
            self.broken_lines += 1
            return
        self.last_time = record.time
        event: Event = record.event
        if isinstance(event, RoundFinished):
            self._take_round(event, offset)
        elif isinstance(event, AnomalyRaised):
            self.anomalies.append(event)
            del self.anomalies[:-MOST_ANOMALIES]
        elif isinstance(event, EvaluationFinished):
            self.evaluations.append(event)
        elif isinstance(event, RunStarted):
            self._take_start(event, record.time)
        elif isinstance(event, RunFinished):
            self.finished = event

    def _take_round(self, event: RoundFinished, offset: int) -> None:
        self.rounds.append(event)
        if self._block_start is not None:
            self.blocks[event.round] = (self._block_start, offset)
            self._uncounted.append(event.round)
        self._block_start = None

    def _take_start(self, event: RunStarted, when: float) -> None:
        """A run that goes on from a checkpoint, or anew: what it had done beyond no longer counts."""
        last = event.resumed_from
        first_time = self.started_time
        if last is None:
            self._clear()
        else:
            self._cut_after(last)
        self.started, self.finished, self.last_time = event, None, when
        self.started_time = when if last is None or first_time is None else first_time

    def _cut_after(self, last: int) -> None:
        self.rounds = [row for row in self.rounds if row.round <= last]
        self.episodes = [row for row in self.episodes if row.round <= last]
        self.by_env = {
            env: kept
            for env, rows in self.by_env.items()
            if (kept := [row for row in rows if row.round <= last])
        }
        self.evaluations = [row for row in self.evaluations if row.round <= last]
        self.anomalies = [row for row in self.anomalies if row.round <= last]
        self.sums = {number: sums for number, sums in self.sums.items() if number <= last}
        self.blocks = {number: place for number, place in self.blocks.items() if number <= last}
        self._points = Points()
        self._seeds = (
            SeedTally()
        )  # what a seed came to may have been told later: those rounds are counted anew
        self._uncounted = deque(self.blocks)
        self._block_start = None


def read_whole(open_events: Callable[[], BinaryIO | None]) -> RunState:
    """A run from its beginning to what is there now."""
    state = RunState()
    file = open_events()
    if file is not None:
        with file:
            state.read(file)
            state.count_seeds(file, math.inf)
    return state
