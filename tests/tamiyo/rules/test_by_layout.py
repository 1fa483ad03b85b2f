"""What the rule by_layout tries, when it begins, and what it keeps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from esper.kasmina import GrowingModel, GrowthRules
from esper.leyline import Layout, LifecycleOp, Situation, Stage
from esper.tamiyo import GrowthSpace, Observer
from esper.tamiyo.rules import rule_policy
from esper.tamiyo.rules.by_layout import (
    ByLayoutPolicy,
    FrozenSpreadPolicy,
    LiveOnPolicy,
    noise_of,
    suited_candidates,
)
from esper.tamiyo.rules.policy import comparison
from tiny import SLOT, tiny_model
from watched import KINDS, ModelHost, live, small_model


def situation_of(model: GrowingModel) -> Situation:
    """A host in the third of 20 epochs, with nothing grown."""
    host = ModelHost(model)
    observer = Observer(GrowthSpace.covering([host]), 1)
    observer.begin(0, host, horizon=20)
    for _ in range(3):
        host.epoch()
        observer.record(0, host, LifecycleOp.WAIT)
    return observer.situation(0)


def at(situation: Situation, **signals: Any) -> Situation:
    return replace(situation, signals=replace(situation.signals, **signals))


def test_tables_get_neither_convolutions_nor_mixers() -> None:
    assert suited_candidates(situation_of(small_model("flat"))) == [
        ("blocks.0", "widen"),
        ("blocks.1", "widen"),
        ("blocks.2", "widen"),
    ]


@pytest.mark.parametrize("kind", ["series", "image"])
def test_grids_get_mixers_from_the_input_on_and_convolutions_from_the_output_back(kind: str) -> None:
    situation = at(situation_of(small_model(kind)), host_parameters=10**6)
    assert [f"{blueprint}@{slot[-1]}" for slot, blueprint in suited_candidates(situation)] == [
        *("mixer@0", "conv_light@2", "widen@0"),
        *("mixer@1", "conv_light@1", "widen@1"),
        *("mixer@2", "conv_light@0", "widen@2"),
    ]


FAMILIES = {
    Layout.IMAGE: ["mixer", "conv_light", "widen"],
    Layout.IMAGE_LAST: ["mixer", "conv_light", "widen"],
    Layout.VOLUME: ["mixer", "conv_light", "widen"],
    Layout.VOLUME_LAST: ["mixer", "conv_light", "widen"],
    Layout.SERIES: ["mixer", "conv_light", "widen"],
    Layout.TOKENS: ["attention", "mlp", "widen"],
    Layout.TIME_MAJOR: ["attention", "mlp", "widen"],
    Layout.FLAT: ["widen"],
    Layout.ROWS: ["widen"],
}


@pytest.mark.parametrize("layout", Layout)
def test_every_layout_has_the_candidates_of_its_family_and_grows(layout: Layout) -> None:
    model = tiny_model(layout)
    assert model.slots[SLOT].layout is layout
    candidates = suited_candidates(at(situation_of(model), host_parameters=10**6))
    assert candidates == [(SLOT, blueprint) for blueprint in FAMILIES[layout]]
    done = live(ByLayoutPolicy(), ModelHost(tiny_model(layout)), horizon=20)
    assert any(what.startswith("germinate") for _, what in done)


def test_nothing_larger_than_the_host_is_tried() -> None:
    situation = situation_of(small_model("series"))
    costs = {(slot, card.name): card.parameters for slot, cards in situation.cards.items() for card in cards}
    limit = costs["blocks.0", "mixer"]
    assert ("blocks.0", "mixer") in suited_candidates(at(situation, host_parameters=limit))
    assert ("blocks.0", "mixer") not in suited_candidates(at(situation, host_parameters=limit - 1))


def test_the_noise_of_a_straight_line_is_none_and_of_scatter_its_deviation() -> None:
    assert noise_of([0.1 * epoch for epoch in range(9)]) == pytest.approx(0.0, abs=1e-12)
    assert noise_of([0.0, 1.0, 0.0, 1.0]) == pytest.approx(2.0 / 0.6745 / 6**0.5)
    rng = np.random.default_rng(0)
    curve = 0.9 - 0.4 * 0.9 ** np.arange(4000) + rng.normal(0.0, 0.03, 4000)
    assert noise_of(curve.tolist()) == pytest.approx(0.03, rel=0.1)
    assert noise_of([0.0, 1.0, 0.0]) == 0.0  # too few to know


def wavering(epoch: int) -> float:
    return 0.7 + (0.03 if epoch % 2 else -0.03)  # second differences of 0.12, a deviation of 0.073


def test_what_exceeds_the_noise_of_validation_is_kept_or_pruned_at_its_age() -> None:
    def end(accuracy: Callable[[int], float], contribution: float | None) -> tuple[int, str]:
        host = ModelHost(small_model("flat", slots=1), measure=lambda *_: contribution, accuracy=accuracy)
        epoch, what = live(ByLayoutPolicy(rent=0.0), host, horizon=30)[-1]
        return epoch, what.split()[0]

    assert end(wavering, 0.08) == (12, "fossilize")
    assert end(wavering, -0.08) == (12, "prune")
    assert end(lambda _: 0.7, 0.001) == (12, "fossilize")
    assert end(lambda _: 0.7, -0.001) == (12, "prune")
    for unknown in (0.07, -0.07):  # it stays, when no time is left to recover from losing it
        assert end(wavering, unknown) == (25, "fossilize")
    assert end(wavering, None) == (12, "prune")  # nobody measured it


def test_what_turns_out_to_harm_when_it_is_too_late_is_left_to_the_end() -> None:
    def end(since: int) -> set[str]:
        host = ModelHost(
            small_model("flat", slots=1),
            measure=lambda epoch, *_: 0.0 if epoch < since else -1.0,
            accuracy=wavering,
        )
        done = {what.split()[0] for _, what in live(ByLayoutPolicy(rent=0.0), host, horizon=20)}
        return done - {"germinate", "advance"}

    assert end(16) == {"prune"}
    assert end(17) == set()
    assert end(18) == {"fossilize"}


def test_rent_is_asked_on_top() -> None:
    host = ModelHost(small_model("flat"), measure=lambda *_: 0.001, accuracy=lambda _: 0.7)
    assert "prune" in {what.split()[0] for _, what in live(ByLayoutPolicy(rent=1.0), host, horizon=30)}


def test_a_margin_below_rent_is_taken_off_in_words() -> None:
    situation = at(situation_of(small_model("flat")), host_parameters=100)
    seed = replace(situation.slots[0], contribution=-0.08, parameters=10)
    told = comparison(seed, situation.signals, margin=-0.0034, rent=0.01)
    assert told == "contribution -0.080 is under rent 0.0010 less margin 0.0034"


def test_as_many_at_once_as_may_live() -> None:
    host = ModelHost(small_model("image"), measure=lambda *_: 1.0)
    assert [what for _, what in live(ByLayoutPolicy(), host, horizon=20)] == [
        "germinate mixer@blocks.0",
        "advance blocks.0",
        "germinate conv_light@blocks.2",
        "advance blocks.2",
        "fossilize blocks.0",
        "fossilize blocks.2",
    ]


def test_none_is_begun_that_could_not_be_judged_late_and_recovered_from() -> None:
    for horizon, trial in ((6, 5), (7, 5), (10, 5), (20, 8), (40, 16)):
        host = ModelHost(small_model("flat", slots=1), measure=lambda *_: -1.0, accuracy=lambda _: 0.7)
        done = {what.split()[0]: epoch for epoch, what in live(ByLayoutPolicy(), host, horizon=horizon)}
        assert ("germinate" in done) == (horizon >= 7)
        if done:
            assert done["prune"] == done["germinate"] + trial
            assert done["prune"] + max(2, horizon // 5) <= horizon


@pytest.mark.parametrize(("share", "begins"), [(None, True), (1.0, True), (0.5, True), (0.49, False)])
def test_nothing_begins_when_the_learning_rate_has_fallen(share: float | None, begins: bool) -> None:
    action = ByLayoutPolicy().act(at(situation_of(small_model("flat")), learning_rate_share=share))
    assert (action.op is LifecycleOp.GERMINATE) == begins


def test_a_budget_is_kept() -> None:
    host = ModelHost(small_model("series"), measure=lambda *_: 1.0, accuracy=lambda _: 0.7)
    live(ByLayoutPolicy(), host, horizon=40, budget=60)
    assert 0 < host.added_parameters <= 60


# The rule `live_on`: waits, grows after a fall, and retires what has decayed where it needs the room.


FIRST_FALL, SECOND_FALL, HORIZON = 6, 40, 80
Accuracy = Callable[[int], float]


def two_changes(epoch: int) -> float:
    """Validation falls twice and never comes back by itself."""
    return 0.9 if epoch < FIRST_FALL else 0.6 if epoch < SECOND_FALL else 0.3


def useful_until_the_second_change(epoch: int, _slot: str, _blueprint: str) -> float:
    return 0.2 if epoch < SECOND_FALL else -0.1


def lived(
    measure: Callable[[int, str, str], float] = useful_until_the_second_change,
    accuracy: Accuracy = two_changes,
    budget: int | None = None,
) -> tuple[list[tuple[int, str]], ModelHost]:
    host = ModelHost(small_model("flat"), measure=measure, accuracy=accuracy)
    return live(LiveOnPolicy(), host, horizon=HORIZON, budget=budget), host


def test_nothing_grows_while_validation_holds() -> None:
    assert lived(accuracy=lambda epoch: 0.9 - 0.02 * (epoch % 2))[0] == []
    assert lived(accuracy=lambda epoch: 0.3 if epoch == 9 else 0.9)[0] == []  # a false alarm


def test_after_a_fall_it_tries_keeps_and_goes_on() -> None:
    done, host = lived()
    first = done[:4]
    assert first[0] == (FIRST_FALL + 1, "germinate widen@blocks.0")  # after two epochs below
    assert [what.split()[0] for _, what in first] == ["germinate", "advance", "fossilize", "germinate"]
    assert first[2][0] - first[0][0] == 8
    kept = [what for epoch, what in done if what.startswith("fossilize") and epoch < SECOND_FALL]
    assert len(kept) == 3
    assert host.model.live_slots == () or host.model.free_places >= 0


def test_what_has_decayed_makes_room_for_what_is_needed_now() -> None:
    """All slots hold fossils that were useful once; those that are in the way go, and their slots grow again."""
    done, host = lived()
    late = [(epoch, what) for epoch, what in done if epoch > SECOND_FALL]
    retired = [epoch for epoch, what in late if what.startswith("retire")]
    assert retired
    assert retired[0] == SECOND_FALL + 2  # the third epoch in a row below its rent
    born_again = [epoch for epoch, what in late if what.startswith("germinate")]
    assert born_again
    assert born_again[0] > retired[0] + 3  # faded out, and the embargo
    assert any(slot.life.births > 1 for slot in host.model.slots.values())


def test_a_fossil_that_earns_its_rent_stays() -> None:
    done, host = lived(measure=lambda *_: 0.2)
    assert not any(what.startswith("retire") for _, what in done)
    assert [slot.stage for slot in host.model.slots.values()] == [Stage.FOSSILIZED] * 3


def test_the_budget_is_kept_and_made_by_retiring() -> None:
    """There is room for one seed: the next needs what the first holds, and gets it once that has decayed."""
    host = ModelHost(small_model("flat"))
    cost = max(card.parameters for cards in host.cards.values() for card in cards if card.name == "widen")
    done, host = lived(budget=cost)
    germinated = [epoch for epoch, what in done if what.startswith("germinate")]
    retired = [epoch for epoch, what in done if what.startswith("retire")]
    assert len([epoch for epoch in germinated if epoch < SECOND_FALL]) == 1
    assert len(retired) == 1
    assert any(epoch > retired[0] for epoch in germinated)
    assert host.model.added_parameters <= cost


def test_no_more_is_given_back_than_is_needed() -> None:
    """Two fossils have decayed, and the candidate in the empty slot needs the room of one."""

    def measure(epoch: int, slot: str, _blueprint: str) -> float:
        return 0.2 if epoch < SECOND_FALL and slot != "blocks.0" else -0.1

    host = ModelHost(small_model("flat"))
    cost = max(card.parameters for cards in host.cards.values() for card in cards if card.name == "widen")
    done, _ = lived(measure, budget=2 * cost)
    late = [what for epoch, what in done if epoch > SECOND_FALL]
    assert late[:2] == ["retire blocks.1", "germinate widen@blocks.0"]


def test_validation_that_came_back_by_itself_needs_nothing() -> None:
    def back_soon(epoch: int) -> float:
        return 0.5 if 10 <= epoch < 12 else 0.9

    done, _ = lived(accuracy=back_soon, measure=lambda *_: -0.2)
    assert [what.split()[0] for _, what in done] == [
        "germinate",
        "advance",
        "prune",
    ]  # one, begun before it was back


def test_what_does_not_help_is_faded_out_and_the_next_is_tried() -> None:
    done, _ = lived(measure=lambda *_: -0.1)
    operations = [what.split()[0] for epoch, what in done if epoch < SECOND_FALL]
    assert operations == ["germinate", "advance", "prune"] * 3


def test_its_memory_goes_through_a_checkpoint() -> None:
    host = ModelHost(small_model("flat"), measure=useful_until_the_second_change, accuracy=two_changes)
    policy = LiveOnPolicy()
    live(policy, host, horizon=20)
    other = LiveOnPolicy()
    other.load_state_dict(policy.state_dict())
    assert other.memory == policy.memory
    assert policy.memory.queue


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": 0.0}, "drop is 0.0; expected > 0"),
        ({"patience": 0}, "patience is 0; expected >= 1 epoch"),
        ({"judge_age": 0}, "judge_age is 0; expected >= 1 epoch"),
        ({"decay_epochs": 0}, "decay_epochs is 0; expected a whole number >= 1"),
        ({"rent": -1.0}, "decay_rent is -1.0; expected a number >= 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule_policy("live_on", **options)  # type: ignore[arg-type]


# Where frozen_spread grows, what, and how a budget is divided.


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
