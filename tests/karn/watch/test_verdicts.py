"""The answers in words follow the numbers, and admit what is not known."""

from dataclasses import replace

import pytest

from esper.karn.watch.state import Moments, RunState, Watched
from esper.karn.watch.verdicts import health, learning, tiles, warnings
from esper.leyline import AnomalyRaised, EvaluationFinished, RoundFinished
from run_examples import example

ROUND, ANOMALY, JUDGED = example(RoundFinished), example(AnomalyRaised), example(EvaluationFinished)


def state_with(gains: list[float], rounds: int = 20) -> RunState:
    """Every round has these gains."""
    state = RunState()
    for number in range(1, rounds + 1):
        state.rounds.append(replace(ROUND, round=number))
        gain = Moments()
        for value in gains:
            gain.add(value)
        state.sums[number]["gain"] = gain
    return state


@pytest.mark.parametrize(
    ("gains", "mood", "said"),
    [
        ([0.1, 0.2], "good", "better than waiting"),
        ([-0.1, -0.2], "bad", "worse than waiting"),
        ([0.1, -0.1], "neutral", "no different"),
        ([], "unknown", "unknown"),
    ],
)
def test_learning(gains: list[float], mood: str, said: str) -> None:
    tile = learning(state_with(gains))
    assert tile.mood == mood
    assert said in tile.value
    assert tile.marked == {"good": "✓ ", "neutral": "", "bad": "! ", "unknown": "? "}[mood] + tile.value


def test_only_the_last_rounds_speak() -> None:
    state = state_with([0.1, 0.2])
    for number in range(1, 11):
        state.sums[number]["gain"].add(-1e6)
    assert learning(state).mood == "good"
    assert learning(state).detail == "gain +12.60 to +17.40 points, 20 episodes of the last 10 rounds"


def test_health() -> None:
    assert health(RunState()).mood == "unknown"
    state = state_with([0.1])
    assert health(state).mood == "good"
    state.anomalies.append(replace(ANOMALY, round=10))
    assert health(state).mood == "good"  # long ago
    state.anomalies.append(replace(ANOMALY, round=11))
    assert health(state).mood == "bad"
    assert "ratio explosion" in health(state).detail
    state.rounds[-1] = replace(state.rounds[-1], had_non_finite=True)
    assert health(state).value == "NaN or Inf"


def test_anomalies_are_summed_up() -> None:
    state = state_with([0.1])
    state.anomalies += [replace(ANOMALY, round=number) for number in (2, 19, 20)]
    state.anomalies.append(replace(ANOMALY, round=3, name="another"))
    first, second = warnings(state)
    assert (first.name, first.times, first.last.round, first.recent) == ("ratio_explosion", 3, 20, True)
    assert (second.name, second.times, second.recent) == ("another", 1, False)
    assert (first.when, second.when) == ("3 times, last in round 20", "once, in round 3")


def test_tiles_of_nothing_are_unknown_and_not_zero() -> None:
    shown = tiles(Watched("run"))
    assert [tile.value for tile in shown] == ["unknown yet", "unknown yet", "—", "—", "—"]
    assert not any("0" in tile.value for tile in shown)


def test_the_held_out_tile_is_about_the_learned_policy() -> None:
    state = state_with([0.1])
    state.evaluations += [JUDGED, replace(JUDGED, policy="random", mean_gain=-9.0)]
    tile = tiles(Watched("run", state, {"rounds": 100}))[3]
    assert (tile.value, tile.mood) == ("+4.69 points", "good")
    assert tile.detail == "+3.12 to +6.25 points, round 4"
    state.evaluations.append(replace(JUDGED, mean_gain=None, mean_utility=0.5, gain_low=None, gain_high=None))
    without_baseline = tiles(Watched("run", state, {"rounds": 100}))[3]
    assert (without_baseline.title, without_baseline.value) == ("Held-out utility", "0.5000")
    assert without_baseline.detail.endswith(", no baseline")
    state.evaluations.append(
        replace(JUDGED, mean_gain=None, mean_utility=None, gain_low=None, gain_high=None)
    )
    tile = tiles(Watched("run", state, {"rounds": 100}))[3]
    assert (tile.value, tile.mood) == ("—", "neutral")
    assert tiles(Watched("run", state, {"rounds": 100}))[4].value == "20 of 100"
