"""A run in progress, in the process that trains: line by line for logs and pipes, or as a live picture."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from esper.karn.drawing import UNKNOWN, in_points, number, signed, time_left
from esper.karn.watch.verdicts import cluster_line
from esper.leyline import AnomalyRaised, EvaluationFinished, RoundFinished, RunStarted
from esper.simic.reports import News, Preparing, Working
from esper.simic.timing import QUIET_SECONDS, SteadyEstimate

ANOMALIES_SHOWN = 3
_PARTS = 10
"""Parts of a preparation, after each of which a line is printed."""
_PATIENCE = 60.0
"""Seconds between lines that only say that a round goes on, once it is known how long one takes."""


class Pace:
    """How long the rest of a run takes, by the mean time of the rounds (or baselines) so far, without jumps.

    rounds  rounds the run will have
    """

    def __init__(self, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds, self._clock = rounds, clock
        self._began, self._before = 0.0, 0
        """When the first unit began, and units that were done before."""
        self._in_rounds = False
        self._shown = SteadyEstimate(clock)
        self.left: float | None = None
        """Seconds; None before a unit is done."""

    def take(self, news: News) -> None:
        """Bring the estimate up to date."""
        if isinstance(news, Preparing):
            if news.done == news.kept:
                self._began, self._before = self._clock(), news.kept
                self._shown = SteadyEstimate(self._clock)
            self._estimate(news.done, news.total)
        elif isinstance(news, RoundFinished):
            if not self._in_rounds:  # what came before the first round says nothing about later ones
                self._in_rounds, self._before = True, news.round - 1
                self._began = self._clock() - news.seconds
                self._shown = SteadyEstimate(self._clock)
            self._estimate(news.round, self._rounds)

    def _estimate(self, done: int, total: int) -> None:
        units = done - self._before
        if not units:
            self.left = None
            return
        self.left = self._shown.take((self._clock() - self._began) / units * (total - done))

    def __str__(self) -> str:
        return "" if self.left is None else time_left(self.left)


def line_of(news: News, rounds: int | None = None) -> str | None:
    """The news in one line; None if it is not worth one.

    rounds  that the run will have, where that is known
    """
    if isinstance(news, RunStarted):
        return None if news.resumed_from is None else f"going on after round {news.resumed_from}"
    if isinstance(news, Preparing):
        if news.done == news.kept:
            return f"{_preparation(news)}\n{_far(news)}"
        finished, before = (done * _PARTS // news.total for done in (news.done, news.done - 1))
        return _far(news) if finished > before else None
    if isinstance(news, RoundFinished):
        return round_line(news, rounds)
    if isinstance(news, AnomalyRaised):
        return f"  {news.name}: {news.detail}. {news.advice}"
    if isinstance(news, EvaluationFinished):
        return f"  judged on {news.episodes} hosts it does not train on: {' '.join(_judgement(news))}"
    if isinstance(news, Working):
        return f"  {_work(news)}"
    return None


def round_line(news: RoundFinished, rounds: int | None = None) -> str:
    """A round in one line; what is unknown is left out."""
    parts = {
        "return": signed(news.mean_return, 4),
        "gain": in_points(news.mean_gain),
        "accuracy": number(news.mean_accuracy, 3),
        "baseline": number(news.mean_control_accuracy, 3),
        "KL": number(news.approx_kl, 4),
        "policy loss": number(None if news.q_loss is None else news.policy_loss, 4),
        "value loss": number(None if news.q_loss is None else news.value_loss, 4),
        "Q loss": number(news.q_loss, 4),
        "env-epochs/s": number(news.env_epochs_per_second, 1),
    }
    known = "  ".join(f"{name} {value}" for name, value in parts.items() if value != UNKNOWN)
    of = "" if rounds is None else f" of {rounds:,}"
    return f"round {news.round:4}{of}  {news.env_steps:9,} steps  {known}  {cluster_line(news)}".rstrip()


def _work(news: Working) -> str:
    where = f"round {news.round}: " if news.round else ""
    far = f", {news.done} of {news.total}" if news.done else ""
    return f"{where}{news.part}{far}"


def _preparation(news: Preparing) -> str:
    hosts = f"{news.total - news.kept} of {news.total}" if news.kept else str(news.total)
    return f"{hosts} hosts are trained first with nothing grown: what gain is measured against"


def _far(news: Preparing) -> str:
    return f"  {news.done} of {news.total}"


@dataclass(slots=True)
class RunView:
    """What is known of a run so far."""

    preparing: Preparing | None = None
    """Set while baselines are trained before the first round."""
    round: RoundFinished | None = None
    """The last round."""
    judged: EvaluationFinished | None = None
    """The last evaluation."""
    best: EvaluationFinished | None = None
    """The evaluation with the best mean gain, or utility where no gain is measured."""
    working: Working | None = None
    """What it is at, since the last other news."""
    anomalies: deque[AnomalyRaised] = field(default_factory=lambda: deque(maxlen=ANOMALIES_SHOWN))
    """The last anomalies."""

    def take(self, news: News) -> None:
        """Bring the view up to date."""
        self.working = news if isinstance(news, Working) else None
        if isinstance(news, Preparing):
            self.preparing = news
        elif isinstance(news, RoundFinished):
            self.preparing, self.round = None, news
        elif isinstance(news, AnomalyRaised):
            self.anomalies.append(news)
        elif isinstance(news, EvaluationFinished):
            self.judged = news
            self.best = max(filter(None, (self.best, news)), key=_chosen_by)


def render(view: RunView) -> RenderableType:
    """Everything but the progress bar."""
    if view.preparing is not None:
        return Text(_preparation(view.preparing))
    work = "" if view.working is None else _work(view.working)
    if view.round is None:
        return Text(work or "the first round is being collected")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in _rows(view, view.round).items():
        grid.add_row(name, Text(text))
    for anomaly in view.anomalies:
        text = f"round {anomaly.round}: {anomaly.detail}. {anomaly.advice}"
        grid.add_row(Text(anomaly.name, style="yellow"), Text(text))
    if work:
        grid.add_row("now", Text(work))
    return grid


def _rows(view: RunView, news: RoundFinished) -> dict[str, str]:
    executed = sum(news.operations.values())
    mix = (f"{name} {count / executed:.0%}" for name, count in news.operations.items() if count)
    entropies = (f"{head} {value:.2f}" for head, value in news.entropy_by_head.items() if value is not None)
    accuracy, baseline = number(news.mean_accuracy, 3), number(news.mean_control_accuracy, 3)
    variance, kl = number(news.explained_variance, 2), number(news.approx_kl, 4)
    speed = number(news.env_epochs_per_second, 1)
    rows = {
        "accuracy": f"{accuracy}, baseline {baseline}",
        "gain": f"{in_points(news.mean_gain)}   return {signed(news.mean_return, 4)}",
        "learner": f"explained variance {variance}   KL {kl}",
        "entropy": "  ".join(entropies) or UNKNOWN,
        "operations": "  ".join(mix) or UNKNOWN,
        "speed": f"{speed} env-epochs/s   {news.env_steps:,} steps",
    }
    if view.judged is not None:
        name, score = _judgement(view.judged)
        best = UNKNOWN if view.best is None else _judgement(view.best)[1]
        rows["judged"] = (
            f"{name} {score} on hosts it does not train on (round {view.judged.round}), best {best}"
        )
    return rows


def _chosen_by(news: EvaluationFinished) -> float:
    score = news.score[1]
    return -math.inf if score is None else score


def _judgement(news: EvaluationFinished) -> tuple[str, str]:
    """What an evaluation goes by, and how much of it there is."""
    name, score = news.score
    return name, number(score, 4) if name == "utility" else in_points(score)


class LineConsole:
    """A run in lines, for logs and pipes; a round's line has the time that is left. Pass its `show` as `progress`.

    rounds        rounds the run will have
    write         called with each line
    announcement  the line before the first news
    """

    def __init__(
        self,
        rounds: int,
        write: Callable[[str], None] = lambda line: print(line, flush=True),
        clock: Callable[[], float] = time.monotonic,
        announcement: str | None = None,
    ) -> None:
        self._pace, self._write, self._clock, self._rounds = Pace(rounds, clock), write, clock, rounds
        self._announcement = announcement
        self._rounds_known, self._written = False, clock()
        self._alarms: dict[str, tuple[int, int]] = {}
        """Anomaly -> the first and the last round in a row that it was last raised in."""

    def show(self, news: News) -> None:
        """Write the news if it is worth a line."""
        if self._announcement is not None:
            self._write(self._announcement)
            self._announcement = None
        self._pace.take(news)
        self._rounds_known |= isinstance(news, RoundFinished)
        if isinstance(news, Working) and self._rounds_known and self._clock() - self._written < _PATIENCE:
            return
        if isinstance(news, RoundFinished):
            self._end_alarms(news.round)
        line = self._alarm(news) if isinstance(news, AnomalyRaised) else line_of(news, self._rounds)
        if line is None and isinstance(news, Preparing) and self._clock() - self._written >= QUIET_SECONDS:
            line = _far(news)
        if line is None:
            return
        timed = isinstance(news, RoundFinished | Preparing) and self._pace.left is not None
        self._write(f"{line}  {self._pace}" if timed else line)
        self._written = self._clock()

    def _alarm(self, news: AnomalyRaised) -> str | None:
        """An anomaly with what to do about it once; None while it is raised in round after round."""
        first, last = self._alarms.get(news.name, (news.round, None))
        lasts = last is not None and last >= news.round - 1
        self._alarms[news.name] = (first if lasts else news.round, news.round)
        if lasts:
            return None
        return line_of(news) if last is None else f"  {news.name} again: {news.detail}"

    def _end_alarms(self, now: int) -> None:
        """Say of anomalies that were raised in several rounds up to the last but one that they ended."""
        for name, (first, last) in self._alarms.items():
            if last == now - 2 and last > first:
                self._write(f"  {name}: {last - first + 1} rounds in a row, and none in round {now - 1}")


class LiveConsole:
    """A live picture of a run. Use it as a context manager, and pass its `show` as the run's `progress`.

    rounds        rounds the run will have
    console       where to draw; stdout by default
    announcement  a line above it; nothing is drawn before the first news
    """

    def __init__(self, rounds: int, console: Console | None = None, announcement: str | None = None) -> None:
        self._announcement = announcement
        self.view = RunView()
        self._rounds = rounds
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._pace = Pace(rounds)
        self._task = self._bar.add_task("round", total=rounds, left="")
        self._live = Live(self._picture(), console=console, refresh_per_second=4)

    def show(self, news: News) -> None:
        """Draw the run with this news."""
        if not self._live.is_started:
            if self._announcement is not None:
                self._live.console.print(self._announcement, highlight=False, markup=False, soft_wrap=True)
            self._live.start(refresh=True)
        first = self.view.round is None
        self.view.take(news)
        self._pace.take(news)
        if isinstance(news, Preparing):
            self._bar.update(self._task, description="baselines", completed=news.done, total=news.total)
        elif isinstance(news, RoundFinished) and first:  # the time before it says nothing about later rounds
            self._bar.reset(self._task, description="round", completed=news.round, total=self._rounds)
        elif isinstance(news, RoundFinished):
            self._bar.update(self._task, completed=news.round)
        self._bar.update(self._task, left=str(self._pace))
        self._live.update(self._picture())

    def _picture(self) -> RenderableType:
        return Group(self._bar, render(self.view))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
