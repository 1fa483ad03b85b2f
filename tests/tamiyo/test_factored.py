"""C11 for whole decisions: enumeration, sampling against evaluating, irrelevant heads."""

import itertools

import pytest
import torch
from torch import Tensor

from esper.leyline import CAUSAL_TABLE, HEAD_NAMES, LifecycleOp, SlotConfig, operations
from esper.tamiyo import ActionLayout
from esper.tamiyo.distributions import FactoredDistribution, LayoutTensors
from esper.tamiyo.layout import compute_causal_masks, growth_actions, growth_layout, growth_log_probs
from synthetic_growth import random_growth_masks

SLOTS = SlotConfig(("stem", "body", "head"))
SMALL = ActionLayout(
    names=("op", "slot", "what"),
    sizes=(3, 2, 4),
    parents={"slot": "op", "what": "slot"},
    causal_table={0: ("op",), 1: ("op", "slot"), 2: ("op", "slot", "what")},
)


def distribution(layout: ActionLayout, batch: int, seed: int, *, floor: float = 0.0) -> FactoredDistribution:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, layout.width, generator=generator) * 3
    if layout.names == HEAD_NAMES:
        mask = random_growth_masks(layout, batch, generator)
    else:
        mask = torch.rand(batch, layout.width, generator=generator) < 0.6
        for name in layout.names:
            layout.block(mask, name)[..., 0] = True
    return FactoredDistribution(LayoutTensors(layout, torch.device("cpu")), logits, mask, floor=floor)


def decisions(layout: ActionLayout) -> list[tuple[int, ...]]:
    """Every distinct decision: irrelevant heads at their canonical choice 0."""
    ranges = [range(size) for size in layout.sizes]
    relevance = layout.relevance
    return [
        choice
        for choice in itertools.product(*ranges)
        if all(relevance[choice[0], head] or not value for head, value in enumerate(choice))
    ]


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_enumerated_decisions_sum_to_one(floor: float) -> None:
    joint = distribution(SMALL, 5, seed=0, floor=floor)
    total = torch.zeros(5)
    for choice in decisions(SMALL):
        total += joint.evaluate(torch.tensor(choice).expand(5, 3)).log_prob.sum(-1).exp()
    torch.testing.assert_close(total, torch.ones(5))


def test_growth_decisions_sum_to_one() -> None:
    layout = growth_layout(SlotConfig(("a", "b")), blueprints=2)
    joint = distribution(layout, 1, seed=4)
    op_is_legal = layout.block(joint.mask, "op")[0, 0]
    choices = torch.tensor([choice for choice in decisions(layout) if op_is_legal[choice[0]]])
    many = FactoredDistribution(
        joint.constants, joint.logits.expand(len(choices), -1), joint.mask.expand(len(choices), -1)
    )
    assert many.evaluate(choices).log_prob.sum(-1).exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_sampled_decisions_are_legal_and_canonical() -> None:
    layout = growth_layout(SLOTS, blueprints=5)
    joint = distribution(layout, 997, seed=1)
    actions = joint.sample(torch.Generator().manual_seed(2))
    result = joint.evaluate(actions)
    assert torch.isfinite(result.log_prob).all()
    assert torch.equal(
        result.relevant, torch.stack(tuple(compute_causal_masks(actions[:, 0]).values()), dim=-1)
    )
    assert (actions[~result.relevant] == 0).all()
    assert (result.log_prob[~result.relevant] == 0).all()
    assert (result.entropy[~result.relevant] == 0).all()
    assert (result.legal_choices[~result.relevant] == 1).all()
    by_head = growth_actions(actions)
    slot_rows = layout.block(joint.mask, "slot")
    chosen = slot_rows[torch.arange(997), by_head["op"], by_head["slot"]]
    assert (chosen | (by_head["op"] == LifecycleOp.WAIT)).all()
    rows = layout.block(joint.mask, "blueprint")[torch.arange(997), by_head["slot"]]
    legal = rows.gather(1, by_head["blueprint"].unsqueeze(1)).squeeze(1)
    assert (legal | (by_head["op"] != LifecycleOp.GERMINATE)).all()
    assert (growth_log_probs(result.log_prob)["op"] <= 0).all()


@pytest.mark.parametrize("retire", [False, True])
def test_relevance_follows_the_causal_table(retire: bool) -> None:
    layout = growth_layout(SLOTS, blueprints=5, retire=retire)
    assert layout.sizes[0] == len(CAUSAL_TABLE) - (not retire)
    for op in operations(retire=retire):
        row = [name for name, relevant in zip(HEAD_NAMES, layout.relevance[op], strict=True) if relevant]
        assert row == list(CAUSAL_TABLE[op])


def test_sampling_frequencies_match_the_evaluated_probabilities() -> None:
    joint = distribution(SMALL, 1, seed=3)
    many = FactoredDistribution(joint.constants, joint.logits.expand(40000, -1), joint.mask.expand(40000, -1))
    actions = many.sample(torch.Generator().manual_seed(5))
    for choice in decisions(SMALL):
        probability = joint.evaluate(torch.tensor([choice])).log_prob.sum().exp().item()
        seen = (actions == torch.tensor(choice)).all(-1).float().mean().item()
        assert seen == pytest.approx(probability, abs=0.012), choice


