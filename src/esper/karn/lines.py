"""A run told line by line: for logs, pipes, and whatever else is no terminal."""

from esper.leyline import AnomalyRaised, EvaluationFinished, RoundFinished, RunStarted
from esper.simic.progress import News, Preparing

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
