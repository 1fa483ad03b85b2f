"""Deciders for targets that change: what a teacher expects of a target, and what is done with expectations."""

from collections.abc import Callable

import numpy as np
import pytest

from adapt_stream_choices import Life, lived_targets
from esper.leyline import ActionSpec, LifecycleOp, Situation
from esper.statistics import Floats
from esper.tamiyo.rules import Schedule
from esper.tolaria.tasks import task
from esper.tolaria.tasks.adapt_stream import Target
from target_lives import CHOICES
from target_rules import (
    LinearGuess,
    LinearPolicy,
    LinearRule,
    Note,
    TargetTable,
    TargetTeacher,
    TeacherPolicy,
    WorthPolicy,
    Worths,
    _worth,
    choice_of,
    fit_linear,
    fit_target_teacher,
    for_life,
    worth_left_out,
)
from watched import ModelHost, live, small_model

CASE = "adapt_stream:base=digits_layer,cap=0.25,data={},plan=noise80@40/rename@80,shift=domain,size=100"
EPOCHS = task("adapt_stream").epochs


def table_of(worth: Callable[[str, str], float], streams: int = 12) -> TargetTable:
    """Streams that differ in their data alone; what a choice gained on a target of a group, and a little noise."""
    rng = np.random.default_rng(0)
    cases, targets, epochs, gains = [], list[Target](), [], []
    for stream in range(streams):
        for start, end, target in lived_targets(CASE.format(stream), EPOCHS):
            cases.append(CASE.format(stream))
            targets.append(target)
            epochs.append(end - start)
            gains.append([worth(target.group, choice) + 0.001 * rng.normal() for choice in CHOICES])
    return TargetTable(tuple(cases), tuple(targets), np.array(epochs, float), np.array(gains))


def told(group: str, choice: str) -> float:
    """A small seed behind the stem helps where the domain is another, a norm where inputs are, nothing elsewhere."""
    return {("domain", "small@0"): 0.1, ("inputs", "norm@0"): 0.05}.get((group, choice), -0.03)


@pytest.fixture(scope="module")
def teacher() -> TargetTeacher:
    return fit_target_teacher(table_of(told))


def test_it_expects_what_was_gained_on_targets_alike(teacher: TargetTeacher) -> None:
    case = CASE.format(77)
    for _, _, target in lived_targets(case, EPOCHS):
        worths = teacher.worths(case, target)
        assert "large@1" not in worths  # the cap has no room for it
        for choice, worth in worths.items():
            assert worth == pytest.approx(told(target.group, choice), abs=0.02)


def test_what_its_choices_add_is_asked_of_streams_that_were_left_out() -> None:
    """0.1 in the first third, 0.05 in the second, nothing while names are others."""
    lives = worth_left_out(table_of(told))
    assert len(lives) == 12
    assert np.mean(list(lives.values())) == pytest.approx(0.05, abs=0.001)


def test_where_all_harm_it_adds_nothing() -> None:
    assert set(worth_left_out(table_of(lambda *_: -0.02)).values()) == {0.0}


def test_the_seed_for_life_is_the_best_on_the_same_base() -> None:
    other = CASE.format(1).replace("digits_layer", "pictures_layer")
    schedules = for_life(table_of(told), [CASE.format(99), other])
    sown = Schedule.parse(schedules[CASE.format(99)]).clauses[0].action
    assert (sown.op, sown.blueprint, sown.slot) == (LifecycleOp.GERMINATE, "conv_small|mlp_small", "0")
    assert schedules[other] == ""


class Told(WorthPolicy):
    """Expects what it is told for each epoch."""

    def __init__(self, worths: Callable[[int], Worths]) -> None:
        self._worths = worths
        super().__init__(object)

    def worths(self, situation: Situation) -> Worths:
        return self._worths(situation.signals.epoch)


def done(policy: WorthPolicy, *, budget: int | None = None) -> list[tuple[int, str]]:
    return live(policy, ModelHost(small_model("series", slots=3)), horizon=40, budget=budget)


def test_the_best_seed_lives_until_it_is_expected_to_harm() -> None:
    policy = Told(lambda epoch: {"small@0": 0.05 if 2 <= epoch < 20 else -0.01, "lora@0": 0.02})
    first = done(policy)[:4]
    assert first[0] == (0, "germinate lora@blocks.0")
    policy = Told(lambda epoch: {"small@0": 0.05 if 2 <= epoch < 20 else -0.01})
    assert done(policy) == [
        (2, "germinate conv_small@blocks.0"),
        (3, "advance blocks.0"),
        (20, "prune blocks.0"),
    ]


@pytest.mark.parametrize(("other", "words"), [(0.065, []), (0.08, ["prune blocks.0"])])
def test_one_that_is_little_better_does_not_take_its_place(other: float, words: list[str]) -> None:
    policy = Told(lambda epoch: {"small@0": 0.05, "depthwise@1": other if epoch >= 10 else 0.0})
    assert [what for epoch, what in done(policy) if epoch == 10] == words


def test_nothing_is_planted_that_gains_little_or_that_comes_too_late() -> None:
    assert not done(Told(lambda _: {"small@0": 0.009}))
    assert not done(Told(lambda epoch: {"small@0": 0.1 * (epoch > 32)}))
    assert done(Told(lambda epoch: {"small@0": 0.1 * (epoch >= 32)}))
    assert not done(Told(lambda _: {"small@0": 0.1}), budget=3)


