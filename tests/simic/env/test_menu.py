"""A menu: the only kinds of seeds that may be germinated."""

import numpy as np
import pytest

from esper.leyline import DecisionSettings, LifecycleOp
from esper.simic.env import make_env

G = int(LifecycleOp.GERMINATE)


def test_only_what_is_on_the_menu_is_grown() -> None:
    menu = make_env("toy", 1).episodes.space.blueprints[-2:]
    envs = make_env("toy", 3, decisions=DecisionSettings(menu=menu))
    envs.reset(seed=1)
    rng, blueprints, germinated = np.random.default_rng(2), envs.episodes.space.blueprints, set[str]()
    offered = make_env("toy", 3)
    offered.reset(seed=1)
    assert np.array_equal(envs.flat_observation, offered.flat_observation)  # what it sees is the same
    for _ in range(60):
        for situation in envs.situations():
            assert {card.name for cards in situation.cards.values() for card in cards} == set(menu)
            assert {name for here in situation.legal.values() for name in here.blueprints} <= set(menu)
        actions = envs.sample_legal(rng)
        germinated |= {blueprints[row[2]] for row in actions if row[0] == G}
        envs.step(actions)
    assert germinated == set(menu)


def test_an_empty_table_leaves_only_waiting() -> None:
    envs = make_env("toy", 2, decisions=DecisionSettings(menu=("no such kind",)))
    envs.reset(seed=1)
    assert not envs.action_masks()[:, G].any()
    assert all(G not in here.operations for here in envs.situations()[0].legal.values())
    assert not any(here.blueprints for here in envs.situations()[0].legal.values())
    with pytest.raises(ValueError, match=r"menu is 'mixer'; expected names, such as \('mixer',\)"):
        DecisionSettings(menu="mixer")  # type: ignore[arg-type]
