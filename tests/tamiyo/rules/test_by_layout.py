"""What the rule by_layout tries, when it begins, and what it keeps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from esper.kasmina import GrowingModel
from esper.leyline import Layout, LifecycleOp, Situation
from esper.tamiyo import GrowthSpace, Observer
from esper.tamiyo.rules.by_layout import ByLayoutPolicy, noise_of, suited_candidates
from esper.tamiyo.rules.policy import comparison
from tiny import SLOT, tiny_model
from watched import ModelHost, live, small_model


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
