"""Probe and keep, cheap first; and only after a drop."""

import pytest

from esper.kasmina import GrowthRules
from esper.tamiyo.rules.heuristics import DetectThenProbePolicy, ProbeAndKeepPolicy
from watched import ModelHost, live, small_model


def test_candidates_are_tried_in_order_and_judged_at_age_four() -> None:
    """mixer@2 fails, conv_small@2 is kept, mixer@1 fails, mixer@0 could not be judged any more."""
    helps = {("blocks.2", "conv_small"): 0.9}
    host = ModelHost(small_model("series"), measure=lambda _, slot, what: helps.get((slot, what), 0.0))
    assert live(ProbeAndKeepPolicy(), host, horizon=24) == [
        (4, "germinate mixer@blocks.2"),
        (5, "advance blocks.2"),
        (8, "prune blocks.2"),
        (10, "germinate conv_small@blocks.2"),  # after two epochs of embargo
        (11, "advance blocks.2"),
        (14, "fossilize blocks.2"),
        (15, "germinate mixer@blocks.1"),
        (16, "advance blocks.1"),
        (19, "prune blocks.1"),
    ]


def test_a_slot_that_was_kept_is_not_tried_again() -> None:
    host = ModelHost(small_model("series"), measure=lambda *_: 0.9)
    did = [what for _, what in live(ProbeAndKeepPolicy(), host, horizon=40) if what.startswith("germinate")]
    assert did == ["germinate mixer@blocks.2", "germinate mixer@blocks.1", "germinate mixer@blocks.0"]


@pytest.mark.parametrize(("extra", "end"), [(1e-6, "fossilize"), (-1e-6, "prune")])
def test_the_bar_is_the_margin_and_the_rent(extra: float, end: str) -> None:
    host = ModelHost(small_model("series"))
    cost = next(card.parameters for card in host.cards["blocks.2"] if card.name == "mixer")
    bar = 0.02 + 0.01 * cost / host.host_parameters
    host.measure = lambda *_: bar + extra
    assert live(ProbeAndKeepPolicy(), host, horizon=10)[-1] == (8, f"{end} blocks.2")


def test_what_is_not_offered_falls_back_to_the_cheapest() -> None:
    host = ModelHost(small_model("flat"), measure=lambda *_: 0.0)  # no mixer and no conv on flat activations
    did = [what for _, what in live(ProbeAndKeepPolicy(), host, horizon=60) if what.startswith("germinate")]
    offers = sorted(
        (card.parameters, -position, f"germinate {card.name}@{slot}")
        for position, (slot, cards) in enumerate(host.cards.items())
        for card in cards
    )
    assert did == [what for *_, what in offers[:4]]


def test_a_fallback_leaves_the_other_candidates_alone() -> None:
    host = ModelHost(small_model("series"), measure=lambda *_: 0.0)
    cheapest, second = sorted(card.parameters for cards in host.cards.values() for card in cards)[:2]
    assert cheapest < second
    name = next(card.name for card in host.cards["blocks.0"] if card.parameters == cheapest)
    policy = ProbeAndKeepPolicy(candidates=["nothing@0", f"{name}@0", "mixer@9"])
    did = [what for _, what in live(policy, host, horizon=60) if what.startswith("germinate")]
    assert did[1] == f"germinate {name}@blocks.0"
    assert len(set(did)) == 3


def test_a_candidate_that_costs_too_much_is_passed_over() -> None:
    host = ModelHost(small_model("series"), measure=lambda *_: 0.0)
    costs = {card.name: card.parameters for card in host.cards["blocks.2"]}
    budget = costs["mixer"] - 1
    assert costs["conv_small"] <= budget
    done = live(ProbeAndKeepPolicy(), host, horizon=16, budget=budget)
    assert done[0] == (4, "germinate conv_small@blocks.2")


class Broken(ModelHost):
    """Gradients of seeds are never finite, so none can be advanced."""

    def epoch(self) -> None:
        super().epoch()
        for name, slot in self.model.slots.items():
            if slot.stage.is_live:
                self.model.report(name, gradients_finite=False)


def test_a_candidate_that_cannot_be_advanced_is_pruned() -> None:
    done = live(ProbeAndKeepPolicy(), Broken(small_model("series"), measure=lambda *_: 0.9), horizon=16)
    assert done[:3] == [
        (4, "germinate mixer@blocks.2"),
        (8, "prune blocks.2"),
        (10, "germinate conv_small@blocks.2"),
    ]


def test_the_verdict_is_final() -> None:
    """A seed that paid when it was judged is kept, though it does not pay when that becomes legal."""
    rules = GrowthRules(min_holding_epochs=4)
    host = ModelHost(small_model("series", rules), measure=lambda epoch, *_: 0.9 if epoch <= 8 else -0.9)
    assert live(ProbeAndKeepPolicy(), host, horizon=13)[-1] == (11, "fossilize blocks.2")


def test_detection_comes_before_probing() -> None:
    steady = ModelHost(small_model("series"), accuracy=lambda epoch: 0.8 - 0.14 * (epoch > 7))
    assert live(DetectThenProbePolicy(), steady, horizon=20) == []
    shifted = ModelHost(
        small_model("series"), accuracy=lambda epoch: 0.8 - 0.2 * (epoch > 7), measure=lambda *_: 0.9
    )
    done = live(DetectThenProbePolicy(), shifted, horizon=40)
    assert done[:3] == [
        (8, "germinate mixer@blocks.2"),
        (9, "advance blocks.2"),
        (12, "fossilize blocks.2"),
    ]


def test_it_watches_again_when_all_was_tried() -> None:
    def twice(epoch: int) -> float:
        return 0.9 - 0.3 * (epoch > 5) - 0.3 * (epoch > 30)

    host = ModelHost(small_model("series"), accuracy=twice, measure=lambda *_: 0.0)
    began = [
        epoch
        for epoch, what in live(DetectThenProbePolicy(candidates=["mixer@2"]), host, horizon=40)
        if what.startswith("germinate")
    ]
    assert began == [6, 31]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="candidate is 'mixer'; expected blueprint@position"):
        ProbeAndKeepPolicy(candidates=["mixer"])
    with pytest.raises(ValueError, match="judge_age is 0"):
        ProbeAndKeepPolicy(judge_age=0)
    with pytest.raises(ValueError, match="drop is 0"):
        DetectThenProbePolicy(drop=0)
