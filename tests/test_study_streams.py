"""The headroom gate of streams: schedules follow the data, and the tables are of what was played."""

import pytest

import study_streams as study
from esper.tamiyo.rules import Schedule

CASE = "stream:plan=shuffle@10/alarm@15/noise30@20/shuffle0@30/noise0@40"
SEEDS = range(9000, 9004)


def test_alarms_are_no_phases_that_last() -> None:
    phases = study.lasting_phases(CASE, 80)
    assert [(start, end) for start, end, _ in phases] == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 80)]
    assert [state.shuffled for _, _, state in phases] == [0.0, 1.0, 1.0, 0.0, 0.0]
    assert study.lasting_phases(CASE, 25)[-1][:2] == (20, 25)  # a shorter life


@pytest.mark.parametrize(
    ("strategy", "schedule"),
    [
        ("never", ""),
        ("mixer@1 always", "germinate mixer@1 t=0; advance 1 t=1"),
        ("mixer@1 while shuffled", "germinate mixer@1 t=9; advance 1 t=10; prune 1 t=30"),
        ("mixer@1 while shuffled and clean", "germinate mixer@1 t=9; advance 1 t=10; prune 1 t=20"),
        (
            "mixer@0+mixer@1 while ordered",
            "germinate mixer@0 t=0; advance 0 t=1; prune 0 t=10; germinate mixer@0 t=29; advance 0 t=30; "
            "germinate mixer@1 t=0; advance 1 t=1; prune 1 t=10; germinate mixer@1 t=29; advance 1 t=30",
        ),
    ],
)
def test_a_strategy_becomes_the_schedule_of_a_stream(strategy: str, schedule: str) -> None:
    assert study.schedule_of(strategy, CASE, 80) == schedule
    assert str(Schedule.parse(schedule)) == schedule


def test_a_seed_is_there_while_data_are_many_and_shuffled() -> None:
    case = "stream:plan=shuffle@10/samples600@20/noise30@30/return1@40/noise20@50/labels@60/noise0@70"
    schedule = study.schedule_of("mixer@1 while shuffled and many", case, 100)
    grown = "germinate mixer@1 t={}; advance 1 t={}; "
    assert schedule == (grown.format(9, 10) + "prune 1 t=20; " + grown.format(39, 40)).removesuffix("; ")
    assert study.schedule_of("mixer@1 while many", case, 100) == (
        grown.format(0, 1) + "prune 1 t=20; " + grown.format(39, 40)
    ).removesuffix("; ")
    own = "mixer@1 while shuffled and clean"
    assert study.first_alike(case, 100)[own] == own


def test_a_renewed_seed_is_replaced_at_each_change() -> None:
    schedule = study.schedule_of("mixer@2 renewed", CASE, 80)
    assert schedule.count("germinate") == 5
    assert schedule.count("prune") == 4


def test_what_has_no_room_or_is_a_repetition_is_not_played() -> None:
    assert study.schedule_of("mixer@0 always", "stream:cap=1.0,plan=labels@9", 80) == ""  # 1,648 of 1,426
    alike = study.first_alike("stream:cap=1.0,plan=labels@9", 80)
    assert alike["mixer@0 always"] == "never"
    assert alike["mixer@1 while ordered"] == alike["mixer@1 while many"] == "mixer@1 always"
    assert alike["mixer@1 renewed"] == "mixer@1 renewed"
    case = "stream:cap=1.0,plan=labels@9"
    copied = study.with_copies({("mixer@1 always", case, 1): 0.7}, [case], [1], 80)
    assert copied["mixer@1 while ordered", case, 1] == 0.7
    assert ("mixer@2 always", case, 1) not in copied


def lives(worth: dict[str, float], case: str) -> list[study.Life]:
    arms = [*study.STRATEGIES, "wait", "wide, as wide as the cap"]
    return [
        study.Life(arm, case, seed, worth.get(arm, 0.5) + 0.001 * (seed - 9000), False)
        for arm in arms
        for seed in SEEDS
    ]


def test_the_gate_is_the_oracle_over_the_best_rival() -> None:
    shuffled, ordered = "mixer@1 while shuffled", "conv_small@1 always"
    played = [
        *lives({shuffled: 0.7, "wide, as wide as the cap": 0.6}, "a"),
        *lives({ordered: 0.66, "wide, as wide as the cap": 0.58}, "b"),
        *lives({}, "c")[:-1],  # not played by every arm on every host
    ]
    arms = ["wait", "wide, as wide as the cap"]
    gate = study.judge(study.by_key(played), ["a", "b", "c"], SEEDS, arms)
    assert gate.cases == ["a", "b"]
    assert gate.best_rival == "wide, as wide as the cap"
    assert gate.gains["oracle"] == pytest.approx([0.2, 0.16])
    assert gate.gains["wait"] == pytest.approx([0.0, 0.0])
    assert gate.headroom == pytest.approx([0.1, 0.08])
    assert gate.chosen == {shuffled: 2, ordered: 2}
    (row,) = study.gate_rows(gate)
    assert (row["oracle minus it, points"], row["standard error"], row["gate"]) == ("+9.00", "1.00", "open")


def test_the_oracle_is_scored_on_other_hosts_than_it_chose_by() -> None:
    """A schedule that is lucky on half of the hosts does not count as good on them."""
    played = {(arm, "a", seed): 0.5 for arm in study.STRATEGIES for seed in SEEDS}
    for seed in (9000, 9002):
        played["mixer@1 always", "a", seed] = 0.9
    scores, chosen = study.oracle(played, "a", (SEEDS[::2], SEEDS[1::2]))
    assert chosen == ["never", "mixer@1 always"]
    assert scores == dict.fromkeys(SEEDS, 0.5)


def test_a_rival_is_tuned_on_the_draws_that_all_its_settings_played() -> None:
    arms = [arm for arm, rival in study.rivals().items() if rival.name == "redo"]
    draws = [("a", 0), ("b", 0)]
    played = {(arm, *host): 0.5 for arm in study.rivals() for host in draws}
    played[arms[1], "a", 0] = 0.6
    played[arms[2], "b", 0] = 0.9
    del played[arms[0], "b", 0]  # the time was up
    assert arms[1] in study.tuned(played, draws)
    assert len(study.tuned(played, draws)) == len({rival.name for rival in study.rivals().values()})
    with pytest.raises(SystemExit, match="no instance was played by every arm"):
        study.judge({}, ["a"], SEEDS, ["wait"])
