"""Baselines of equal size: seeds from birth, at random, built in from scratch; and decisions that did not look."""

from dataclasses import replace

import pytest
import torch

from bench_rows import SEED
from esper.benchmark.matching import (
    BlindPolicy,
    RandomMatchedPolicy,
    ScratchPlayer,
    build_in,
    from_birth,
    nearest_in_size,
)
from esper.leyline import BlueprintCard, BlueprintKind, LifecycleOp, Stage
from esper.simic.env import make_env
from esper.tamiyo.rules import Schedule
from esper.tolaria.worlds.engine import EngineWorld
from world_steps import begin_host, run_epoch


def test_from_birth_makes_room_by_fossils_first() -> None:
    holding = replace(SEED, slot="blocks.0", fossilized=False, style="gate", alpha_target=0.5)
    assert str(from_birth([holding, SEED])) == (
        "germinate mixer@blocks.1 t=0; advance blocks.1 t=1; fossilize blocks.1 t=2; "
        "germinate mixer@blocks.0 style=gate alpha_target=0.5 t=0; advance blocks.0 t=1"
    )


def test_random_growth_is_matched_in_number_and_size() -> None:
    episodes = make_env("toy").episodes
    episodes.seed(0, 0)
    episodes.begin(0)
    situation = episodes.situation(0)
    sizes = [replace(SEED, parameters=parameters) for parameters in (20, 2000)]
    drawn = set()
    for seed in range(20):
        policy = RandomMatchedPolicy(sizes, seed)
        policy.reset()
        policy.act(situation)
        schedule = policy._inner.schedule if policy._inner else Schedule(())
        born = [clause for clause in schedule.clauses if clause.action.op is LifecycleOp.GERMINATE]
        assert len(born) == 2
        assert len({clause.action.slot for clause in born}) == 2
        for clause, size in zip(born, (20, 2000), strict=True):
            cards = situation.cards[str(clause.action.slot)]
            assert clause.action.blueprint in [card.name for card in nearest_in_size(cards, size)]
            assert clause.epoch < situation.signals.horizon - 6
        drawn.add(str(schedule))
    assert len(drawn) > 15
    one, other = RandomMatchedPolicy(sizes, 3), RandomMatchedPolicy(sizes, 3)
    assert one.act(situation) == other.act(situation)


def test_nearest_in_size_is_by_ratio() -> None:
    cards = [BlueprintCard(str(size), BlueprintKind.OTHER, size) for size in (1, 10, 90, 110, 1000)]
    assert [card.name for card in nearest_in_size(cards, 100)] == ["110", "90", "10"]


def test_a_blind_copy_skips_what_is_illegal() -> None:
    episodes = make_env("toy").episodes
    episodes.seed(0, 0)
    episodes.begin(0)
    slot = episodes.space.slot_config.slot_ids[0]
    blueprint = episodes.space.blueprints[0]
    policy = BlindPolicy(f"germinate {blueprint}@{slot} t=0; fossilize {slot} t=1; advance {slot} t=2")
    done = []
    for _ in range(4):
        action = policy.act(episodes.situation(0))
        done.append(action.op)
        episodes.step(episodes.encode(0, action)[None])
    assert done == [LifecycleOp.GERMINATE, LifecycleOp.WAIT, LifecycleOp.ADVANCE, LifecycleOp.WAIT]


def test_an_architecture_is_built_in_before_the_first_step(tiny: str) -> None:
    world = EngineWorld(1)
    begin_host(world, 0, tiny, 0)
    host = world.host(0)
    for slot in ("blocks.0", "blocks.1", "blocks.2"):  # more than may be live at a time
        build_in(host.model, replace(SEED, slot=slot, blueprint="conv_small"))
    assert [slot.stage for slot in host.slots] == [Stage.FOSSILIZED] * 3
    assert [slot.alpha for slot in host.slots] == [1.0] * 3
    assert {group["lr"] for group in host.optimizer.param_groups if group["params"]} == {1e-2}
    before = [slot.seed.scale.clone() for slot in host.slots if slot.seed is not None]
    run_epoch(world)
    after = [slot.seed.scale for slot in host.slots if slot.seed is not None]
    assert not any(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_scratch_player_plays_as_many_hosts_as_it_was_given() -> None:
    with pytest.raises(ValueError, match="num_envs is 2; expected 1"):
        ScratchPlayer([(SEED,)]).begin(2)
