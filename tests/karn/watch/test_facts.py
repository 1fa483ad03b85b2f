"""Names and values: what is known of decisions, episodes and costs, and dashes for the rest."""

from dataclasses import replace

from esper.karn.watch.episodes import Frame, decision_facts, episode_line, observation_facts
from esper.karn.watch.state import Watched
from esper.karn.watch.verdicts import cost_facts, time_tree
from esper.leyline import DecisionTaken, EpisodeFinished, RoundFinished
from run_examples import example

DECISION, ROUND = example(DecisionTaken), example(RoundFinished)


def test_where_the_time_went() -> None:
    half = replace(ROUND, seconds=10.0, seconds_by_part={"learn": 2.0, "collect": 8.0, "collect/step": 4.0})
    other = replace(ROUND, seconds=30.0, seconds_by_part={"learn": 6.0, "collect": 24.0})
    unknown = replace(ROUND, seconds=1000.0, seconds_by_part=None)
    assert time_tree([half, other, unknown]) == [("collect", "80%"), ("· step", "10%"), ("learn", "20%")]
    assert time_tree([unknown]) == time_tree([]) == [("parts of a round", "—")]


def test_a_decision() -> None:
    told = dict(decision_facts(Frame(DECISION, ())))
    assert told["operation"] == "prune"
    assert told["alpha curve"] == "cosine"
    assert told["value"] == "+0.250"
    assert told["· potential after"] == "+0.0625"
    assert "blueprint" not in told  # pruning uses none
    assert "illegal" not in told
    assert dict(decision_facts(Frame(replace(DECISION, value=None), ())))["value"] == "—"
    assert decision_facts(None) == [("decision", "—")]


def test_what_was_seen() -> None:
    assert dict(observation_facts(Frame(DECISION, ())))["host.budget_left"] == "—"
    ((dash, hint),) = observation_facts(Frame(replace(DECISION, observation=None), ()))
    assert dash == "—"
    assert "debug" in hint
    assert observation_facts(None) == [(dash, hint)]


def test_an_episode() -> None:
    row = replace(
        example(EpisodeFinished),
        round=4,
        validation_accuracy=None,
        control_accuracy=0.5,
        rolled_back="diverged",
        lost=True,
    )
    told = episode_line(row, recorded=False)
    for part in ("round 4", "accuracy —, baseline 0.500", "rolled back: diverged", "lost", "not recorded"):
        assert part in told
    assert episode_line(None, recorded=False) == "no episode has ended"


def test_costs_of_nothing_are_unknown() -> None:
    told = dict(cost_facts(Watched("run")))
    assert told["env-epochs"] == told["time in rounds"] == told["peak memory"] == "—"
    assert told["speed now"] == "— env-epochs/s"
