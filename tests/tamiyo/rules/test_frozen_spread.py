"""Where frozen_spread grows, what, and how a budget is divided."""

import pytest

from esper.kasmina import GrowthRules
from esper.leyline import Layout, Stage
from esper.tamiyo.rules.by_layout import FrozenSpreadPolicy
from tiny import SLOT, tiny_model
from watched import KINDS, ModelHost, live, small_model

USUAL = {"flat": "mlp_small", "tokens": "mlp_small", "series": "conv_small", "image": "conv_small"}


def germinations(done: list[tuple[int, str]]) -> list[str]:
    return [what.removeprefix("germinate ") for _, what in done if what.startswith("germinate")]


@pytest.mark.parametrize("kind", KINDS)
def test_the_usual_kind_in_every_slot_but_the_last(kind: str) -> None:
    done = live(FrozenSpreadPolicy(), ModelHost(small_model(kind)), horizon=20)
    assert germinations(done) == [f"{USUAL[kind]}@blocks.0", f"{USUAL[kind]}@blocks.1"]
    assert [what for _, what in done] == [
        f"germinate {USUAL[kind]}@blocks.0",
        "advance blocks.0",
        f"germinate {USUAL[kind]}@blocks.1",
        "advance blocks.1",
    ]


@pytest.mark.parametrize("layout", Layout)
def test_every_layout_has_the_usual_kind_of_its_family(layout: Layout) -> None:
    vectors = (Layout.TOKENS, Layout.TIME_MAJOR, Layout.FLAT, Layout.ROWS)
    usual, largest = ("mlp_small", "mlp") if layout in vectors else ("conv_small", "conv_light")
    model = tiny_model(layout, 7)
    assert model.slots[SLOT].layout is layout
    assert germinations(live(FrozenSpreadPolicy(), ModelHost(model), horizon=20)) == [f"{usual}@{SLOT}"]
    done = live(FrozenSpreadPolicy(), ModelHost(tiny_model(layout, 7)), horizon=20, budget=10**6)
    assert germinations(done) == [f"{largest}@{SLOT}"]


def test_a_single_slot_is_used() -> None:
    done = live(FrozenSpreadPolicy(), ModelHost(small_model("series", slots=1)), horizon=20)
    assert germinations(done) == ["conv_small@blocks.0"]


def test_more_places_than_may_live_at_once() -> None:
    host = ModelHost(small_model("series", GrowthRules(max_live_seeds=1), slots=5))
    done = live(FrozenSpreadPolicy(), host, horizon=40)
    assert [what.split("@")[1] for what in germinations(done)] == [f"blocks.{place}" for place in range(4)]
    stages = [slot.stage for slot in host.snapshots()]
    assert stages == [Stage.FOSSILIZED] * 3 + [Stage.HOLDING, Stage.DORMANT]


def test_a_budget_is_divided_evenly_and_spent_on_the_largest_kind_that_fits() -> None:
    host = ModelHost(small_model("series"))
    costs = {slot: {card.name: card.parameters for card in cards} for slot, cards in host.cards.items()}
    kinds = ("conv_light", "conv_small", "bottleneck", "lora", "norm")
    for budget in (2 * costs["blocks.1"]["conv_light"], 2 * costs["blocks.1"]["bottleneck"], 8):
        host = ModelHost(small_model("series"))
        grown = germinations(live(FrozenSpreadPolicy(), host, horizon=20, budget=budget))
        expected = []
        for slot in ("blocks.0", "blocks.1"):
            fitting = [kind for kind in kinds if costs[slot][kind] <= budget / 2]
            expected.append(f"{max(fitting, key=costs[slot].__getitem__)}@{slot}")
        assert grown == expected
        assert 0 < host.added_parameters <= budget
    host = ModelHost(small_model("series"))
    assert live(FrozenSpreadPolicy(), host, horizon=20, budget=2) == []


@pytest.mark.parametrize(("horizon", "first"), [(6, 0), (9, 0), (10, 1), (19, 1), (20, 2), (100, 2)])
def test_the_head_is_alone_for_a_tenth_of_the_run_but_not_for_long(horizon: int, first: int) -> None:
    policy = FrozenSpreadPolicy()
    assert live(policy, ModelHost(small_model("series")), horizon=horizon)[0] == (
        first,
        "germinate conv_small@blocks.0",
    )
    assert policy.may_begin(horizon) == range(first, horizon - 4)


def test_nothing_is_begun_that_could_not_come_to_full_strength() -> None:
    assert live(FrozenSpreadPolicy(), ModelHost(small_model("series")), horizon=4) == []
    assert germinations(live(FrozenSpreadPolicy(), ModelHost(small_model("series")), horizon=5))
