"""What a decider that may retire fossils sees of them; one that may not sees and does what it always did."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from esper.leyline import ActionSpec, DecisionSettings, HostSignals, LifecycleOp, Stage
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, GrowthSpace, Observer
from esper.tamiyo.actions import encode
from esper.tamiyo.controller import (
    Controller,
    ControllerCard,
    ControllerError,
    layout_fingerprint,
    shipped_controllers,
)
from esper.tamiyo.features import host_features, slot_features
from esper.tamiyo.networks import GrowthPolicy
from esper.tamiyo.rules import rule_policy
from esper.tamiyo.rules.policy import decisions_of
from esper.tamiyo.tracker import FossilWatch
from tiny_controllers import tiny_card, tiny_controller
from watched import DORMANT, HOLDING, PaperHost, paper_host, report

RETIRING = DecisionSettings(retire=True, decay_epochs=2, decay_rent=0.1)
FOSSIL = HOLDING._replace(stage=int(Stage.FOSSILIZED), legal=0b1000001, gradient_norm=math.nan)
"""50 parameters in a host of 1000: its rent is 0.005."""
DECAYING, PAYING, UNKNOWN = (FOSSIL._replace(contribution=value) for value in (0.004, 0.006, math.nan))


def watch(host: PaperHost, decisions: DecisionSettings = RETIRING) -> Observer:
    observer = Observer(GrowthSpace.covering([host]), 1, decisions=decisions)
    observer.begin(0, host, horizon=20, parameter_budget=300)
    return observer


def live(observer: Observer, host: PaperHost, *epochs: object) -> None:
    """One epoch for each row of the first slot."""
    for row in epochs:
        host.rows = [row, *host.rows[1:]]  # type: ignore[list-item]
        host.report = report(host.report.epoch + 1)
        observer.record(0, host, LifecycleOp.WAIT)


@pytest.mark.parametrize(
    ("epochs", "count"),
    [
        ([], 0),
        ([DECAYING], 1),
        ([DECAYING] * 3, 3),
        ([DECAYING, UNKNOWN, DECAYING], 2),  # what was not measured counts neither way
        ([DECAYING, DECAYING, PAYING], 0),
        ([DECAYING, DECAYING, DORMANT, DECAYING], 1),  # another fossil
        ([HOLDING._replace(contribution=-0.5)] * 3, 0),  # it is no fossil: it can be pruned
    ],
)
def test_decay_counts_epochs_below_rent_in_a_row(epochs: list[object], count: int) -> None:
    host = paper_host("a")
    observer = watch(host)
    live(observer, host, *epochs)
    (slot,) = observer.situation(0).slots
    assert (slot.decay_epochs, slot.decayed) == (count, count >= 2)
    seen = dict(zip(slot_features(observer.space), observer.observe()["slots"][0, 0], strict=True))
    assert seen["decay"] == pytest.approx(math.log1p(count) / 2)
    assert seen["decayed"] == float(count >= 2)


def test_the_rent_of_a_fossil_is_that_of_its_share_of_the_host() -> None:
    for settings, decays in ((RETIRING, True), (replace(RETIRING, decay_rent=0.01), False)):
        fossils = FossilWatch(settings)
        fossils.record([DECAYING], 1000)
        assert fossils.epochs == [int(decays)]
    with pytest.raises(ValueError, match="slots has 2 readings; expected 1"):
        fossils.record([DECAYING, DECAYING], 1000)


def test_the_observation_says_what_is_left_and_what_retiring_would_free() -> None:
    host = paper_host("a", "b", "c")
    host.rows = [DECAYING, PAYING, HOLDING]
    observer = watch(host)
    live(observer, host, DECAYING)
    host.report = report(2)
    observer.record(0, host, LifecycleOp.RETIRE)
    seen = dict(zip(host_features(observer.space), observer.observe()["host"][0], strict=True))
    # 150 of 300 parameters are there; both fossils have 50, one of them has decayed; the host has 1000
    assert seen["budget_left"] == pytest.approx(math.log1p(15))
    assert seen["fossil_parameters"] == pytest.approx(math.log1p(10))
    assert seen["decayed_parameters"] == pytest.approx(math.log1p(5))
    assert (seen["last_retire"], seen["last_wait"]) == (1.0, 0.0)
    slots = [
        dict(zip(slot_features(observer.space), row, strict=True)) for row in observer.observe()["slots"][0]
    ]
    assert [slot["ready_retire"] for slot in slots] == [1.0, 1.0, 0.0]
    assert [slot["decayed"] for slot in slots] == [1.0, 0.0, 0.0]
    signals: HostSignals = observer.situation(0).signals
    assert (signals.room, signals.fossil_parameters) == (150, 100)
    assert replace(signals, parameter_budget=None).room == math.inf


def test_whoever_may_not_retire_sees_what_was_always_seen() -> None:
    host = paper_host("a", "b")
    host.rows = [UNKNOWN, HOLDING]  # the world weighs no fossils that nobody asks for
    plain, retiring = watch(host, DecisionSettings()), watch(host)
    assert plain.observe()["host"].shape[1] == len(HOST_FEATURES)
    for part, features in (("host", len(HOST_FEATURES)), ("slots", len(SLOT_FEATURES))):
        np.testing.assert_array_equal(
            plain.observe()[part], retiring.observe()[part][..., :features], err_msg=part
        )
    assert LifecycleOp.RETIRE not in plain.situation(0).legal["a"].operations
    assert LifecycleOp.RETIRE in retiring.situation(0).legal["a"].operations
    masks = {watched.space.retire: watched.masks()[0] for watched in (plain, retiring)}
    layouts = {watched.space.retire: watched.space.action_layout for watched in (plain, retiring)}
    for head in layouts[False].names:
        one, other = (layouts[way].block(torch.from_numpy(masks[way]), head) for way in (False, True))
        assert torch.equal(one, other[: len(one), : one.shape[1]]), head
    retire = layouts[True].block(torch.from_numpy(masks[True]), "slot")[LifecycleOp.RETIRE]
    assert retire.tolist() == [True, False]


def test_decay_is_part_of_the_state() -> None:
    host = paper_host("a")
    observer = watch(host)
    live(observer, host, DECAYING, DECAYING)
    state = observer.state_dict(0)
    again = watch(host)
    again.load_state_dict(0, host, state)
    live(again, host, DECAYING)
    assert again.situation(0).slots[0].decay_epochs == 3
    plain = watch(host, DecisionSettings()).state_dict(0)
    assert "decay" not in plain
    with pytest.raises(ValueError, match="decay is None; expected epochs below rent for each of 1 slots"):
        again.load_state_dict(0, host, plain)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"retire": 1}, "retire is 1; expected True or False"),
        ({"retire": True, "decay_epochs": 0}, "decay_epochs is 0; expected a whole number >= 1"),
        ({"retire": True, "decay_rent": math.nan}, "decay_rent is nan; expected a number >= 0"),
        ({"frozen_heads": {"op": LifecycleOp.RETIRE}}, "frozen_heads has op=RETIRE, which retire=False"),
    ],
)
def test_bad_settings_are_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecisionSettings(**wrong)  # type: ignore[arg-type]


# Controllers


def test_shipped_controllers_that_were_not_offered_it_have_no_such_choice() -> None:
    loaded = [Controller.load(name) for name in shipped_controllers()]
    controllers = [controller for controller in loaded if not controller.card.decisions.retire]
    assert {controller.card.name for controller in controllers} == {"adapt-v1", "cpu-v1", "shift-v1"}
    for controller in controllers:
        retiring = GrowthSpace.covering([paper_host("a", "b")]).under(RETIRING)
        policy = controller.policy(retiring)  # whatever the hosts allow
        assert policy.layout.sizes[0] == 6
        assert not policy.space.retire
        assert not {"retire", "decay_epochs", "decay_rent"} & controller.card.model_dump().keys()


def _retiring_controller() -> Controller:
    settings = asdict(RETIRING) | {"layout": layout_fingerprint(2, retire=True)}
    card = tiny_card(**settings)
    space = GrowthSpace.covering([paper_host("a", "b")]).under(RETIRING)
    policy = GrowthPolicy(
        space, hidden_size=11, width=7, key_size=5, generator=torch.Generator().manual_seed(0)
    )
    return Controller(card, policy.state_dict())


def test_a_controller_that_retires_says_so_on_its_card(tmp_path: object) -> None:
    controller = _retiring_controller()
    controller.save(str(tmp_path))
    again = Controller.load(str(tmp_path))
    assert again.card.decisions == RETIRING
    assert again.policy(GrowthSpace.covering([paper_host("a")])).layout.sizes[0] == 7
    assert ControllerCard.model_validate(again.card.model_dump()) == again.card


def test_weights_of_the_other_kind_are_refused_by_name() -> None:
    plain = tiny_controller()
    with pytest.raises(ControllerError, match=r"knows layout .*, this Esper has"):
        Controller(plain.card.model_copy(update={"decisions": RETIRING}), plain.weights)
    card = _retiring_controller().card
    with pytest.raises(ControllerError, match=r"joint_encoder|slot_encoder|actor"):
        Controller(card, plain.weights)
    with pytest.raises(ValueError, match=r"sight is 1; a policy that may retire fossils, .*has sight 2"):
        GrowthPolicy(
            GrowthSpace.covering([paper_host("a")]).under(RETIRING), sight=1, generator=torch.Generator()
        )


# Rules


def test_a_schedule_retires_where_it_says_so() -> None:
    policy = rule_policy("schedule", schedule="retire a t=1 alpha_speed=5")
    assert decisions_of(policy) == DecisionSettings(retire=True)
    assert decisions_of(rule_policy("schedule", schedule="prune a t=1")) == DecisionSettings()
    assert decisions_of(rule_policy("wait")) == DecisionSettings()
    host = paper_host("a")
    host.rows = [PAYING._replace(legal=1)]  # it has not been a fossil for long enough
    observer = watch(host, decisions_of(policy))
    assert policy.act(observer.situation(0)) == ActionSpec()
    live(observer, host, PAYING._replace(legal=1))
    assert policy.act(observer.situation(0)) == ActionSpec()  # waiting helps
    live(observer, host, PAYING)
    action = policy.act(observer.situation(0))
    assert action == ActionSpec(LifecycleOp.RETIRE, "a", alpha_speed=5)
    assert encode(action, observer.space, host.slot_config)[0] == 6
