"""Observations in ratios: known answers, what they are the same under, and that absolute ones stay as they were."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from esper.leyline import DecisionSettings, EpochReport, LifecycleOp, SlotReading, Stage
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, GrowthPolicy, GrowthSpace, Observer
from esper.tamiyo.actions import numbered_slots
from esper.tamiyo.controller import Controller, ControllerError, layout_fingerprint
from esper.tamiyo.features import BOUND, host_features, slot_features
from esper.tamiyo.tracker import Origin
from esper.tamiyo.units import standard_error
from tiny_controllers import tiny_controller
from watched import DORMANT, HOLDING, paper_host, report

RATIOS = DecisionSettings(observation_units="ratios")
NAN = math.nan
TRAINING = HOLDING._replace(
    stage=int(Stage.TRAINING), alpha=0.0, contribution=NAN, probe=0.02, parameters=200, gradient_norm=0.5
)
Life = Sequence[tuple[EpochReport, list[SlotReading]]]


def epoch(number: int, accuracy: float | None, **others: float | None) -> EpochReport:
    """A report of a validation on 496 samples."""
    return replace(report(number, accuracy, **others), validation_samples=496)  # type: ignore[arg-type]


LIFE: Life = (
    (epoch(0, 0.1, loss=2.0), [DORMANT, DORMANT]),
    (
        epoch(1, 0.4, loss=1.5, train_loss=1.6, train_accuracy=0.3, gradient_norm=3.0),
        [TRAINING, HOLDING._replace(contribution=0.01)],
    ),
    (
        epoch(2, 0.46, loss=1.25, train_loss=1.0, train_accuracy=0.55, gradient_norm=1.5),
        [TRAINING, HOLDING],
    ),
)


def live(
    life: Life,
    *,
    parameters: int = 1000,
    horizon: int = 20,
    budget: int | None = 400,
    decisions: DecisionSettings = RATIOS,
) -> Observer:
    host = paper_host("a", "b", blueprints=("conv", "norm"), report=life[0][0])
    host.host_parameters = parameters
    host.cards = {
        slot: tuple(replace(card, parameters=card.parameters * parameters // 1000) for card in cards)
        for slot, cards in host.cards.items()
    }
    host.rows = life[0][1]
    observer = Observer(GrowthSpace.covering([host]), 1, decisions=decisions)
    observer.begin(0, host, horizon=horizon, parameter_budget=budget)
    for now, rows in life[1:]:
        host.report, host.rows = now, rows
        observer.record(0, host, LifecycleOp.WAIT)
    return observer


def seen(observer: Observer) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Features of the host and of its slots, by name."""
    observation = observer.observe()
    host = dict(zip(host_features(observer.space), observation["host"][0].tolist(), strict=True))
    names = slot_features(observer.space)
    return host, [dict(zip(names, row, strict=True)) for row in observation["slots"][0].tolist()]


def flat(observer: Observer) -> NDArray[np.float32]:
    observer.observe()
    return observer.flat.numpy().copy()


def changed(
    life: Life, change: Callable[[EpochReport, SlotReading], tuple[EpochReport, SlotReading]]
) -> Life:
    return [(change(now, DORMANT)[0], [change(now, row)[1] for row in rows]) for now, rows in life]


# Known answers


def test_a_host_and_its_seeds_in_ratios() -> None:
    host, (training, holding) = seen(live(LIFE))
    error = math.sqrt(0.46032 * 0.53968 / 500)  # 0.46 of 496 samples, two right and two wrong ones more
    noise = standard_error(np.array([0.46]), np.array([496.0]))[0]
    assert noise == pytest.approx(error, rel=1e-4)
    assert host["validation_loss"] == pytest.approx(math.log1p(1.25 / 2.0))
    assert host["train_loss"] == pytest.approx(math.log1p(1.0 / 2.0))
    assert host["validation_accuracy"] == pytest.approx(0.36 / 0.9)
    assert host["train_accuracy"] == pytest.approx(0.45 / 0.9)
    assert host["accuracy_gap"] == pytest.approx(-math.log1p(100 * 0.09 / 0.9), rel=1e-5)
    assert host["validation_accuracy_change"] == pytest.approx(math.log1p(3 * 0.06 / noise), rel=1e-5)
    assert host["validation_accuracy_slope"] == pytest.approx(math.log1p(3 * 0.18 / noise), rel=1e-5)
    assert host["gradient_norm"] == pytest.approx(math.log10(1.5 / 3.0), rel=1e-5)
    assert host["noise"] == pytest.approx(math.log10(noise) + 2, rel=1e-5)
    assert holding["contribution"] == pytest.approx(math.log1p(3 * 0.03 / noise), rel=1e-5)
    assert holding["contribution_trend"] == pytest.approx(math.log1p(3 * 0.02 / noise), rel=1e-5)
    assert holding["gain_per_parameter"] == pytest.approx(math.log1p(100 * 0.03 / 0.05), rel=1e-5)
    assert holding["probe_per_parameter"] == 0.0
    assert training["probe"] == pytest.approx(math.log1p(3 * 0.02 / noise), rel=1e-5)
    assert training["probe_per_parameter"] == pytest.approx(math.log1p(100 * 0.02 / 0.2), rel=1e-5)
    # root mean squares: 0.5 over 200 parameters, 1.5 over 1000
    ratio = math.log10(0.5 / math.sqrt(200) / (1.5 / math.sqrt(1000)))
    assert training["gradient_ratio"] == pytest.approx(ratio, rel=1e-5)


