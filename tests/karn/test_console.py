"""The live picture: everything that is known is in it, nothing that is not."""

import io
from dataclasses import replace

from rich.console import Console

from esper.karn.console import ANOMALIES_SHOWN, LiveConsole, RunView, line_of, render
from esper.leyline import HEAD_NAMES, AnomalyRaised, EvaluationFinished, RoundFinished
from esper.simic.reports import Preparing, Working
from run_examples import example

ROUND, ANOMALY, JUDGED = example(RoundFinished), example(AnomalyRaised), example(EvaluationFinished)


def text_of(view: RunView) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(render(view))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_round_with_all_it_knows() -> None:
    view = RunView()
    view.take(ROUND)
    told = text_of(view)
    for part in (
        "0.828, baseline 0.750",
        "+6.25 points   return +0.0938",
        "explained variance 0.62",  # banker's rounding of 0.625
        "KL 0.0078",
        "op 1.25  slot 0.75  blueprint 2.00  alpha_speed 1.25",
        "WAIT 64%  GERMINATE 14%",
        "19.7 env-epochs/s   2,560 steps",
    ):
        assert part in told
    assert "style" not in told  # it had no choice


def test_what_is_unknown_is_a_dash() -> None:
    view = RunView()
    view.take(
        replace(
            ROUND,
            mean_accuracy=None,
            mean_control_accuracy=None,
            explained_variance=None,
            entropy_by_head=dict.fromkeys(HEAD_NAMES),
            operations=dict.fromkeys(ROUND.operations, 0),
        )
    )
    told = text_of(view)
    assert "—, baseline —" in told
    assert "explained variance —" in told
    assert any(line.split() == ["entropy", "—"] for line in told.splitlines())
    assert any(line.split() == ["operations", "—"] for line in told.splitlines())


def test_the_last_anomalies_with_advice() -> None:
    view = RunView()
    view.take(ROUND)
    for number in range(ANOMALIES_SHOWN + 2):
        view.take(replace(ANOMALY, round=number, detail="[bold]as it is[/bold]"))
    told = text_of(view)
    assert "round 1:" not in told
    assert all(f"round {number}: [bold]as it is[/bold]" in told for number in (2, 3, 4))
    assert told.count(ANOMALY.advice) == ANOMALIES_SHOWN


def test_the_best_judgement_is_kept() -> None:
    view = RunView()
    view.take(ROUND)
    for round_number, gain in ((1, -0.5), (2, 0.0), (3, -0.25)):
        view.take(replace(JUDGED, round=round_number, mean_gain=gain))
    assert "gain -25.00 points on hosts it does not train on (round 3), best +0.00 points" in text_of(view)


def test_a_utility_is_not_told_as_a_gain() -> None:
    """Without a baseline there is no gain, and the best checkpoint is chosen by utility."""
    view = RunView()
    view.take(ROUND)
    for round_number, utility in ((1, 0.75), (2, 0.5)):
        view.take(replace(JUDGED, round=round_number, mean_gain=None, mean_utility=utility))
    assert "utility 0.5000 on hosts it does not train on (round 2), best 0.7500" in text_of(view)
    told = line_of(replace(JUDGED, mean_gain=None, mean_utility=0.5))
    assert told == f"  judged on {JUDGED.episodes} hosts it does not train on: utility 0.5000"


def test_preparing_is_told_until_the_first_round() -> None:
    view = RunView()
    assert "first round" in text_of(view)
    view.take(Preparing(3, 256))
    assert "256 hosts are trained first" in text_of(view)
    view.take(ROUND)
    assert "256" not in text_of(view).replace("2,560", "")


def test_a_long_round_shows_what_it_is_at() -> None:
    view = RunView()
    view.take(Working(1, "collecting", 3, 20))
    assert text_of(view).strip() == "round 1: collecting, 3 of 20"
    view.take(ROUND)
    assert "collecting" not in text_of(view)
    view.take(Working(5, "judging", 7, 40))
    assert any(line.split()[0] == "now" and "judging, 7 of 40" in line for line in text_of(view).splitlines())


def test_the_live_console_draws_bar_and_picture_and_lets_go() -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    assert isinstance(console.file, io.StringIO)
    with LiveConsole(20, console, "run runs/mine: 20 rounds on toy") as live:
        assert console.file.getvalue() == ""  # it may yet be refused
        live.show(Preparing(0, 8))
        live.show(Preparing(8, 8))
        live.show(replace(ROUND, round=11))  # resumed
        live.show(replace(ROUND, round=12))
        live.show(JUDGED)
    told = console.file.getvalue()
    assert told.startswith("run runs/mine: 20 rounds on toy\n")
    assert "12/20" in told
    assert "s left" in told or "min left" in told  # from the first round on
    assert "baseline 0.750" in told
    assert told.rstrip().endswith("\x1b[?25h")  # the cursor is back