class Misled(Told):
    """Plants something that was not measured in that place, and then goes by what it is told."""

    def act(self, situation: Situation) -> ActionSpec:
        if situation.signals.epoch == 0:
            return ActionSpec(LifecycleOp.GERMINATE, "blocks.2", "conv_small")
        return super().act(situation)


def test_a_seed_in_another_place_counts_as_the_nearest_that_was_measured() -> None:
    kept = done(Misled(lambda _: {"small@1": 0.03, "small@0": 0.01}))
    assert [what for _, what in kept] == ["germinate conv_small@blocks.2", "advance blocks.2"]
    harms = done(Misled(lambda _: {"small@1": -0.01}))
    assert [what for _, what in harms] == ["germinate conv_small@blocks.2", "prune blocks.2"]


def test_every_measured_choice_is_most_like_itself() -> None:
    host = ModelHost(small_model("series", slots=3))
    for choice in CHOICES:
        kind, _, place = choice.partition("@")
        names = {"small": "conv_small", "large": "conv_light"}
        host.apply(ActionSpec(LifecycleOp.GERMINATE, f"blocks.{place}", names.get(kind, kind)))
        assert choice_of(host.snapshots()[int(place)], int(place)) == choice
        host = ModelHost(small_model("series", slots=3))


def test_the_teacher_goes_by_the_target_that_was_trained_on_and_lets_the_head_begin(
    teacher: TargetTeacher,
) -> None:
    policy = TeacherPolicy(teacher, CASE.format(5))
    # The epoch in which names change is the first of the new target: it is known when that has been trained on.
    assert live(policy, ModelHost(small_model("series", slots=3)), horizon=EPOCHS) == [
        (2, "germinate conv_small@blocks.0"),
        (3, "advance blocks.0"),
        (41, "prune blocks.0"),
        (43, "germinate norm@blocks.0"),  # the place cools down for an epoch
        (44, "advance blocks.0"),
        (81, "prune blocks.0"),
    ]


# A linear rule


def test_a_linear_rule_finds_what_is_linear_and_is_written_whole() -> None:
    rng = np.random.default_rng(1)
    weights: Floats = rng.normal(size=(5, len(CHOICES)))
    notes = [
        Note(size, tuple(seen), tuple(sign * (0.5 + seen @ weights)))
        for size, sign in ((100, 1.0), (200, -1.0))
        for seen in rng.normal(size=(400, 5))
    ]
    rule = fit_linear(notes, penalty=1e-6)
    for note in notes[::100]:
        assert rule.guesses[note.size].gains(note.seen) == pytest.approx(note.worths, abs=1e-4)
    again = LinearRule.read(rule.written())
    assert again == rule
    assert str(again) == str(rule)


def test_a_linear_rule_has_what_it_guesses_and_gives_it_back() -> None:
    """It guesses that a small seed gains by what validation has, and a norm by what it lacks."""
    host = ModelHost(small_model("series", slots=3), accuracy=lambda epoch: 0.7 if epoch < 12 else 0.3)
    weights = np.zeros((len(CHOICES), 25))
    weights[CHOICES.index("small@0"), 1], weights[CHOICES.index("norm@0"), 1] = 1.0, -1.0
    constants = np.zeros(len(CHOICES))
    constants[CHOICES.index("small@0")], constants[CHOICES.index("norm@0")] = -0.5, 0.4
    guess = LinearGuess(tuple(constants), tuple(map(tuple, weights)))
    policy = LinearPolicy(LinearRule({host.host_parameters: guess}))
    assert live(policy, host, horizon=30) == [
        (2, "germinate conv_small@blocks.0"),  # two epochs have to be known
        (3, "advance blocks.0"),
        (12, "prune blocks.0"),
        (14, "germinate norm@blocks.0"),
        (15, "advance blocks.0"),
    ]
    assert len(policy.seen or ()) == 25
    other = LinearPolicy(LinearRule({1: guess}))
    assert live(other, ModelHost(small_model("series", slots=3)), horizon=30) == []


def test_what_the_governor_took_away_says_nothing_of_a_seed() -> None:
    taken = Life("small@0", CASE, 0, 0.0, (0.5, 0.1, None), condemned=True)
    whole = Life("small@0", CASE, 0, 0.4, (0.5, 0.3, 0.0), condemned=False)
    assert [_worth(whole, place) for place in range(3)] == [0.5, 0.3, 0.0]
    assert _worth(taken, 0) == 0.5
    assert all(np.isnan(_worth(taken, place)) for place in (1, 2))
    assert np.isnan(_worth(None, 0))


def test_a_linear_policy_remembers_the_last_jump_and_waits_without_a_rule() -> None:
    curve = [0.5, 0.6, 0.7, 0.3, 0.35, 0.36]
    host = ModelHost(small_model("series", slots=3), accuracy=lambda epoch: curve[min(epoch, 5)])
    seen = []

    class Noting(LinearPolicy):
        def worths(self, situation: Situation) -> Worths:
            worths = super().worths(situation)
            seen.append((self.noticed.fell, self.noticed.level, self.noticed.since))
            return worths

    assert not live(Noting(None), host, horizon=6)
    assert [one[2] for one in seen] == [1, 2, 3, 0, 1, 2]
    assert seen[3][:2] == seen[5][:2] == pytest.approx((-0.4, 0.3))
