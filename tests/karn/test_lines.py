"""Known answers."""

from dataclasses import replace

from esper.karn.console import LineConsole, Pace, line_of, round_line
from esper.leyline import (
    AnomalyRaised,
    EpisodeFinished,
    EvaluationFinished,
    RoundFinished,
    RunStarted,
)
from esper.simic.reports import Preparing, Working
from run_examples import example


def test_a_round_leaves_out_what_is_unknown() -> None:
    event = example(RoundFinished)
    assert round_line(event) == (
        "round    4      2,560 steps  return +0.0938  gain +6.25 points  accuracy 0.828  baseline 0.750  "
        "KL 0.0078  env-epochs/s 19.7"
    )
    unknown = replace(
        event,
        mean_return=None,
        mean_gain=None,
        mean_accuracy=None,
        mean_control_accuracy=None,
        approx_kl=None,
        env_epochs_per_second=None,
    )
    assert round_line(unknown) == "round    4      2,560 steps"


def test_what_else_is_worth_a_line() -> None:
    assert line_of(example(AnomalyRaised)) == (
        "  ratio_explosion: largest ratio 7.5 > 5: the policy moved too far. "
        "Lower the learning rate, the epochs per update or target_kl."
    )
    assert line_of(example(EvaluationFinished)) == (
        "  judged on 64 hosts it does not train on: gain +4.69 points"
    )
    assert line_of(RunStarted("a", "0", resumed_from=7)) == "going on after round 7"
    assert line_of(RunStarted("a", "0")) is None
    assert line_of(example(EpisodeFinished)) is None


def test_a_preparation_says_what_it_is_and_then_every_tenth() -> None:
    told = [line_of(Preparing(done, 25)) for done in range(26)]
    assert (
        told[0] == "25 hosts are trained first with nothing grown: what gain is measured against\n  0 of 25"
    )
    assert line_of(Preparing(9, 72, 9)) == (
        "63 of 72 hosts are trained first with nothing grown: what gain is measured against\n  9 of 72"
    )
    assert [done for done, line in enumerate(told[1:], start=1) if line] == [
        3,
        5,
        8,
        10,
        13,
        15,
        18,
        20,
        23,
        25,
    ]
    assert told[25] == "  25 of 25"
    assert [line_of(Preparing(done, 2)) for done in (1, 2)] == ["  1 of 2", "  2 of 2"]


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def left(pace: Pace) -> float | None:
    return pace.left


def test_time_left_is_known_from_the_first_unit_on_whatever_it_takes() -> None:
    clock = Clock()
    pace = Pace(10, clock)
    assert (left(pace), str(pace)) == (None, "")
    pace.take(Preparing(0, 5))
    assert left(pace) is None
    clock.now += 300.0
    pace.take(Preparing(2, 5))
    assert (left(pace), str(pace)) == (450.0, "8 min left")
    clock.now += 900.0  # the rest of the preparation, and the first round
    pace.take(replace(example(RoundFinished), round=1, seconds=40.0))
    assert (left(pace), str(pace)) == (360.0, "6 min left")
    clock.now += 20.0
    pace.take(replace(example(RoundFinished), round=2, seconds=12.0))  # the other eight were judging
    assert left(pace) == (340.0 + 240.0) / 2  # half way from the line before to what it is by the mean
    clock.now += 7.0
    pace.take(example(EvaluationFinished))
    assert left(pace) == 290.0
    clock.now += 3.0
    pace.take(replace(example(RoundFinished), round=10, seconds=3.0))
    assert str(pace) == "0 s left"


def test_a_preparation_that_takes_long_says_how_far_it_is_between_its_tenths() -> None:
    clock, lines = Clock(), list[str]()
    console = LineConsole(3, lines.append, clock)
    console.show(Preparing(9, 72, 9))
    for done in (10, 11):
        clock.now += 4.0
        console.show(Preparing(done, 72, 9))
    assert lines[1:] == ["  11 of 72  4 min left"]


def test_a_run_that_was_resumed_counts_its_own_rounds() -> None:
    clock = Clock()
    pace = Pace(8, clock)
    pace.take(replace(example(RoundFinished), round=5, seconds=2.0))
    assert left(pace) == 6.0


def test_lines_have_the_time_left_and_say_that_a_long_round_goes_on() -> None:
    clock, lines = Clock(), list[str]()
    console = LineConsole(3, lines.append, clock)
    work = Working(1, "collecting", 4, 20)
    console.show(work)
    clock.now += 5.0
    console.show(replace(work, done=9))
    assert lines == ["  round 1: collecting, 4 of 20", "  round 1: collecting, 9 of 20"]
    first = replace(example(RoundFinished), round=1, seconds=9.0)
    console.show(first)
    assert lines[2:] == [f"{round_line(first, 3)}  18 s left"]
    assert lines[2].startswith("round    1 of 3  ")
    for _ in range(13):  # 65 seconds: once it is known what a round takes, a line a minute is enough
        clock.now += 5.0
        console.show(replace(work, round=2))
    assert lines[3:] == ["  round 2: collecting, 4 of 20"]
    console.show(example(EvaluationFinished))
    assert lines[4].endswith("gain +4.69 points")  # it takes no time off the rounds
    assert line_of(Working(0, "taking over plateau")) == "  taking over plateau"


def test_an_alarm_that_persists_is_told_once_and_when_it_ends() -> None:
    lines = list[str]()
    console = LineConsole(20, lines.append)
    anomaly = example(AnomalyRaised)
    for number in range(1, 11):
        console.show(replace(example(RoundFinished), round=number))
        if number in (2, 3, 4, 7):
            console.show(replace(anomaly, round=number))
    told = [line for line in lines if not line.startswith("round ")]
    assert told == [
        line_of(anomaly),
        "  ratio_explosion: 3 rounds in a row, and none in round 5",
        f"  ratio_explosion again: {anomaly.detail}",
    ]