def test_heads_get_gradient_exactly_where_relevant() -> None:
    layout = growth_layout(SLOTS, blueprints=5)
    joint = distribution(layout, 211, seed=6)
    joint.logits.requires_grad_()
    actions = joint.sample(torch.Generator().manual_seed(7))
    result = joint.evaluate(actions)
    (result.log_prob.sum() + result.entropy.sum()).backward()
    assert joint.logits.grad is not None
    assert torch.isfinite(joint.logits.grad).all()
    for head, name in enumerate(HEAD_NAMES):
        touched = layout.block(joint.logits.grad, name).abs().sum((-1, -2)) > 0
        assert torch.equal(touched, result.has_choice[:, head]), name


def test_a_head_that_does_not_matter_may_hold_any_choice() -> None:
    layout = growth_layout(SLOTS, blueprints=5)
    joint = distribution(layout, 211, seed=6)
    joint.logits.requires_grad_()
    generator = torch.Generator().manual_seed(7)
    actions = joint.sample(generator)
    expected = joint.evaluate(actions)
    anything = torch.randint(10_000, actions.shape, generator=generator) % torch.tensor(layout.sizes)
    left_standing = torch.where(expected.relevant, actions, anything)
    assert not torch.equal(left_standing, actions)
    found = joint.evaluate(left_standing)
    assert torch.equal(found.log_prob, expected.log_prob)
    found.log_prob.sum().backward()
    assert joint.logits.grad is not None
    assert torch.isfinite(joint.logits.grad).all()


def test_mode_takes_the_likeliest_choice_head_by_head() -> None:
    joint = distribution(SMALL, 13, seed=8)
    best = joint.mode()
    log_prob = joint.evaluate(best).log_prob
    for choice in decisions(SMALL):
        other = joint.evaluate(torch.tensor(choice).expand(13, 3)).log_prob
        assert (log_prob[:, 0] >= other[:, 0]).all()


def test_a_relevant_row_without_a_legal_choice_raises() -> None:
    joint = distribution(SMALL, 2, seed=9)
    SMALL.block(joint.mask, "slot")[1] = False
    with pytest.raises(ValueError, match="no legal choice"):
        joint.evaluate(torch.tensor([[1, 0, 0], [1, 0, 0]]))
    # The same row is no matter where the operation makes it irrelevant.
    assert joint.evaluate(torch.tensor([[0, 0, 0], [0, 0, 0]])).log_prob[:, 1].tolist() == [0.0, 0.0]


def test_forced_means_no_relevant_head_had_a_choice() -> None:
    mask = SMALL.flatten_masks(
        {
            "op": torch.tensor([[True, False, False], [False, True, False], [False, True, False]]),
            "slot": torch.tensor([[[True, True]] * 3, [[True, False]] * 3, [[True, True]] * 3]),
        }
    )
    joint = FactoredDistribution(LayoutTensors(SMALL, torch.device("cpu")), torch.zeros(3, SMALL.width), mask)
    actions = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0]])
    assert joint.evaluate(actions).forced.tolist() == [True, True, False]


def bad_mask(**masks: Tensor) -> Tensor:
    return SMALL.flatten_masks(masks)


def test_flatten_masks_names_what_is_wrong() -> None:
    op = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"masks names \['colour'\]"):
        bad_mask(op=op, colour=op)
    with pytest.raises(ValueError, match="'op' ends in 2; expected 3"):
        bad_mask(op=op[:, :2])
    with pytest.raises(ValueError, match=r"'op' has dtype torch.float32"):
        bad_mask(op=op.float())
    with pytest.raises(ValueError, match="mask of head 'slot' has shape"):
        bad_mask(op=op, slot=torch.ones(2, 5, 2, dtype=torch.bool))


def test_layouts_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="repeats a head"):
        ActionLayout(names=("a", "a"), sizes=(2, 2))
    with pytest.raises(ValueError, match="sampled before its child"):
        ActionLayout(names=("a", "b"), sizes=(2, 2), parents={"a": "b"})
    with pytest.raises(ValueError, match="has rows for"):
        ActionLayout(names=("a", "b"), sizes=(2, 2), causal_table={0: ("a",)})
    with pytest.raises(ValueError, match=r"has rows for \[0, 2\]; expected 0\.\.1"):
        ActionLayout(names=("a", "b"), sizes=(2, 2), causal_table={0: ("a",), 2: ("a",)})
    with pytest.raises(ValueError, match="leaves out 'a'"):
        ActionLayout(names=("a", "b"), sizes=(1, 2), causal_table={0: ("b",)})
    with pytest.raises(ValueError, match="slot layouts differ"):
        growth_layout(SLOTS, 2).require_same(
            growth_layout(SlotConfig(("body", "stem", "head")), 2), ours="the policy", theirs="the buffer"
        )
