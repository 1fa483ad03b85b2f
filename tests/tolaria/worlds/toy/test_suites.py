"""Suites of the toy: what is drawn for training is never what is held out."""

import numpy as np

from esper.tolaria.worlds.toy.instance import TOY_SUITES, TRAINING_DRAWS, toy_instance


def test_training_draws_and_held_out_ones_do_not_meet() -> None:
    rng = np.random.default_rng(0)
    for suite in TOY_SUITES.values():
        drawn = [toy_instance(suite.draw(rng)) for _ in range(200)]
        held_out = [toy_instance(case) for case in suite.held_out(30)]
        assert max(instance.draw for instance in drawn) < TRAINING_DRAWS
        assert min(instance.draw for instance in held_out) >= TRAINING_DRAWS
        assert {instance.slots for instance in drawn} == set(suite.slots)
        assert suite.held_out(40)[:30] == suite.held_out(30)


def test_shifts_happen_at_different_epochs() -> None:
    suite = TOY_SUITES["toy_shift"]
    changes = {toy_instance(case).phases[-1].start_epoch for case in suite.held_out(40)}
    assert changes == set(suite.changes)
