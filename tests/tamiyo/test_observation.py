"""What the controller sees: known answers, validity, bounds, padding, and picking up where it was left."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from esper.leyline import ALPHA_TARGETS, ActionSpec, DecisionSettings, EpochReport, LifecycleOp, SlotReading
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, GrowthSpace, Observer
from esper.tamiyo.features import BLUEPRINT_FEATURE_NAMES, BOUND
from watched import DORMANT, HOLDING, KINDS, ModelHost, PaperHost, paper_host, report, small_model

NAN = math.nan


def watch(
    *hosts: PaperHost, horizon: int = 20, budget: int | None = None, menu: tuple[str, ...] | None = None
) -> Observer:
    observer = Observer(GrowthSpace.covering(hosts), len(hosts), decisions=DecisionSettings(menu=menu))
    for env_idx, host in enumerate(hosts):
        observer.begin(env_idx, host, horizon=horizon, parameter_budget=budget)
    return observer


def named(names: tuple[str, ...], values: NDArray[np.float32]) -> dict[str, float]:
    return dict(zip(names, values.tolist(), strict=True))


def test_a_new_host_is_known_by_its_validation_only() -> None:
    observer = watch(paper_host("a", "b", training_samples=10_000, report=report(0, 0.1, loss=math.e - 1)))
    host = named(HOST_FEATURES, observer.observe()["host"][0])
    assert host["time_left"] == 1.0
    assert host["epochs_left"] == pytest.approx(math.log(21) / 2)
    assert host["training_samples"] == pytest.approx(1.0)
    assert host["validation_loss"] == pytest.approx(1.0)
    assert host["validation_accuracy"] == pytest.approx(0.1)
    assert host["last_wait"] == 1.0
    bits = {name for name, value in host.items() if name.endswith("_known") and value}
    assert bits == {"validation_loss_known", "validation_accuracy_known"}
    unknown = {"train_loss", "train_accuracy", "loss_gap", "budget_left", "gradient_norm", "train_loss_slope"}
    assert all(host[name] == 0.0 for name in unknown)


def test_a_host_after_some_epochs() -> None:
    host = paper_host("a", "b", report=report(0, 0.1))
    observer = watch(host, budget=250)
    for epoch in (1, 2):
        host.report = report(
            epoch, 0.1 + 0.2 * epoch, loss=1.0, train_loss=0.0, train_accuracy=0.6, gradient_norm=0.01
        )
        host.rows = [HOLDING, DORMANT]
        observer.record(0, host, LifecycleOp.FOSSILIZE)
    seen = named(HOST_FEATURES, observer.observe()["host"][0])
    assert seen["time_left"] == pytest.approx(0.9)
    assert seen["validation_accuracy_change"] == pytest.approx(math.log1p(20), rel=1e-5)
    assert seen["validation_accuracy_slope"] == pytest.approx(math.log1p(20), rel=1e-5)
    assert (seen["train_accuracy_slope"], seen["train_accuracy_trend_known"]) == (0.0, 1.0)
    assert seen["accuracy_gap"] == pytest.approx(
        -math.log1p(10), rel=1e-5
    )  # validation 0.5 under training 0.6
    assert seen["loss_gap"] == pytest.approx(math.log1p(100 * math.log(2)), rel=1e-5)
    assert seen["added_parameters"] == pytest.approx(math.log1p(5), rel=1e-5)
    assert (seen["budget_left"], seen["budget_left_known"]) == pytest.approx((math.log1p(20), 1.0), rel=1e-5)
    assert (seen["gradient_norm"], seen["gradient_norm_known"]) == pytest.approx((-2.0, 1.0))
    assert (seen["last_fossilize"], seen["last_wait"]) == (1.0, 0.0)
    assert seen["plateau"] == 0.0


def test_a_slot_with_a_seed_and_one_without() -> None:
    host = paper_host("a", "b", blueprints=("conv", "norm"), report=report(0, gradient_norm=2.0))
    host.rows = [DORMANT, HOLDING]
    observer = watch(host)
    empty, holding = (named(SLOT_FEATURES, row) for row in observer.observe()["slots"][0])
    assert {name for name, value in empty.items() if value} == {
        "present",
        "stage_dormant",
        "ready_germinate",
        "width",
        "depth",
    }
    assert (empty["width"], empty["depth"]) == (0.5, 0.25)
    assert (holding["width"], holding["depth"]) == (1.0, 0.75)
    assert (holding["stage_holding"], holding["grows_norm"], holding["grows_conv"]) == (1.0, 1.0, 0.0)
    ready = {name for name, value in holding.items() if name.startswith("ready_") and value}
    assert ready == {"ready_set_alpha_target", "ready_prune", "ready_fossilize"}
    assert (holding["alpha"], holding["alpha_target"], holding["alpha_target_known"]) == pytest.approx(
        (0.7, 0.7, 1)
    )
    assert holding["age"] == pytest.approx(math.log(7) / 2)
    assert holding["epochs_in_stage"] == pytest.approx(math.log(3) / 2)
    assert holding["parameters"] == pytest.approx(math.log(6))
    assert (holding["contribution"], holding["contribution_known"]) == pytest.approx((math.log(4), 1.0))
    assert (holding["contribution_trend"], holding["contribution_trend_known"]) == (0.0, 0.0)
    assert (holding["probe"], holding["probe_known"]) == (0.0, 0.0)
    assert (holding["gradient_ratio"], holding["gradient_ratio_known"]) == pytest.approx((-1.0, 1.0))
    assert (holding["gradient_health"], holding["gradient_health_known"]) == (0.75, 1.0)


def test_the_trend_of_a_contribution_begins_with_its_seed() -> None:
    host = paper_host("a")
    observer = watch(host)
    trends = []
    for epoch, contribution in enumerate([0.1, 0.3, NAN, 0.2, 0.19], start=1):
        host.rows, host.report = [HOLDING._replace(contribution=contribution)], report(epoch)
        observer.record(0, host, LifecycleOp.WAIT)
        slot = named(SLOT_FEATURES, observer.observe()["slots"][0, 0])
        trends.append(slot["contribution_trend"] if slot["contribution_trend_known"] else None)
    assert trends == [None, pytest.approx(math.log(21)), None, None, pytest.approx(-math.log(2))]


def test_blueprints_cost_what_they_cost_at_the_host() -> None:
    observer = watch(paper_host("a", blueprints=("conv",)), paper_host("b", "c", blueprints=("norm",)))
    blueprints = observer.observe()["blueprints"]
    conv = named(BLUEPRINT_FEATURE_NAMES, blueprints[0, 0, 0])
    assert {name: value for name, value in conv.items() if value} == {
        "kind_conv": 1.0,
        "cost": pytest.approx(math.log(2)),
        "offered": 1.0,
    }
    assert not blueprints[0, 0, 1].any()  # the first host offers no norm
    assert not blueprints[0, 1].any()  # and has no second slot
    assert blueprints[1, :, 1, -1].all()


def test_hosts_of_different_sizes_are_padded_with_zeros() -> None:
    large, small = paper_host("a", "b", "c"), paper_host("stem")
    small.rows = [HOLDING]
    together, alone = watch(large, small), watch(small)
    together.observe()
    slots = together.observe()["slots"]
    assert slots.shape[1] == 3
    assert not slots[1, 1:].any()
    np.testing.assert_array_equal(slots[1, :1], alone.observe()["slots"][0])
    np.testing.assert_array_equal(together.observe()["host"][1], alone.observe()["host"][0])
    together.begin(0, small, horizon=20)  # a smaller host takes the place of a larger one
    assert not together.observe()["slots"][0, 1:].any()
    assert not together.observe()["blueprints"][0, 1:].any()


extreme = st.floats(allow_nan=True, allow_infinity=True)
share = st.one_of(st.just(NAN), st.floats(-1, 1))
count = st.integers(0, 10**12)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_feature_is_bounded_whatever_happens(data: st.DataObject) -> None:
    host = paper_host("a", "b", host_parameters=data.draw(st.integers(1, 10**12)))
    host.training_samples = data.draw(count)
    observer = watch(host, horizon=data.draw(st.integers(1, 10**6)), budget=data.draw(st.none() | count))
    maybe = st.none() | extreme
    for epoch in range(1, 4):
        host.report = EpochReport(
            epoch=epoch * data.draw(st.integers(1, 10**6)),
            train_loss=data.draw(maybe),
            train_accuracy=data.draw(st.none() | st.floats(0, 1)),
            validation_loss=data.draw(extreme),
            validation_accuracy=data.draw(st.none() | st.floats(0, 1)),
            gradient_norm=data.draw(st.none() | st.floats(0, allow_infinity=True)),
            rolled_back=None,
        )
        host.rows = [
            SlotReading(
                stage=data.draw(st.integers(0, 5)),
                fading=data.draw(st.booleans()),
                alpha=data.draw(st.floats(0, 1)),
                alpha_target=data.draw(st.sampled_from([NAN, *ALPHA_TARGETS])),
                epochs_to_target=data.draw(st.integers(0, 10**6)),
                age=data.draw(count),
                epochs_in_stage=data.draw(count),
                blueprint=data.draw(st.integers(-1, 1)),
                style=data.draw(st.integers(-1, 3)),
                parameters=data.draw(count),
                legal=data.draw(st.integers(0, 31)) * 2 + 1,
                contribution=data.draw(share),
                probe=data.draw(share),
                gradient_norm=data.draw(st.one_of(st.just(NAN), st.floats(0, allow_infinity=True))),
                gradient_health=data.draw(st.one_of(st.just(NAN), st.floats(0, 1))),
            )
            for _ in range(2)
        ]
        observer.record(0, host, data.draw(st.sampled_from(LifecycleOp)))
        flat = observer.observe(), observer.flat
        assert torch.isfinite(flat[1]).all()
        assert flat[1].abs().max() <= BOUND
        for names, values in ((HOST_FEATURES, flat[0]["host"]), (SLOT_FEATURES, flat[0]["slots"])):
            for row in values.reshape(-1, len(names)):
                features = named(names, row)
                for name in features:
                    known = features.get(f"{name}_known")
                    assert known in (None, 0.0, 1.0)
                    assert known != 0.0 or features[name] == 0.0


def lived(kind: str, epochs: int) -> ModelHost:
    host = ModelHost(small_model(kind), measure=lambda epoch, *_: 0.01 * epoch)
    blueprint = host.cards["blocks.1"][0].name
    script = {
        0: ActionSpec(LifecycleOp.GERMINATE, "blocks.1", blueprint),
        2: ActionSpec(LifecycleOp.ADVANCE, "blocks.1"),
    }
    for epoch in range(epochs):
        host.apply(script.get(epoch, ActionSpec()))
        host.epoch()
    return host


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_model_is_seen(kind: str) -> None:
    host = lived(kind, 7)
    observer = Observer(GrowthSpace.covering([host]), 1)
    observer.begin(0, host, horizon=20)
    slot = named(SLOT_FEATURES, observer.observe()["slots"][0, 1])
    assert slot["stage_holding"] == slot["contribution_known"] == slot["alpha"] == 1.0
    card = host.cards["blocks.1"][0]
    assert slot[f"grows_{card.kind}"] == 1.0
    added = named(HOST_FEATURES, observer.observe()["host"][0])["added_parameters"]
    expected = math.log1p(100 * host.added_parameters / host.host_parameters)
    assert added == pytest.approx(min(expected, BOUND), rel=1e-5)


def test_memory_is_written_in_place() -> None:
    host = paper_host("a", "b")
    space = GrowthSpace.covering([host])
    observer = Observer(space, 1)
    out = observer.flat
    observer.begin(0, host, horizon=20)
    first, mask = observer.observe()["host"], observer.masks()
    before = first.copy()
    host.report = report(1, 0.9)
    observer.record(0, host, LifecycleOp.PRUNE)
    assert observer.observe()["host"] is first
    assert observer.masks() is mask
    assert observer.flat is out
    assert not np.array_equal(before, first)
    np.testing.assert_array_equal(out[0, : len(HOST_FEATURES)].numpy(), first[0])


@pytest.mark.parametrize("menu", [None, ("norm",)])
def test_an_env_is_taken_up_where_it_was_left(menu: tuple[str, ...] | None) -> None:
    host = paper_host("a", "b", report=report(0, 0.1))
    one, other = watch(host, budget=77, menu=menu), watch(host, menu=menu)
    for epoch in range(1, 6):
        host.report, host.rows = report(epoch, 0.1 * epoch, train_loss=0.3), [HOLDING, DORMANT]
        one.record(0, host, LifecycleOp.ADVANCE)
    state = one.state_dict(0)
    other.load_state_dict(0, host, state)
    np.testing.assert_array_equal(one.observe()["host"], other.observe()["host"])
    host.report = report(6, 0.2)
    for observer in (one, other):
        observer.record(0, host, LifecycleOp.PRUNE)
        observer.observe()
    assert torch.equal(one.flat, other.flat)
    assert one.situation(0) == other.situation(0)
    assert np.array_equal(one.masks(), other.masks())
    wide = watch(paper_host("a", "b", "c"))
    with pytest.raises(ValueError, match="the tracker has 2 slots; expected the 3 of the space"):
        wide.load_state_dict(0, paper_host("a", "b", "c"), state)
    with pytest.raises(TypeError, match="parameter_budget is 'big'"):
        other.load_state_dict(0, host, {**state, "parameter_budget": "big"})


def test_the_situation_is_the_host_in_words() -> None:
    host = lived("series", 3)
    observer = Observer(GrowthSpace.covering([host]), 1)
    observer.begin(0, host, horizon=20, parameter_budget=500)
    situation = observer.situation(0)
    assert situation.signals.epoch == 3
    assert situation.signals.parameter_budget == 500
    assert [slot.name for slot in situation.slots] == list(host.slot_config.slot_ids)
    assert situation.legal == host.legal_operations()
    assert situation.cards == host.cards


def test_an_env_without_a_host_is_named() -> None:
    host = paper_host("a")
    observer = Observer(GrowthSpace.covering([host]), 2)
    observer.begin(0, host, horizon=3)
    for ask in (observer.observe, observer.masks, lambda: observer.record(1, host, LifecycleOp.WAIT)):
        with pytest.raises(RuntimeError, match="env 1 has no host yet"):
            ask()
    with pytest.raises(ValueError, match="num_envs is 0"):
        Observer(observer.space, 0)


def test_another_host_needs_a_new_beginning() -> None:
    observer = watch(paper_host("a", "b"))
    with pytest.raises(ValueError, match=r"env 0 has \(a, b\), the host has \(a\); order counts"):
        observer.record(0, paper_host("a"), LifecycleOp.WAIT)
    observer.record(0, paper_host("a", "b"), LifecycleOp.WAIT)
    with pytest.raises(ValueError, match="hosts have 3 slots"):
        observer.begin(0, paper_host("a", "b", "c"), horizon=3)
