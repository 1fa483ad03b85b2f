"""Figures: gaps where nothing is known, nothing that JSON or plotly could take for something else."""

import json
import math
from collections import defaultdict
from dataclasses import replace

import pytest

from esper.karn.drawing import DARK, LIGHT, THEMES, Theme
from esper.karn.watch import episodes
from esper.karn.watch.charts import RUN_FIGURES, Curve, Figure, band, curve_of, run_figures, shown_curve
from esper.karn.watch.episodes import Frame, SlotView, frames
from esper.karn.watch.runs import COUNT_ALL, Hub, RunsFolder
from esper.karn.watch.state import POINTS, Moments, Points, RoundSums, RunState, Watched
from esper.leyline import DecisionTaken, EpisodeFinished, EvaluationFinished, LifecycleOp, RoundFinished
from run_examples import example
from synthetic_run import write_synthetic_run

ROUND, DECISION = example(RoundFinished), example(DecisionTaken)
HOSTILE = "<img src=x onerror=alert(1)>&\"'"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> RunState:
    run = tmp_path_factory.mktemp("runs") / "run"
    write_synthetic_run(run, rounds=30, envs=4, epochs=10)
    return Hub(RunsFolder(run.parent), counting_seconds=COUNT_ALL).look("run").state


def text_of(figure: Figure) -> str:
    return json.dumps(figure, allow_nan=False)


@pytest.mark.parametrize("name", RUN_FIGURES)
@pytest.mark.parametrize("theme", THEMES.values(), ids=lambda theme: theme.name)
def test_every_figure_is_plain_data(state: RunState, name: str, theme: Theme) -> None:
    full = text_of(
        RUN_FIGURES[name]([Watched("one", state, {"target_kl": 0.03}), Watched("two", state)], theme)
    )
    assert "nothing recorded yet" not in full
    empty = text_of(RUN_FIGURES[name]([Watched("empty")], theme))
    assert "nothing recorded yet" in empty


@pytest.mark.parametrize("name", RUN_FIGURES)
def test_no_markup_comes_through(state: RunState, name: str) -> None:
    text = text_of(RUN_FIGURES[name]([Watched("plain", state), Watched(HOSTILE, state)], LIGHT))
    assert "<img" not in text


def test_a_hundred_runs_and_a_huge_name(state: RunState) -> None:
    runs = [Watched("x" * 1_000_000, state)] * 12
    assert len(text_of(run_figures(runs, DARK)["gain"])) < 500_000


def test_what_is_not_finite_is_a_gap() -> None:
    state = RunState()
    for number, kl in enumerate([0.1, math.nan, None, math.inf, 0.2], start=1):
        state.rounds.append(replace(ROUND, round=number, approx_kl=kl))
    assert curve_of(state, "approx_kl").values == [0.1, None, None, None, 0.2]
    curve = curve_of(state, "gain")
    assert curve.values == [None] * 5  # no episode was recorded: a gap, not 0
    assert curve.low == curve.high == [None] * 5


def test_gains_are_drawn_in_points() -> None:
    state, judged = (
        RunState(),
        replace(example(EvaluationFinished), mean_gain=0.05, gain_low=0.04, gain_high=0.07),
    )
    state.rounds += [replace(ROUND, round=number) for number in (1, 2)]
    for gain in (0.01, 0.03):
        state.sums[1]["gain"].add(gain)
        state.sums[2]["gain"].add(1e307 * gain)  # a hundred times as much is still a number
    state.sums[2]["gain"].add(1e308)  # and of this it is none
    state.evaluations.append(judged)
    figure = run_figures([Watched("run", state)], LIGHT)["gain"]
    curve, held_out = json.loads(text_of(figure))["data"][1:]
    assert curve["y"] == [pytest.approx(2.0), None]
    assert (held_out["y"], held_out["error_y"]["array"]) == ([5.0], [pytest.approx(2.0)])
    assert held_out["error_y"]["arrayminus"] == [pytest.approx(1.0)]
    assert "points" in text_of(figure)
    assert shown_curve(state, "approx_kl") == curve_of(state, "approx_kl")


def test_a_band_breaks_where_the_interval_is_unknown() -> None:
    shape = band(
        Curve([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0], [0.0, None, 2.0, 3.0], [2.0, None, 4.0, 5.0]), "#000000"
    )
    assert shape["x"] == [1, 1, None, 3, 4, 4, 3]
    assert shape["y"] == [2.0, 0.0, None, 4.0, 5.0, 3.0, 2.0]