def test_epochs_are_those_of_a_run_of_twenty() -> None:
    (_, short), (_, long) = seen(live(LIFE)), seen(live(LIFE, horizon=60))
    assert short[1]["age"] == pytest.approx(math.log1p(6) / 2)
    assert long[1]["age"] == pytest.approx(math.log1p(2) / 2)
    assert seen(live(LIFE, horizon=60))[0]["epochs_left"] == pytest.approx(math.log1p(58) / 2)


def test_the_noise_of_validation() -> None:
    error = standard_error(np.array([0.5, 0.0, 1.0, NAN, 0.5]), np.array([96.0, 96.0, 96.0, 996.0, NAN]))
    edge = math.sqrt(0.02 * 0.98 / 100)
    assert error == pytest.approx([0.05, edge, edge, math.sqrt(0.25 / 1000), math.sqrt(0.25 / 1004)])


def test_what_is_not_known_yet_is_nothing_of_anything() -> None:
    """A loop that reports no validation before its first epoch, and never a loss of it."""
    unknown = replace(report(0, None), validation_loss=NAN)
    first = replace(report(1, 0.6, train_loss=0.5), validation_loss=NAN)
    host, _ = seen(live([(unknown, [DORMANT, DORMANT])]))
    assert [host[name] for name in ("validation_loss_known", "validation_accuracy_known")] == [0.0, 0.0]
    host, _ = seen(live([(unknown, [DORMANT, DORMANT]), (first, [DORMANT, DORMANT])]))
    assert (host["validation_accuracy"], host["validation_accuracy_known"]) == (0.0, 1.0)
    assert (host["validation_loss"], host["validation_loss_known"]) == (0.0, 0.0)
    assert host["train_loss"] == pytest.approx(math.log(2))
    assert host["gradient_norm_known"] == 0.0


@pytest.mark.parametrize("accuracy", [1.0, 0.9999])
def test_a_host_that_began_at_the_top_stays_bounded(accuracy: float) -> None:
    began = (epoch(0, accuracy, loss=0.0), [DORMANT, DORMANT])
    observer = live(
        [began, (epoch(1, 0.2, loss=1e-9, train_loss=1e9, gradient_norm=0.0), [TRAINING, HOLDING])]
    )
    assert np.abs(flat(observer)).max() <= BOUND


# What observations are the same under


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-4, 1e4))
def test_the_loss_may_be_scaled(factor: float) -> None:
    def scaled(now: EpochReport, row: SlotReading) -> tuple[EpochReport, SlotReading]:
        train = None if now.train_loss is None else now.train_loss * factor
        return replace(now, validation_loss=now.validation_loss * factor, train_loss=train), row

    np.testing.assert_allclose(flat(live(changed(LIFE, scaled))), flat(live(LIFE)), rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-6, 1e6))
def test_gradients_may_be_scaled(factor: float) -> None:
    def scaled(now: EpochReport, row: SlotReading) -> tuple[EpochReport, SlotReading]:
        norm = None if now.gradient_norm is None else now.gradient_norm * factor
        return replace(now, gradient_norm=norm), row._replace(gradient_norm=row.gradient_norm * factor)

    np.testing.assert_allclose(flat(live(changed(LIFE, scaled))), flat(live(LIFE)), rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 1000))
def test_hosts_and_seeds_may_be_larger_together(factor: int) -> None:
    def larger(now: EpochReport, row: SlotReading) -> tuple[EpochReport, SlotReading]:
        return now, row._replace(parameters=row.parameters * factor)

    grown = live(changed(LIFE, larger), parameters=1000 * factor, budget=400 * factor)
    np.testing.assert_allclose(flat(grown), flat(live(LIFE)), rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 100))
def test_classes_may_be_more(classes: int) -> None:
    """What was learned of the way from chance to 1 is the same, and losses are in units of ln(classes)."""

    def of_ten(accuracy: float | None) -> float | None:
        return None if accuracy is None else 1 / classes + (accuracy - 0.1) / 0.9 * (1 - 1 / classes)

    def other(now: EpochReport, row: SlotReading) -> tuple[EpochReport, SlotReading]:
        losses = {"validation_loss": now.validation_loss * math.log(classes) / math.log(10)}
        if now.train_loss is not None:
            losses["train_loss"] = now.train_loss * math.log(classes) / math.log(10)
        accuracies = {name: of_ten(getattr(now, name)) for name in ("train_accuracy", "validation_accuracy")}
        return replace(now, **losses, **accuracies), row  # type: ignore[arg-type]

    ours, theirs = (seen(live(life))[0] for life in (LIFE, changed(LIFE, other)))
    levels = (
        "train_loss",
        "validation_loss",
        "train_accuracy",
        "validation_accuracy",
        "loss_gap",
        "accuracy_gap",
    )
    assert [ours[name] for name in levels] == pytest.approx([theirs[name] for name in levels], rel=1e-4)


