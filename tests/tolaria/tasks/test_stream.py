"""Streams: plans as text, what each kind of change does to the data, and what a host meets of them."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from esper.leyline import ActionSpec, LifecycleOp
from esper.tolaria.data import Phase
from esper.tolaria.engine.population import Population
from esper.tolaria.final_report import phase_scores
from esper.tolaria.tasks import Instance, ParameterError, suite
from esper.tolaria.tasks.plans import Change
from esper.tolaria.tasks.stream import CHANGES, REGIME_EPOCHS, switch_epochs
from esper.tolaria.worlds.engine import EngineWorld
from world_steps import begin_host, run_epoch


def phases(plan: str, **parameters: float | int) -> tuple[Phase, ...]:
    return Instance.of("stream", {"size": 500, "plan": plan, **parameters}).load().phases


def equal(one: Phase, other: Phase) -> bool:
    return all(
        torch.equal(getattr(getattr(one, split), part), getattr(getattr(other, split), part))
        for split in ("train", "validation")
        for part in ("inputs", "targets")
    )


# Plans as text


def test_a_plan_is_read_and_written() -> None:
    text = "shuffle60@4/labels@9/classes5@12/samples700@12/noise30@20/corrupt25@30/return1@31/alarm@40"
    assert "/".join(map(str, CHANGES.parse(text))) == text
    assert CHANGES.parse("shuffle@4") == (Change(4, "shuffle", 100),)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("weather@4", r"'weather@4' in plan .* is no change; write kind@epoch.* shuffle, classes"),
        ("shuffle", r"'shuffle' in plan 'shuffle' is no change"),
        ("labels3@4", r"'labels3@4' .* has an amount, and labels takes none"),
        ("noise@4", r"'noise@4' .* needs an amount from 0 to 40, as in noise40@4"),
        ("classes11@4", r"'classes11@4' .* needs an amount from 2 to 10"),
        ("samples@4", r"'samples@4' .* needs an amount from 200 to 4000, as in samples4000@4"),
        ("samples199@4", r"'samples199@4' .* needs an amount from 200 to 4000"),
        ("samples4001@4", r"'samples4001@4' .* needs an amount from 200 to 4000"),
        ("labels@9/labels@8", r"at epochs 9, 8; expected 1 or later, and none earlier than the one before"),
        ("labels@9/alarm@9", r"alarm@9 in plan .* shares its epoch with another change"),
        ("noise20@9/noise0@9", r"the changes at epoch 9 of the plan undo one another"),
        ("labels@4/classes5@9/return1@9", r"the changes at epoch 9 of the plan undo one another"),
        ("labels@0", r"at epochs 0; expected 1 or later"),
        ("classes10@4", r"classes10@4 in the plan changes nothing"),
        ("noise0@4", r"noise0@4 in the plan changes nothing"),
        ("shuffle0@4", r"shuffle0@4 in the plan changes nothing"),
        ("alarm@4/return0@9", r"return0@9 in the plan changes nothing"),
        ("labels@4/return2@9", r"return2@9 .* the state after 2 changes; there were 1 before it"),
        ("/".join(f"labels@{e}" for e in range(1, 26)), r"plan has 25 changes; expected 1 to 24"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(plan: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Instance.of("stream", {"plan": plan})


def test_a_cap_is_part_of_the_instance() -> None:
    assert Instance.parse("stream:cap=0.25").cap == 0.25
    assert Instance("stream").cap == 1.5
    assert Instance("mnist1d").cap is None
    with pytest.raises(ParameterError, match=r"stream.cap must be a number from 0 to 10, not -1"):
        Instance.parse("stream:cap=-1")


def test_switches_are_placed_apart_wherever_there_is_room() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 4, 7):
        ends = [0, *switch_epochs(count, 100, rng), 100]
        assert len(ends) == count + 2
        assert all(late - early >= REGIME_EPOCHS for early, late in pairwise(ends))
    assert {switch_epochs(1, 100, rng)[0] for _ in range(1000)} == set(range(12, 89))
    with pytest.raises(ValueError, match="count is 8; 100 epochs have room for 7 switches"):
        switch_epochs(8, 100, rng)


# What the data become


def test_positions_are_shuffled_anew_each_time_and_an_earlier_state_returns() -> None:
    first, second, third, back, again = phases("shuffle@3/shuffle50@5/return0@7/return2@9")
    assert [phase.start_epoch for phase in (first, second, third, back, again)] == [0, 3, 5, 7, 9]
    for before, after in ((first, second), (first, third), (second, third)):
        assert not torch.equal(before.train.inputs, after.train.inputs)
        assert torch.equal(before.train.inputs.sort(-1)[0], after.train.inputs.sort(-1)[0])
        assert torch.equal(before.train.targets, after.train.targets)
    assert (first.train.inputs == third.train.inputs).all(0).sum() == 20  # half of the positions stayed
    assert back.train is first.train  # no copy is held of a state that returns
    assert again.train is third.train
    shuffled, ordered = phases("shuffle0@3", shuffled=1.0, permutation=5)
    assert torch.equal(ordered.train.inputs, first.train.inputs)
    assert not torch.equal(shuffled.train.inputs, first.train.inputs)


def test_labels_change_their_names_everywhere() -> None:
    first, second, third = phases("labels@3/labels@5")
    for before, after in ((first, second), (first, third), (second, third)):
        assert torch.equal(before.train.inputs, after.train.inputs)
        for split in ("train", "validation"):
            pairs = zip(
                getattr(before, split).targets.tolist(), getattr(after, split).targets.tolist(), strict=True
            )
            assert len(set(pairs)) == 10  # one new name for each old one
    assert (first.train.targets != second.train.targets).all()


def test_classes_are_withdrawn_and_come_again() -> None:
    first, fewer, more = phases("classes4@3/classes7@5")
    assert [len(phase.train) for phase in (first, fewer, more)] == [500, 200, 350]
    assert [int(phase.validation.targets.max()) for phase in (first, fewer, more)] == [9, 3, 6]


def test_samples_are_drawn_anew_and_validation_stays() -> None:
    first, few, other, back = phases("samples300@3/samples300@5/return0@7", noise=0.2)
    assert [len(phase.train) for phase in (first, few, other)] == [500, 300, 300]
    assert back.train is first.train
    for phase in (few, other):
        assert torch.equal(phase.validation.inputs, first.validation.inputs)
    rows = [{tuple(series) for series in phase.train.inputs[:, 0].tolist()} for phase in (first, few, other)]
    assert [len(some) for some in rows] == [500, 300, 300]
    assert all(
        len(one & two) < 60 for one, two in combinations(rows, 2)
    )  # of 4,000 to draw from, about 38 and 22
    (_, whole) = phases("samples4000@3")
    clean = dict(
        zip(map(tuple, whole.train.inputs[:, 0].tolist()), whole.train.targets.tolist(), strict=True)
    )
    pairs = zip(few.train.inputs[:, 0].tolist(), few.train.targets.tolist(), strict=True)
    assert (
        sum(clean[tuple(series)] != target for series, target in pairs) == 60
    )  # their own labels, a fifth wrong


def test_changes_of_one_epoch_are_one_phase_and_counted_one_by_one() -> None:
    first, both, back = phases("classes5@3/labels@3/return1@7")
    assert [phase.start_epoch for phase in (first, both, back)] == [0, 3, 7]
    (_, fewer, renamed) = phases("classes5@3/labels@4")
    assert equal(both, renamed)
    assert equal(back, fewer)  # after the first change, which was never alone


def test_noise_comes_and_goes_in_training_labels_only() -> None:
    first, noisy, clean = phases("noise30@3/noise0@5")
    assert (first.train.targets != noisy.train.targets).sum() == 150
    assert torch.equal(first.validation.targets, noisy.validation.targets)
    assert equal(first, clean)


def test_corruption_blanks_other_positions_each_time() -> None:
    first, one, other, mended = phases("corrupt25@3/corrupt25@5/corrupt0@7")
    blanks = [(phase.train.inputs == 0).all(0).squeeze(0) for phase in (first, one, other)]
    assert [int(blank.sum()) for blank in blanks] == [0, 10, 10]
    assert not torch.equal(blanks[1], blanks[2])
    assert equal(first, mended)


def test_an_alarm_is_a_drop_without_a_change() -> None:
    first, alarm, after = phases("alarm@3")
    assert [phase.start_epoch for phase in (first, alarm, after)] == [0, 3, 4]
    assert alarm.train is first.train
    assert not torch.equal(alarm.validation.inputs, first.validation.inputs)
    assert after.validation is first.validation
    assert [phase.start_epoch for phase in phases("alarm@3/labels@4")] == [
        0,
        3,
        4,
    ]  # it ends in the next change


def test_every_phase_has_a_test_split_like_its_data() -> None:
    data = Instance.parse("stream:size=500,plan=classes3@3/labels@5").load()
    splits = [phase.test for phase in data.phases]
    assert [len(test) for test in splits if test is not None] == [2500, 750, 750]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(40, 10))
    scores = phase_scores([model] * 3, data)
    assert [score.samples for score in scores] == [2500, 750, 750]
    assert len({score.loss for score in scores}) == 3
    assert phase_scores([model] * 2, data) == scores[:2]  # a life that ended before the last change
    with pytest.raises(ValueError, match="4 models for 3 phases, of which 0 have no test split"):
        phase_scores([model] * 4, data)
    with pytest.raises(ValueError, match="2 models for 2 phases, of which 2 have no test split"):
        phase_scores([model] * 2, Instance.parse("shift:size=500").load())


# What a host meets


def test_a_prepared_step_survives_every_change() -> None:
    population = Population(1)
    host = population.begin(0, "stream:size=500,plan=shuffle@1/classes5@2/return0@3/samples200@4", 0)
    assert len(host.data.inputs) == 500 + 500 + 250 + 200  # the state that returns is there already
    ranges, steps = [], []
    for _ in range(5):
        steps.append(host.steps_per_epoch)
        ranges.append(host.data.ranges[host.data.phase_at(host.epoch)])
        population.train_epoch()
        if host.epoch == 1:
            step = population._steps[0]
    assert step is not None
    assert population._steps[0] is step
    assert ranges == [range(500), range(500, 1000), range(1000, 1250), range(500), range(1250, 1450)]
    assert steps == [24] * 5  # minibatches of an epoch, however many samples there are


def test_the_cap_is_shown_and_kept() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "stream:size=500,cap=0.4", 0)
    host = world.host(0)
    assert host.parameter_budget == int(0.4 * 1426)
    with pytest.raises(ValueError, match=r"mixer at 'blocks.0' would make 1,648 added parameters, .* is 570"):
        host.apply(ActionSpec(LifecycleOp.GERMINATE, "blocks.0", "mixer"))
    host.apply(ActionSpec(LifecycleOp.GERMINATE, "blocks.1", "mixer"))
    with pytest.raises(ValueError, match=r"lora at 'blocks.2' would make 580"):
        host.apply(ActionSpec(LifecycleOp.GERMINATE, "blocks.2", "lora"))


def test_the_governor_takes_no_change_for_a_breakdown() -> None:
    world = EngineWorld(1)
    begin_host(world, 0, "stream:plan=labels@4/alarm@6/labels@8/shuffle@9/alarm@10/labels@11,size=1000", 0)
    for _ in range(13):
        run_epoch(world, [0])
        assert world.host(0).report.rolled_back is None


@pytest.mark.slow
def test_no_drawn_stream_is_taken_for_a_breakdown() -> None:
    cases = [str(case) for case in suite("stream").held_out[::3]]
    world = EngineWorld(len(cases))
    for index, case in enumerate(cases):
        begin_host(world, index, case, 0)
    for _ in range(100):
        run_epoch(world, range(len(cases)))
        assert all(world.host(index).report.rolled_back is None for index in range(len(cases)))
