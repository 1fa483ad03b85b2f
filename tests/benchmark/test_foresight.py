"""A teacher that knows the plan of a stream, and a linear rule that it teaches."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from esper.benchmark.stream_rules import (
    ForesightPolicy,
    LinearWish,
    LookAlwaysPolicy,
    MixerPolicy,
    fit_wish,
    foresight,
    signs,
)
from esper.leyline import HostSignals, LifecycleOp, Situation
from esper.simic.env.making import make_world
from esper.simic.offline.recorder import record_episodes
from esper.simic.reward import RewardConfig

CASE = "stream:plan=shuffle@3/alarm@5/labels@6/shuffle0@8,cap=1.0"


def at(epoch: int) -> Situation:
    return cast(Situation, SimpleNamespace(signals=SimpleNamespace(epoch=epoch)))


def test_a_mixer_is_wanted_once_shuffled_data_were_trained_on() -> None:
    teacher = ForesightPolicy(CASE)
    # the data of epoch 3 are the first shuffled ones: after four epochs that can be known, and not before
    assert [teacher.wants(at(epoch)) for epoch in range(11)] == [False] * 4 + [True] * 5 + [False] * 2


def test_the_teacher_grows_and_gives_back_with_the_data() -> None:
    setting = make_world("stream", 1, horizon=11)
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    episodes = setting.episodes(reward=reward)
    recording, _ = record_episodes(foresight([CASE]), episodes, [(CASE, 0)], policy="foresight")
    done = recording.action[:, 0].tolist()
    wait, grow, on = LifecycleOp.WAIT, LifecycleOp.GERMINATE, LifecycleOp.ADVANCE
    assert done == [wait, wait, wait, wait, grow, on, wait, wait, wait, LifecycleOp.PRUNE, wait]


def test_what_is_no_mixer_is_given_back_even_where_one_is_wanted() -> None:
    slots = [SimpleNamespace(name=name, blueprint=None) for name in ("a", "b", "c")]
    slots[1].blueprint = "conv_small"
    legal = {
        slot.name: SimpleNamespace(operations=frozenset(), blueprints=(), styles=(), alpha_targets=())
        for slot in slots
    }
    legal["b"].operations = frozenset({LifecycleOp.ADVANCE, LifecycleOp.PRUNE})
    situation = SimpleNamespace(signals=SimpleNamespace(epoch=5), slots=slots, legal=legal)
    said = ForesightPolicy(CASE).act(cast(Situation, situation))
    assert (said.op, said.slot) == (LifecycleOp.PRUNE, "b")
    slots[1].blueprint = "mixer"
    assert ForesightPolicy(CASE).act(cast(Situation, situation)).op is LifecycleOp.ADVANCE


def test_a_rule_is_fitted_to_what_the_teacher_wants() -> None:
    rng = np.random.default_rng(3)
    seen = rng.standard_normal((500, 3)) * [1.0, 5.0, 0.1] + [0.0, 2.0, 1.0]
    wish = fit_wish(seen, seen[:, 1] > 2.0)
    agreed = np.mean([wish.wants(row) == (row[1] > 2.0) for row in seen])
    assert agreed > 0.97
    spread = np.array([1.0, 5.0, 0.1]) * wish.weights
    assert abs(spread[1]) > 10 * max(abs(spread[0]), abs(spread[2]))


def test_a_rule_says_what_its_weights_say() -> None:
    wish = LinearWish(-1.0, (0.5, 0.25))
    assert wish.wants((3.0, 0.0))  # -1 + 1.5
    assert not wish.wants((1.0, 1.0))  # -1 + 0.75
    assert str(wish) != str(LinearWish(-1.0, (0.5, 0.2)))


def signals(epoch: int, validation: float, train: float) -> HostSignals:
    return HostSignals(
        epoch=epoch,
        horizon=20,
        training_samples=1024,
        train_loss=0.9,
        train_accuracy=train,
        validation_loss=1.2,
        validation_accuracy=validation,
        plateau_epochs=0,
        gradient_norm=np.e,
        host_parameters=100,
        added_parameters=0,
        parameter_budget=None,
        last_operation=LifecycleOp.WAIT,
    )


def test_what_a_rule_goes_by() -> None:
    numbers = (10.0, 0.6, 0.1, 0.2, 0.05, 1.2, 0.3, 1.0)
    assert signs(signals(5, 0.6, 0.5), 0.4, 0.45, grown=False) == pytest.approx((*numbers, 0.0, *[0.0] * 8))
    assert signs(signals(5, 0.6, 0.5), 0.4, 0.45, grown=True) == pytest.approx((*numbers, 1.0, *numbers))


def test_what_was_not_measured_is_not_taken_for_a_number() -> None:
    known = signals(5, 0.6, 0.5)
    for unknown in (
        replace(known, validation_loss=None),
        replace(known, train_loss=None),
        replace(known, gradient_norm=None),
        replace(known, training_samples=None),
    ):
        assert signs(unknown, 0.4, 0.45, grown=False) is None
    assert signs(known, None, 0.45, grown=False) is None


def test_looking_always_compares_with_the_epoch_before_and_begins_anew() -> None:
    policy = LookAlwaysPolicy(LinearWish(0.0, (0.0,) * 17))
    assert isinstance(policy, MixerPolicy)

    def look(epoch: int, validation: float) -> None:
        policy.wants(cast(Situation, SimpleNamespace(signals=signals(epoch, validation, 0.5), slots=())))

    look(1, 0.3)
    assert policy.seen is None  # there is no epoch before
    look(2, 0.5)
    assert policy.seen is not None
    assert policy.seen[3] == pytest.approx(0.2)
    policy.reset()
    look(2, 0.5)
    assert policy.seen is None