def test_absolute_observations_are_not_so() -> None:
    """The same life with losses in other units is another one to a controller that observes them as they are."""

    def scaled(now: EpochReport, row: SlotReading) -> tuple[EpochReport, SlotReading]:
        return replace(now, validation_loss=now.validation_loss * 3), row

    ours, theirs = (live(life, decisions=DecisionSettings()) for life in (LIFE, changed(LIFE, scaled)))
    assert not np.allclose(flat(ours), flat(theirs))


# The knob


def test_ratios_change_no_mask_and_no_absolute_feature() -> None:
    plain, ratios = live(LIFE, decisions=DecisionSettings()), live(LIFE)
    np.testing.assert_array_equal(plain.masks(), ratios.masks())
    (host, slots), (host_in_ratios, slots_in_ratios) = seen(plain), seen(ratios)
    assert list(host_in_ratios)[: len(host)] == list(host) == list(HOST_FEATURES)
    assert list(slots_in_ratios[0])[: len(slots[0])] == list(slots[0]) == list(SLOT_FEATURES)
    assert host["validation_loss"] == pytest.approx(math.log1p(1.25))
    assert slots[1]["contribution"] == pytest.approx(math.log1p(3), rel=1e-5)
    same = ("time_left", "epochs_left", "training_samples", "added_parameters", "budget_left", "plateau")
    assert all(host[name] == host_in_ratios[name] for name in same)
    assert plain.situation(0) == ratios.situation(0)


def test_features_of_retiring_come_last_beside_those_of_ratios() -> None:
    host, slots = seen(live(LIFE, decisions=replace(RATIOS, retire=True)))
    assert list(host)[-4:] == ["noise", "last_retire", "fossil_parameters", "decayed_parameters"]
    assert list(slots[0])[-5:] == [
        "gain_per_parameter",
        "probe_per_parameter",
        "ready_retire",
        "decayed",
        "decay",
    ]
    plain_host, plain_slots = seen(live(LIFE))
    assert plain_host.items() <= host.items()
    assert plain_slots[1].items() <= slots[1].items()


def test_an_observer_goes_on_from_its_state() -> None:
    observer = live(LIFE)
    state = observer.state_dict(0)
    again = live(LIFE[-1:])  # another beginning
    assert not np.allclose(flat(again), flat(observer))
    host = again._env(0).host
    again.load_state_dict(0, host, state)
    np.testing.assert_array_equal(flat(again), flat(observer))
    with pytest.raises(
        ValueError, match="origin is None; expected the numbers loss, accuracy, gradient_norm"
    ):
        again.load_state_dict(0, host, {name: value for name, value in state.items() if name != "origin"})
    assert "origin" not in live(LIFE, decisions=DecisionSettings()).state_dict(0)


def test_the_first_numbers_stay() -> None:
    origin = Origin()
    for tracked, norm in (
        ([0.7, NAN, NAN, NAN], None),
        ([9.0, 9.0, 9.0, 0.3], 0.0),
        ([1.0, 1.0, 1.0, 1.0], 4.0),
    ):
        origin.record(tracked, norm)
    assert asdict(origin) == {"loss": 0.7, "accuracy": 0.3, "gradient_norm": 4.0}


def test_unknown_units_are_refused() -> None:
    with pytest.raises(ValueError, match="observation_units is 'percent'; expected one of absolute, ratios"):
        DecisionSettings(observation_units="percent")  # type: ignore[arg-type]


def test_the_card_says_the_units_and_the_layout_knows_them() -> None:
    fingerprint = layout_fingerprint(units="ratios")
    assert fingerprint not in (layout_fingerprint(), layout_fingerprint(1), layout_fingerprint(retire=True))
    plain = tiny_controller()
    assert "observation_units" not in plain.card.model_dump()
    with pytest.raises(ControllerError, match=r"knows layout .*, this Esper has"):
        Controller(plain.card.model_copy(update={"decisions": RATIOS}), plain.weights)
    controller = tiny_controller(observation_units="ratios", layout=fingerprint)
    assert controller.card.model_dump()["observation_units"] == "ratios"
    space = GrowthSpace(numbered_slots(3), ("mixer", "norm"))
    assert controller.policy(space).space.units == "ratios"
    with pytest.raises(ValueError, match=r"sight is 1; .* observes in ratios, has sight 2"):
        GrowthPolicy(replace(space, units="ratios"), sight=1, generator=torch.Generator())


def test_a_controller_is_saved_with_its_units(tmp_path: Path) -> None:
    controller = tiny_controller(observation_units="ratios", layout=layout_fingerprint(units="ratios"))
    controller.save(tmp_path / "mine")
    assert Controller.load(tmp_path / "mine").card.decisions.observation_units == "ratios"
