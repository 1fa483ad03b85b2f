"""A run at a terminal, live: how far it is, what it has learned, and what looks wrong."""

from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from esper.leyline import AnomalyRaised, EvaluationFinished, RoundFinished, RunStarted
from esper.simic.reports import News, Preparing

# A run told line by line: for logs, pipes, and whatever else is no terminal.


_PARTS = 10
"""Of a preparation, at the ends of which a line is said."""


def line_of(news: News) -> str | None:
    """What is worth a line, in one line; None of what is not."""
    if isinstance(news, RunStarted):
        return None if news.resumed_from is None else f"going on after round {news.resumed_from}"
    if isinstance(news, Preparing):
        return _preparing(news)
    if isinstance(news, RoundFinished):
        return round_line(news)
    if isinstance(news, AnomalyRaised):
        return f"  {news.name}: {news.detail}. {news.advice}"
    if isinstance(news, EvaluationFinished):
        told = "unknown" if news.mean_gain is None else signed(news.mean_gain)
        return f"  judged on {news.episodes} hosts it does not train on: gain {told}"
    return None


def round_line(news: RoundFinished) -> str:
    """A round in one line; what is unknown is left out."""
    parts = {
        "return": signed(news.mean_return),
        "gain": signed(news.mean_gain),
        "accuracy": number(news.mean_accuracy, 3),
        "wait-only": number(news.mean_control_accuracy, 3),
        "KL": number(news.approx_kl, 4),
        "env-epochs/s": number(news.env_epochs_per_second, 1),
    }
    told = "  ".join(f"{name} {value}" for name, value in parts.items() if value is not None)
    return f"round {news.round:4}  {news.env_steps:9,} steps  {told}".rstrip()


def what_is_prepared(news: Preparing) -> str:
    return f"{news.total} hosts are trained first with nothing grown: what gain is measured against"


def _preparing(news: Preparing) -> str | None:
    if news.done == 0:
        return what_is_prepared(news)
    share = news.done * _PARTS // news.total
    return f"  {news.done} of {news.total}" if share > (news.done - 1) * _PARTS // news.total else None


def signed(value: float | None) -> str | None:
    return None if value is None else f"{value:+.4f}"


def number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


ANOMALIES_SHOWN = 3
UNKNOWN = "-"


@dataclass(slots=True)
class RunView:
    """What is known of a run so far."""

    preparing: Preparing | None = None
    """While the first round waits for control curves."""
    round: RoundFinished | None = None
    judged: EvaluationFinished | None = None
    best_gain: float | None = None
    """Of the evaluations."""
    anomalies: deque[AnomalyRaised] = field(default_factory=lambda: deque(maxlen=ANOMALIES_SHOWN))

    def take(self, news: News) -> None:
        if isinstance(news, Preparing):
            self.preparing = news
        elif isinstance(news, RoundFinished):
            self.preparing, self.round = None, news
        elif isinstance(news, AnomalyRaised):
            self.anomalies.append(news)
        elif isinstance(news, EvaluationFinished):
            self.judged = news
            known = (gain for gain in (news.mean_gain, self.best_gain) if gain is not None)
            self.best_gain = max(known, default=None)


def render(view: RunView) -> RenderableType:
    """Everything but the progress bar."""
    if view.preparing is not None:
        return Text(what_is_prepared(view.preparing))
    if view.round is None:
        return Text("the first round is being collected")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, told in _rows(view, view.round):
        grid.add_row(name, Text(told))
    for anomaly in view.anomalies:
        told = f"round {anomaly.round}: {anomaly.detail}. {anomaly.advice}"
        grid.add_row(Text(anomaly.name, style="yellow"), Text(told))
    return grid


def _rows(view: RunView, news: RoundFinished) -> list[tuple[str, str]]:
    executed = sum(news.operations.values())
    mix = (f"{name} {count / executed:.0%}" for name, count in news.operations.items() if count)
    entropies = (f"{head} {value:.2f}" for head, value in news.entropy_by_head.items() if value is not None)
    accuracy, control = number(news.mean_accuracy, 3), number(news.mean_control_accuracy, 3)
    rows = [
        ("accuracy", f"{accuracy or UNKNOWN}, wait-only {control or UNKNOWN}"),
        ("gain", f"{signed(news.mean_gain) or UNKNOWN}   return {signed(news.mean_return) or UNKNOWN}"),
        (
            "learner",
            f"explained variance {number(news.explained_variance, 2) or UNKNOWN}   "
            f"KL {number(news.approx_kl, 4) or UNKNOWN}",
        ),
        ("entropy", "  ".join(entropies) or UNKNOWN),
        ("operations", "  ".join(mix) or UNKNOWN),
        (
            "speed",
            f"{number(news.env_epochs_per_second, 1) or UNKNOWN} env-epochs/s   {news.env_steps:,} steps",
        ),
    ]
    if view.judged is not None:
        told = signed(view.judged.mean_gain) or UNKNOWN
        best = signed(view.best_gain) or UNKNOWN
        rows.append(
            ("judged", f"gain {told} on hosts it does not train on (round {view.judged.round}), best {best}")
        )
    return rows


class LiveConsole:
    """Follows a run; use it as a context, and hand it `show` as the run's progress.

    rounds   how many the run will have
    console  where to draw; by default stdout
    """

    def __init__(self, rounds: int, console: Console | None = None) -> None:
        self.view = RunView()
        self._rounds = rounds
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        )
        self._task = self._bar.add_task("round", total=rounds)
        self._live = Live(self._picture(), console=console, refresh_per_second=4)

    def show(self, news: News) -> None:
        first = self.view.round is None
        self.view.take(news)
        if isinstance(news, Preparing):
            self._bar.update(self._task, description="controls", completed=news.done, total=news.total)
        elif isinstance(news, RoundFinished) and first:  # the time before it says nothing about those to come
            self._bar.reset(self._task, description="round", completed=news.round, total=self._rounds)
        elif isinstance(news, RoundFinished):
            self._bar.update(self._task, completed=news.round)
        self._live.update(self._picture())

    def _picture(self) -> RenderableType:
        return Group(self._bar, render(self.view))

    def __enter__(self) -> "LiveConsole":
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)
