"""The teacher of schedules: what it learns from outcomes, and that it leads to what it wants from any state."""

from dataclasses import replace

import numpy as np
import pytest

from adapt_choices import SINGLES, TOGETHER
from bench_rows import ROW
from esper.benchmark.outcomes import WAITING, Outcome, Outcomes
from esper.leyline import ActionSpec, Layout, LifecycleOp, Situation
from esper.tamiyo.rules import SchedulePolicy
from make_outcomes import grid_of_any_host, outcome_of
from teach_schedules import WantedPolicy, choosable, fit_teacher, knowledge, shrunk
from watched import KINDS, ModelHost, live, small_model

EARLY, DEAR = SINGLES["norm@0"], SINGLES["large@1"]
SHIFTS = ("noise", "mirror", "rename")


def drawn(worth: dict[tuple[str, str], float], added: int = 10) -> Outcomes:
    """24 cases on two hosts each; worth is the gain of (shift, schedule), and nothing else tells."""
    rows = list[Outcome]()
    for place in range(24):
        shift = SHIFTS[place % 3]
        for seed, schedule in ((seed, each) for seed in (500, 501) for each in (WAITING, EARLY, DEAR)):
            reached = 0.5 + 0.001 * place + worth.get((shift, schedule), 0.0)
            row = replace(
                ROW,
                instance=f"adapt:base=digits_layer,data={place},shift={shift},size={100 + place}",
                seed=seed,
                rent=0.0,
                added_parameters=added * (schedule == EARLY) + 100 * added * (schedule == DEAR),
                validation_accuracy=reached,
                test_accuracy=reached,
            )
            rows.append(outcome_of(row, held_out=False, schedule=schedule))
    return Outcomes(rows)


def test_it_wants_what_was_best_for_cases_alike() -> None:
    outcomes = drawn(
        {("noise", EARLY): 0.1, ("mirror", DEAR): 0.3, ("rename", EARLY): -0.2, ("rename", DEAR): -0.1}
    )
    teacher, worth = fit_teacher(outcomes, dict.fromkeys(outcomes.cases, Layout.IMAGE))
    new = {
        shift: teacher.schedule(f"adapt:base=digits_layer,data=77,shift={shift},size=400", Layout.IMAGE)
        for shift in SHIFTS
    }
    assert new == {"noise": EARLY, "mirror": DEAR, "rename": WAITING}
    assert worth.taught == pytest.approx((0.1 + 0.3) / 3)
    assert worth.single_best == pytest.approx((0.3 - 0.1) / 3)


def test_what_two_hosts_say_counts_little() -> None:
    """The only case of its base was lucky on one host: on average the dear one gained 0.2 there, the other 0.05."""
    outcomes = drawn({(shift, EARLY): 0.05 for shift in SHIFTS})
    first, other = outcomes.cases[0], outcomes.cases[0].replace("digits_layer", "pictures_batch")
    told = Outcomes(
        replace(
            row,
            case=other if row.case == first else row.case,
            validation_accuracy=0.9
            if (row.case, row.schedule, row.seed) == (first, DEAR, 500)
            else row.validation_accuracy,
        )
        for row in outcomes.rows
    )
    teacher, worth = fit_teacher(told, dict.fromkeys(told.cases, Layout.IMAGE))
    assert teacher.schedule(other, Layout.IMAGE) == EARLY
    assert worth.penalty > 1.0


def test_a_word_counts_by_the_hosts_that_have_it() -> None:
    """Three of many hosts have it, and gained 1 more than the others: 3 / (3 + penalty) of it is believed."""
    hosts, penalty = 30_000, 6.0
    seen = np.zeros((hosts, 1))
    seen[:3] = 1.0
    constants, weights = shrunk(seen, 0.25 + seen, penalty)
    assert weights[0, 0] == pytest.approx(3 / (3 + penalty), rel=1e-3)
    assert constants[0] == pytest.approx(0.25, abs=1e-3)


def test_a_case_is_known_by_what_it_was_drawn_with() -> None:
    known = knowledge("adapt:base=digits_layer,data=7,shift=turn,size=127", Layout.IMAGE)
    assert known["size"] == known["image: size"] == 7.0
    assert known["shift=turn"] == known["image: shift=turn"] == known["layout=image"] == 1.0
    assert not any("data" in name for name in known)


def test_a_higher_rent_wants_fewer_parameters() -> None:
    """The dear one is a thousand parameters, 0.7 of the host: at a rent of 0.3 it costs 0.21."""
    outcomes = drawn({(shift, DEAR): 0.2 for shift in SHIFTS} | {(shift, EARLY): 0.1 for shift in SHIFTS})
    layouts = dict.fromkeys(outcomes.cases, Layout.IMAGE)
    for rent, wanted in ((None, DEAR), (0.3, EARLY), (20.0, WAITING)):
        teacher, _ = fit_teacher(choosable(outcomes, 8, rent), layouts)
        assert {teacher.schedule(case, Layout.IMAGE) for case in outcomes.cases} == {wanted}
    assert set(choosable(outcomes, 2).schedules) == {WAITING, DEAR}
    assert set(choosable(outcomes, 2, 0.3).schedules) == {WAITING, EARLY}


@pytest.mark.parametrize(
    "schedule", [WAITING, *SINGLES.values(), *TOGETHER.values(), *grid_of_any_host()[::7]]
)
def test_left_alone_it_does_what_the_schedule_says(schedule: str) -> None:
    wanted = WantedPolicy(lambda *_: schedule, "adapt")
    for kind in KINDS[1::2]:
        mine, theirs = (
            live(policy, ModelHost(small_model(kind, slots=5)), horizon=20)
            for policy in (wanted, SchedulePolicy(schedule))
        )
        assert mine == theirs


class Misled:
    """Plants something else before the teacher may, and then does as it says."""

    def __init__(self, slot: str) -> None:
        self.teacher, self.slot = WantedPolicy(lambda *_: EARLY, "adapt"), slot

    def reset(self) -> None:
        self.teacher.reset()

    def act(self, situation: Situation) -> ActionSpec:
        if situation.signals.epoch == 0:
            return ActionSpec(LifecycleOp.GERMINATE, self.slot, "conv_small")
        return self.teacher.act(situation)


@pytest.mark.parametrize("slot", ["blocks.0", "blocks.1"])
def test_what_a_student_planted_otherwise_is_kept_and_nothing_planted_beside_it(slot: str) -> None:
    """Else students who are not sure learn to try one seed after another."""
    done = live(Misled(slot), host := ModelHost(small_model("series", slots=5)), horizon=20)
    words = [what for _, what in done]
    assert [what for what in words if what.startswith("germinate")] == [f"germinate conv_small@{slot}"]
    assert any(what.startswith(f"advance {slot}") for what in words)
    assert not any(what.startswith("prune") for what in words)
    grown = {slot.name: slot.blueprint for slot in host.snapshots() if slot.blueprint is not None}
    assert grown == {slot: "conv_small"}
