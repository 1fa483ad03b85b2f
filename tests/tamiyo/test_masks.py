"""F1: a mask allows exactly what can be executed, over random lives of real models in one batch."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.kasmina import GrowthRules
from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_NAMES,
    STYLES,
    TEMPOS,
    ActionSpec,
    DecisionSettings,
    LifecycleOp,
    operations,
)
from esper.tamiyo import GrowthSpace, Observer, decode, illegal_choice
from esper.tamiyo.actions import encode
from esper.tamiyo.distributions import FactoredDistribution, LayoutTensors
from watched import KINDS, ModelHost, paper_host, small_model


def random_action(host: ModelHost, draw: st.DataObject, *, retire: bool) -> ActionSpec:
    """Any legal action, growing more often than not."""
    legal, known = host.legal_operations(), operations(retire=retire)[1:]
    choices = [(op, slot) for slot, here in legal.items() for op in known if op in here.operations]
    if not choices or not draw.draw(st.integers(0, 3)):
        return ActionSpec()
    op, slot = draw.draw(st.sampled_from(choices))
    here = legal[slot]
    return ActionSpec(
        op,
        slot,
        draw.draw(st.sampled_from(here.blueprints)) if here.blueprints else None,
        draw.draw(st.sampled_from(here.styles or STYLES)),
        draw.draw(st.sampled_from(TEMPOS)),
        draw.draw(st.sampled_from(here.alpha_targets or ALPHA_TARGETS)),
        draw.draw(st.sampled_from(ALPHA_SPEEDS)),
        draw.draw(st.sampled_from(ALPHA_CURVES)),
    )


def require_exact(observer: Observer, env_idx: int, host: ModelHost) -> None:
    """Every entry of the mask that an action can reach is what `legal_operations` says."""
    space = observer.space
    flat = torch.from_numpy(observer.masks())[env_idx]
    mask = {head: space.action_layout.block(flat, head).numpy() for head in HEAD_NAMES}
    legal = list(host.legal_operations().values())
    for op in operations(retire=space.retire):
        slots = [op in here.operations for here in legal]
        assert mask["op"][0, op] == any(slots)
        if op is not LifecycleOp.WAIT and any(slots):
            assert mask["slot"][op].tolist() == slots + [False] * (space.slot_count - len(slots))
    for slot, here in enumerate(legal):
        if LifecycleOp.GERMINATE in here.operations:
            offered = {
                name
                for name, allowed in zip(space.blueprints, mask["blueprint"][slot], strict=True)
                if allowed
            }
            assert offered == set(here.blueprints)
        if here.operations & {LifecycleOp.GERMINATE, LifecycleOp.SET_ALPHA_TARGET}:
            assert mask["style"][slot].tolist() == [style in here.styles for style in STYLES]
            targets = [target in here.alpha_targets for target in ALPHA_TARGETS]
            assert mask["alpha_target"][slot].tolist() == targets
    assert all(mask[head].all() for head in ("tempo", "alpha_speed", "alpha_curve"))
    assert all(mask[head].any(axis=-1).all() for head in HEAD_NAMES)


@settings(max_examples=25, deadline=None, derandomize="CI" in os.environ)
@given(
    draw=st.data(),
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 4)), min_size=1, max_size=3),
    max_live_seeds=st.integers(1, 3),
    embargo_epochs=st.integers(0, 2),
    retire=st.booleans(),
)
def test_a_mask_allows_exactly_what_can_be_executed(
    draw: st.DataObject, kinds: list[tuple[str, int]], max_live_seeds: int, embargo_epochs: int, retire: bool
) -> None:
    rules = GrowthRules(max_live_seeds=max_live_seeds, embargo_epochs=embargo_epochs, min_prune_age=1)
    hosts = [ModelHost(small_model(kind, rules, slots)) for kind, slots in kinds]
    observer = Observer(GrowthSpace.covering(hosts), len(hosts), decisions=DecisionSettings(retire=retire))
    space = observer.space
    for env_idx, host in enumerate(hosts):
        observer.begin(env_idx, host, horizon=20)
    for _ in range(8):
        for env_idx, host in enumerate(hosts):
            require_exact(observer, env_idx, host)
            action = random_action(host, draw, retire=retire)
            indices = encode(action, space, host.slot_config)
            assert illegal_choice(indices, observer.masks()[env_idx], space) is None
            host.apply(decode(indices, space, host.slot_config, host.cards))
            host.epoch()
            observer.record(env_idx, host, action.op)
            assert observer.situation(env_idx).signals.added_parameters == sum(
                reading.parameters for reading in host.readings()
            )


@pytest.mark.parametrize("retire", [False, True])
@pytest.mark.parametrize(
    "frozen", [{}, {"style": "linear_add", "tempo": 5, "alpha_target": 1.0, "alpha_speed": 8}]
)
def test_whatever_the_mask_lets_through_is_executed(frozen: dict[str, str | float], retire: bool) -> None:
    """Random agents that know nothing but the mask live whole lives without a refusal."""
    hosts = [
        ModelHost(small_model(kind, slots=slots)) for kind, slots in zip(KINDS, (2, 3, 1, 3), strict=True)
    ]
    observer = Observer(
        GrowthSpace.covering(hosts), len(hosts), decisions=DecisionSettings(frozen, retire=retire)
    )
    space = observer.space
    constants = LayoutTensors(space.action_layout, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for env_idx, host in enumerate(hosts):
        observer.begin(env_idx, host, horizon=200)
    seen = set()
    for _ in range(200):
        mask = torch.from_numpy(observer.masks())
        joint = FactoredDistribution(constants, torch.zeros(mask.shape), mask)
        for env_idx, (host, indices) in enumerate(zip(hosts, joint.sample(generator).tolist(), strict=True)):
            action = decode(indices, space, host.slot_config, host.cards)
            host.apply(action)
            host.epoch()
            observer.record(env_idx, host, action.op)
            seen.add(action.op)
            if action.op is LifecycleOp.GERMINATE and frozen:
                assert (action.style, action.tempo, action.alpha_target) == (STYLES[0], TEMPOS[1], 1.0)
            if action.op in (LifecycleOp.PRUNE, LifecycleOp.RETIRE) and frozen:
                assert action.alpha_speed == ALPHA_SPEEDS[3]
    # every seed is at the one target there is, so none can be sent elsewhere
    known = set(operations(retire=retire))
    assert seen == known - ({LifecycleOp.SET_ALPHA_TARGET} if frozen else set())


def test_a_frozen_target_leaves_only_the_way_there() -> None:
    for current, legal in ((1.0, False), (0.5, True)):
        host = paper_host("a")
        host.rows = [host.rows[0]._replace(legal=0b000101, alpha_target=current, style=1)]
        space = GrowthSpace.covering([host])
        observer = Observer(
            space, 1, decisions=DecisionSettings({"alpha_target": 1.0, "style": "linear_add"})
        )
        observer.begin(0, host, horizon=5)
        mask, layout = torch.from_numpy(observer.masks()), space.action_layout
        assert layout.block(mask, "op")[0, 0, LifecycleOp.SET_ALPHA_TARGET].item() is legal
        if legal:
            assert layout.block(mask, "alpha_target")[0, 0].tolist() == [False, False, True]
            assert layout.block(mask, "style")[0, 0].tolist() == [True, False, False, False]


def test_masks_of_envs_do_not_mix() -> None:
    one, other = paper_host("a", "b"), paper_host("a", "b")
    other.rows = [row._replace(legal=1) for row in other.rows]
    observer = Observer(GrowthSpace.covering([one, other]), 2)
    observer.begin(0, one, horizon=3)
    observer.begin(1, other, horizon=3)
    legal = torch.from_numpy(observer.masks())[:, :6]
    assert legal.tolist() == [[True, True, *[False] * 4], [True, *[False] * 5]]
    assert np.array_equal(observer.masks(), observer.masks())
