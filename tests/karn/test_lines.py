"""Known answers."""

from dataclasses import replace

from esper.karn.console import line_of, round_line
from esper.leyline import (
    AnomalyRaised,
    EpisodeFinished,
    EvaluationFinished,
    RoundFinished,
    RunStarted,
)
from esper.simic.reports import Preparing
from run_examples import example


def test_a_round_leaves_out_what_is_unknown() -> None:
    event = example(RoundFinished)
    assert round_line(event) == (
        "round    4      2,560 steps  return +0.0938  gain +0.0625  accuracy 0.828  baseline 0.750  "
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
    assert line_of(example(EvaluationFinished)) == ("  judged on 64 hosts it does not train on: gain +0.0469")
    assert line_of(RunStarted("a", "0", resumed_from=7)) == "going on after round 7"
    assert line_of(RunStarted("a", "0")) is None
    assert line_of(example(EpisodeFinished)) is None


def test_a_preparation_says_what_it_is_and_then_every_tenth() -> None:
    told = [line_of(Preparing(done, 25)) for done in range(26)]
    assert told[0] == "25 hosts are trained first with nothing grown: what gain is measured against"
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
