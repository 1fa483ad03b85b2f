"""An environment over networks that differ: one space for all of them, and a mask that fits each."""

import numpy as np

from esper.simic.env.making import SuiteCases, make_env, make_world
from esper.tolaria.tasks import Instance
from esper.tolaria.tasks.drawn import MOST_SLOTS


def test_one_space_has_places_for_every_host() -> None:
    setting = make_world("hosts", 1)
    assert setting.space.slot_count == MOST_SLOTS
    assert setting.space is make_world("hosts", 2).space
    rng = np.random.default_rng(0)
    for _ in range(12):
        row = Instance.parse(SuiteCases("hosts").draw(rng)).row
        assert set(row.blueprints) <= set(setting.space.blueprints)
        assert 1 <= len(row.slots) <= MOST_SLOTS


def test_hosts_of_one_and_of_several_slots_grow_side_by_side() -> None:
    cases = ("drawn_tables:size=300", "drawn_sequences:depth=4,host=conv,size=300,slots=4,width=4")
    env = make_env("hosts", 2, horizon=3)
    env.reset(seed=0)
    for env_idx, case in enumerate(cases):
        env.episodes.begin(env_idx, case=case, host_seed=0)
    assert [len(env.episodes.host(env_idx).slot_config) for env_idx in range(2)] == [1, 4]
    masks = env.action_masks()
    layout = env.episodes.space.action_layout
    slots = layout.names.index("slot")
    size, offset = layout.sizes[slots], layout.offsets[slots]
    allowed = np.asarray(masks[:, offset : offset + 6 * size].reshape(2, 6, size).any(axis=1))
    assert not allowed[0, 1:].any()
    assert not allowed[1, 4:].any()
    rng = np.random.default_rng(0)
    for _ in range(3):
        _, rewards, *_ = env.step(env.sample_legal(rng))
        assert np.isfinite(rewards).all()
    env.close()
