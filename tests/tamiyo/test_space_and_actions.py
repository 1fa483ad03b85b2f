"""Spaces that cover hosts, and decisions between words and numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import (
    ALPHA_CURVES,
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_NAMES,
    STYLES,
    TEMPOS,
    ActionSpec,
    Curve,
    LifecycleOp,
    SlotConfig,
    Style,
)
from esper.tamiyo import GrowthSpace, decode, illegal_choice
from esper.tamiyo.actions import encode
from watched import paper_host

SMALL = paper_host("stem", blueprints=("norm",))
LARGE = paper_host("a", "b", "c", blueprints=("conv", "mixer"))
SPACE = GrowthSpace.covering([SMALL, LARGE])


def test_a_space_covers_the_most_slots_and_every_blueprint() -> None:
    assert SPACE.slot_config.slot_ids == ("a", "b", "c")
    assert SPACE.blueprints == ("conv", "mixer", "norm")
    assert SPACE.action_layout.sizes == (6, 3, 3, 4, 3, 3, 4, 5)
    assert GrowthSpace.covering([LARGE, SMALL]) == SPACE  # whatever the order


def test_slots_are_numbered_where_the_largest_hosts_disagree() -> None:
    space = GrowthSpace.covering([LARGE, paper_host("a", "b", "head"), SMALL])
    assert space.slot_config.slot_ids == ("slot0", "slot1", "slot2")
    space.require_fits(LARGE)
    assert space.misfit(SlotConfig(("x", "y", "z")), ("norm",)) is None  # numbers take any names


def test_fewer_slots_and_fewer_blueprints_fit() -> None:
    SPACE.require_fits(SMALL)
    assert SPACE.misfit(SlotConfig(("other", "names")), ()) is None


def test_what_does_not_fit_is_named() -> None:
    too_many = (
        r"does not fit the space: hosts have 4 slots \(a, b, c, d\), and there are places for 3 \(a, b, c\)"
    )
    with pytest.raises(ValueError, match=too_many):
        SPACE.require_fits(paper_host("a", "b", "c", "d"))
    with pytest.raises(
        ValueError, match=r"hosts have the slots c, b, a, and the places are those of a, b, c"
    ):
        SPACE.require_fits(paper_host("c", "b", "a"))
    with pytest.raises(ValueError, match="hosts are offered lora, and only conv, mixer, norm are known"):
        SPACE.require_fits(paper_host("a", blueprints=("lora", "norm")))
    with pytest.raises(ValueError, match="hosts is empty"):
        GrowthSpace.covering([])
    with pytest.raises(ValueError, match="blueprints is empty"):
        GrowthSpace(SMALL.slot_config, ())
    with pytest.raises(ValueError, match="blueprints names norm more than once"):
        GrowthSpace(SMALL.slot_config, ("norm", "conv", "norm"))


def test_encoding_is_canonical() -> None:
    action = ActionSpec(LifecycleOp.PRUNE, "b", "norm", Style.GATE, 8, 0.7, 5, Curve.COSINE)
    # op, slot, blueprint, style, tempo, alpha_target, alpha_speed, alpha_curve: what PRUNE ignores is 0
    assert encode(action, SPACE, LARGE.slot_config).tolist() == [3, 1, 0, 0, 0, 0, 2, 1]
    assert encode(ActionSpec(slot="nowhere"), SPACE, LARGE.slot_config).tolist() == [0] * 8
    germinate = ActionSpec(LifecycleOp.GERMINATE, "c", "mixer", Style.GATE, 8, 0.7, 5, Curve.COSINE)
    assert encode(germinate, SPACE, LARGE.slot_config).tolist() == [1, 2, 1, 3, 2, 1, 0, 0]


actions = st.builds(
    ActionSpec,
    op=st.sampled_from(LifecycleOp),
    slot=st.sampled_from(LARGE.slot_config.slot_ids),
    blueprint=st.sampled_from(("conv", "mixer")),
    style=st.sampled_from(STYLES),
    tempo=st.sampled_from(TEMPOS),
    alpha_target=st.sampled_from(ALPHA_TARGETS),
    alpha_speed=st.sampled_from(ALPHA_SPEEDS),
    alpha_curve=st.sampled_from(ALPHA_CURVES),
)


@settings(deadline=None)
@given(action=actions)
def test_decoding_gives_back_what_matters(action: ActionSpec) -> None:
    space = replace(SPACE, retire=True)
    indices = encode(action, space, LARGE.slot_config)
    decoded = decode(indices, space, LARGE.slot_config, LARGE.cards)
    assert decoded.op is action.op
    assert encode(decoded, space, LARGE.slot_config).tolist() == indices.tolist()
    if action.op is not LifecycleOp.RETIRE:
        assert encode(action, SPACE, LARGE.slot_config).tolist() == indices.tolist()
    if action.op is LifecycleOp.GERMINATE:
        assert (decoded.slot, decoded.blueprint, decoded.tempo) == (
            action.slot,
            action.blueprint,
            action.tempo,
        )
        assert decoded.alpha_speed == ActionSpec().alpha_speed


def test_a_space_without_retire_refuses_it_by_name() -> None:
    assert replace(SPACE, retire=True).action_layout.sizes == (7, 3, 3, 4, 3, 3, 4, 5)
    with pytest.raises(ValueError, match=r"op is RETIRE; expected one of WAIT, GERMINATE, .*, ADVANCE$"):
        encode(ActionSpec(LifecycleOp.RETIRE, "a"), SPACE, LARGE.slot_config)


def test_numbers_that_mean_nothing_are_named() -> None:
    with pytest.raises(ValueError, match=r"op is choice 6; expected 0\.\.5 \(WAIT, GERMINATE"):
        decode([6, *[0] * 7], SPACE, LARGE.slot_config, LARGE.cards)
    with pytest.raises(ValueError, match=r"slot is choice 1; expected 0\.\.0 \(stem\)"):
        decode([5, 1, *[0] * 6], SPACE, SMALL.slot_config, SMALL.cards)
    with pytest.raises(ValueError, match="'conv' is not offered at slot 'stem'; expected one of norm"):
        decode([1, 0, 0, *[0] * 5], SPACE, SMALL.slot_config, SMALL.cards)
    with pytest.raises(ValueError, match="indices has 3 entries; expected one for each of"):
        decode([0, 0, 0], SPACE, SMALL.slot_config, SMALL.cards)
    with pytest.raises(ValueError, match="slot is 'tail'; expected one of a, b, c"):
        encode(ActionSpec(LifecycleOp.ADVANCE, "tail"), SPACE, LARGE.slot_config)
    with pytest.raises(ValueError, match="blueprint is None; GERMINATE needs one"):
        encode(ActionSpec(LifecycleOp.GERMINATE, "a"), SPACE, LARGE.slot_config)
    with pytest.raises(ValueError, match="tempo is 4; expected one of 3, 5, 8"):
        encode(ActionSpec(LifecycleOp.GERMINATE, "a", "conv", tempo=4), SPACE, LARGE.slot_config)


def test_the_first_illegal_choice_is_told_in_words() -> None:
    layout = SPACE.action_layout
    mask = layout.all_legal(1)
    layout.block(mask, "op")[0, 0, LifecycleOp.ADVANCE] = False
    layout.block(mask, "slot")[0, LifecycleOp.GERMINATE, 0] = False
    layout.block(mask, "blueprint")[0, 1] = mask.new_tensor([False, True, False])
    row = mask[0].numpy()
    names = {head: number for number, head in enumerate(HEAD_NAMES)}

    def told(**choices: int) -> object:
        indices = np.zeros(len(HEAD_NAMES), dtype=np.int64)
        for head, choice in choices.items():
            indices[names[head]] = choice
        found = illegal_choice(indices, row, SPACE)
        return None if found is None else (found.head, found.value, found.legal)

    assert told() is None
    assert told(op=0, slot=99) is None  # WAIT makes it irrelevant
    ops = ("WAIT", "GERMINATE", "SET_ALPHA_TARGET", "PRUNE", "FOSSILIZE")
    assert told(op=5, slot=99) == ("op", "ADVANCE", ops)
    assert told(op=-1) == ("op", "-1", ops)
    assert told(op=1, slot=0) == ("slot", "a", ("b", "c"))
    assert told(op=1, slot=7) == ("slot", "7", ("b", "c"))
    assert told(op=1, slot=1, blueprint=2) == ("blueprint", "norm", ("mixer",))
    assert told(op=1, slot=1, blueprint=1) is None
    assert told(op=3, slot=0, alpha_speed=4) == ("alpha_speed", "4", ("0", "3", "5", "8"))
    with pytest.raises(ValueError, match=r"mask_row has shape \(3,\)"):
        illegal_choice([0] * 8, row[:3], SPACE)