def test_no_more_points_than_a_screen_has_however_they_came() -> None:
    growing, rounds, sums = Points(), [], dict[int, RoundSums]()
    for number in range(1, 5 * POINTS):
        rounds.append(replace(ROUND, round=number, approx_kl=float(number)))
        sums[number] = defaultdict(Moments)
        sums[number]["gain"].add(float(number))
        if number % 97 == 0 or number in (1, POINTS, POINTS + 1, 2 * POINTS + 1):
            points = growing.of(rounds, sums)
            assert points == Points().of(rounds, sums)
            assert 0 < len(points) <= POINTS
            assert points[-1].round == number
            assert points[-1].episodes["gain"] == Points().of(rounds, sums)[-1].episodes["gain"]
            assert sum(point.operations["PRUNE"] for point in points) == number * ROUND.operations["PRUNE"]
    assert points[0].measured["approx_kl"] == 4.5  # the mean of 1 to 8
    assert points[0].episodes["gain"].mean == 4.5
    assert points[0].episodes["utility"].mean is None
    assert Points().of([], {}) == []


def test_the_operations_of_a_round_sum_to_one(state: RunState) -> None:
    data = run_figures([Watched("run", state)], LIGHT)["operations"]["data"]
    assert isinstance(data, list)
    shares = [trace["y"][0] for trace in data if isinstance(trace, dict) and isinstance(trace["y"], list)]
    assert sum(share for share in shares if isinstance(share, float)) == pytest.approx(1.0)


def test_the_course_of_an_episode() -> None:
    first = replace(DECISION, epoch=1, op=LifecycleOp.GERMINATE, slot="blocks.0", blueprint=HOSTILE)
    second = replace(
        DECISION, epoch=2, validation_accuracy=None, stages={"blocks.0": "<b>", "blocks.1": "HOLDING"}
    )
    steps = frames([first, second])
    text = text_of(episodes.course(steps, 1, example(EpisodeFinished), LIGHT))
    assert "<img" not in text
    assert "baseline at the end" in text
    rows = next(trace["z"] for trace in json.loads(text)["data"] if trace["type"] == "heatmap")
    assert rows[0] == [0, None]  # dormant, then a stage that nobody knows
    assert "nothing recorded yet" in text_of(episodes.course([], 0, None, DARK))


def test_a_stream_shows_its_changes_and_its_budget() -> None:
    steps = frames([replace(DECISION, epoch=epoch, added_parameters=100 * epoch) for epoch in range(1, 6)])
    row = replace(
        example(EpisodeFinished), parameter_budget=450, changes=f"{HOSTILE}@2/noise30@2/alarm@4/labels@90"
    )
    drawn = json.loads(text_of(episodes.course(steps, 0, row, LIGHT)))
    (changed,) = (trace for trace in drawn["data"] if trace.get("name") == "the data change")
    assert changed["x"] == [3, 5]  # the first epochs of the new data; the last change was not lived to see
    assert changed["text"][0].endswith(", noise30")
    assert "<img" not in changed["text"][0]
    assert [shape["x0"] for shape in drawn["layout"]["shapes"]] == [1, 2.5, 4.5]
    added, budget = (trace for trace in drawn["data"] if trace.get("yaxis") == "y3")
    assert added["y"] == [100, 200, 300, 400, 500]
    assert budget["y"] == [450, 450]
    low, high = drawn["layout"]["yaxis3"]["domain"]
    assert drawn["layout"]["yaxis2"]["domain"][1] < low < high < drawn["layout"]["yaxis"]["domain"][0]


def test_without_a_budget_or_changes_an_episode_has_two_panels() -> None:
    steps = frames([replace(DECISION, epoch=epoch) for epoch in (1, 2)])
    row = replace(example(EpisodeFinished), parameter_budget=None)
    drawn = json.loads(text_of(episodes.course(steps, 0, row, LIGHT)))
    assert "yaxis3" not in drawn["layout"]
    assert drawn["layout"]["yaxis"]["domain"] == [0.42, 1.0]
    assert "the data change" not in [trace.get("name") for trace in drawn["data"]]


def test_probabilities_name_what_was_taken_and_what_was_masked() -> None:
    slots = tuple(SlotView(name, None, None, None, None) for name in ("blocks.0", "blocks.1"))
    figure = episodes.probabilities(Frame(DECISION, slots), LIGHT)
    data = figure["data"]
    assert isinstance(data, list)
    assert isinstance(data[0], dict)
    labels, said = data[0]["y"], data[0]["text"]
    assert isinstance(labels, list)
    assert isinstance(said, list)
    by_label = dict(zip(labels, said, strict=True))
    assert by_label["▶ op: prune"] == "25.0%"
    assert by_label["op: fossilize"] == "masked"
    assert by_label["▶ alpha curve: cosine"] == "75.0%"
    assert not any("slot" in str(label) for label in labels)  # it had no choice
    hostile = replace(DECISION, probabilities={"op": {HOSTILE: 0.5, "PRUNE": math.nan}})
    assert "<img" not in text_of(episodes.probabilities(Frame(hostile, ()), DARK))
    for nothing in (None, Frame(replace(DECISION, probabilities=None), ())):
        assert "nothing recorded" in text_of(episodes.probabilities(nothing, DARK))
