"""What is known of one run, updated from the end of its events: rounds, episodes and sums, but not its decisions."""

import time
from collections import defaultdict, deque
from typing import BinaryIO

from esper.karn.watch.lines import LineTail, whole
from esper.karn.watch.points import Moments, Point, Points, RoundSums, add_episode
from esper.karn.watch.seed_tally import SeedCount, SeedTally
from esper.leyline import (
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    RoundFinished,
    RunFinished,
    RunStarted,
)
from esper.nissa.wire import BrokenLine, UnknownKind, decode_event

MOST_ANOMALIES = 1000
"""Anomalies kept, the last ones."""
_KIND = b'{"kind":"'
_DECISION = _KIND + f'{DecisionTaken.kind}"'.encode()
_READ = tuple(
    _KIND + f'{event.kind}"'.encode()
    for event in (EpisodeFinished, RoundFinished, AnomalyRaised, EvaluationFinished, RunStarted, RunFinished)
)


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
        for piece in self._tail.read(file):
            changed = True
            self._absorb(piece.lines, piece.offset)
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
        try:
            event = decode_event(line)
        except (BrokenLine, UnknownKind):
            self.broken_lines += 1
            return
        if isinstance(event, EpisodeFinished):
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
