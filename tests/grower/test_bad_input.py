"""What can be wrong in a user's loop is told with what to do, and training is never broken by it."""

import math
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import esper
from esper.grower import Grower, GrowthWarning
from esper.kasmina import WrapError
from esper.kasmina.governor import GovernorRules, Guard, Verdict, Vitals
from esper.leyline import ActionSpec, LifecycleOp, Situation, Stage
from esper.tamiyo.controller import ControllerError
from grower.loops import Loop, net
from grower.test_grower import grown
from tiny_controllers import tiny_controller


def make(**options: object) -> Grower:
    loop, model = Loop(), net()
    given: dict[str, object] = {
        "slots": ["0", "1"],
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "example_input": loop.inputs[:2],
        "validate": loop.validate,
    }
    return Grower(model, **(given | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"slots": ["2.x"]}, WrapError, "2.x"),
        ({"slots": None}, WrapError, "slots and example_input are missing"),
        ({"optimizer": torch.optim.Adam(net().parameters())}, ValueError, "none of the host's parameters"),
        ({"controller": 3}, ControllerError, "controller is 3; expected a name, a folder, a Controller"),
        ({"controller": "plato"}, ControllerError, "controller is 'plato'; expected one of"),
        ({"parameter_budget": 6}, ValueError, r"budget is 6.*the cheapest is norm at 0 with 7 parameters"),
        (
            {"parameter_budget": 7, "controller": tiny_controller(menu=("lora",))},
            ValueError,
            r"budget is 7.*the cheapest is lora at",
        ),
        ({"parameter_budget": 1.5}, ValueError, "parameter_budget is 1.5; expected a whole number >= 1"),
        ({"epochs": 0}, ValueError, "epochs is 0; expected a whole number >= 1"),
        ({"accumulate": 0}, ValueError, "accumulate is 0"),
        ({"training_samples": True}, ValueError, "training_samples is True"),
        ({"rent": -1.0}, ValueError, "rent is -1.0; expected a finite number >= 0"),
        ({"validate": 3}, TypeError, "validate is a int; expected a function of the model, or a loader"),
        ({"validate": iter([])}, TypeError, "is an iterator, which runs out"),
    ],
)
def test_what_is_refused_when_it_is_made(
    options: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(**options)


def test_an_optimizer_that_holds_only_a_part() -> None:
    model = net()  # 42 + 56 + 24 parameters
    with pytest.warns(
        GrowthWarning, match=r"holds 66 of the model's 122 trainable parameters: 1\.0\.weight and 1"
    ):
        Grower(
            model,
            ["0"],
            optimizer=torch.optim.Adam([*model[0].parameters(), *model[2].parameters()]),
            example_input=Loop().inputs[:2],
        )
    frozen = net()
    frozen[1].requires_grad_(False)  # meant to stay as it is: nothing to say
    trained = [parameter for parameter in frozen.parameters() if parameter.requires_grad]
    Grower(frozen, ["0"], optimizer=torch.optim.Adam(trained), example_input=Loop().inputs[:2])


def test_a_run_too_short_for_its_controller() -> None:
    late = tiny_controller(first_growth=4)
    with pytest.warns(GrowthWarning, match=r"tiny germinates nothing before epoch 4, so in epochs=5 no seed"):
        make(controller=late, epochs=5)
    make(controller=late, epochs=6)
    make(controller=late)


def test_nothing_on_the_menu() -> None:
    with pytest.warns(GrowthWarning, match=r"tiny germinates conv_heavy only, and no slot is offered that"):
        make(controller=tiny_controller(menu=("conv_heavy",)))
    make(controller=tiny_controller(menu=("conv_heavy", "norm")))


def test_a_forced_wait_is_told_as_one() -> None:
    decision = grown(1, controller=tiny_controller(first_growth=4))[0].history[0]
    assert decision.reason == "controller tiny germinates nothing before epoch 4"


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = net(), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(x)
        return out


def test_a_slot_that_never_fires() -> None:
    model = Lazy()
    with pytest.raises(WrapError, match="slot 'idle' never fired"):
        Grower(
            model,
            ["idle"],
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            example_input=Loop().inputs[:2],
        )


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    with pytest.raises(WrapError, match=r"torch.distributed runs 4 processes"):
        make()


def test_replicas_are_refused() -> None:
    model = net()
    with pytest.raises(WrapError, match="the model is a DataParallel: growing several replicas"):
        Grower(
            nn.DataParallel(model),
            ["module.0"],
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            example_input=Loop().inputs[:2],
        )


@pytest.mark.parametrize(
    "options",
    [
        {"slots": ["1"]},
        {"example_input": Loop().inputs[:2]},
        {"causal": True, "blueprints": ["norm"]},
        {"isolation_penalty": 0.0},
    ],
)
def test_wrapping_a_model_that_is_wrapped(options: dict[str, object]) -> None:
    model = esper.wrap(net(), ["0"], Loop().inputs[:2])
    with pytest.raises(WrapError, match=f"was wrapped already: leave out {', '.join(options)}, or give"):
        Grower(model, optimizer=torch.optim.SGD(model.parameters(), 0.1), **options)  # type: ignore[arg-type]


def test_an_unknown_option_is_refused_whether_the_model_is_wrapped_or_not() -> None:
    model = esper.wrap(net(), ["0"], Loop().inputs[:2])
    with pytest.raises(TypeError, match="unexpected keyword argument 'bogus'"):
        Grower(model, optimizer=torch.optim.SGD(model.parameters(), 0.1), bogus=None)  # type: ignore[call-arg]
    Grower(model, optimizer=torch.optim.SGD(model.parameters(), 0.1), causal=False, isolation_penalty=1)


def test_an_unknown_way_to_settle_is_refused_before_anything_is_removed() -> None:
    model = esper.wrap(net(), ["0"], Loop().inputs[:2])
    grower = Grower(model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"settle is 'comitted'; expected one of worth, committed"):
        grower.finish(settle="comitted")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metrics", "kind", "message"),
    [
        (
            {"validation_accuracy": 87.0},
            ValueError,
            "validation_accuracy is 87; expected a share from 0 to 1: .*Pass 0.87",
        ),
        (
            {"train_accuracy": -0.2, "validation_loss": 1.0},
            ValueError,
            "train_accuracy is -0.2; expected a share",
        ),
        (
            {"validation_accuracy": 870.0},
            ValueError,
            "validation_accuracy is 870; expected a share from 0 to 1$",
        ),
        (
            {"validation_loss": torch.zeros(3)},
            TypeError,
            "validation_loss is a Tensor that is no single number",
        ),
        ({"validation_loss": "low"}, TypeError, "validation_loss is a str that is no single number"),
    ],
)
def test_metrics_that_cannot_be_meant(metrics: dict[str, float], kind: type[Exception], message: str) -> None:
    grower, optimizer, loop = grown(1)
    loop.train(grower.model, optimizer)
    with pytest.raises(kind, match=message):
        grower.step(**metrics)
    grower.step(validation_loss=1.0)  # nothing was lost by it
    assert grower.epoch == 2


def test_no_word_of_validation() -> None:
    grower, optimizer, loop = grown(0, validate=None)
    loop.train(grower.model, optimizer)
    with pytest.raises(
        ValueError, match="step\\(\\) was given nothing of validation: pass validation_loss or"
    ):
        grower.step(train_loss=1.0)


def test_an_accuracy_that_is_nan_is_unknown() -> None:
    grower, optimizer, loop = grown(1)
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="validation_accuracy is NaN and counts as unknown"):
        decision = grower.step(validation_loss=1.0, validation_accuracy=math.nan)
    assert decision.metrics.validation_accuracy is None
    assert decision.rolled_back is None
    loop.train(grower.model, optimizer)
    grower.step(validation_loss=1.0, validation_accuracy=math.nan)  # said once


def test_an_accuracy_that_is_nan_when_measured_is_told_too() -> None:
    grower, optimizer, loop = grown(0, validate=lambda _: {"validation_accuracy": math.nan})
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="validation_accuracy is NaN and counts as unknown"):
        decision = grower.step()
    assert decision.score is None


def test_warnings_point_at_the_users_line() -> None:
    grower, *_ = grown(1)
    with pytest.warns(GrowthWarning) as told:
        grower.step(train_loss=1.0)
    assert told[0].filename == __file__


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_validation_that_fails_costs_nothing(calls: int) -> None:
    left = [calls]

    def validate(model: nn.Module) -> dict[str, float]:
        left[0] -= 1
        if not left[0]:
            raise OSError("the disk is gone")
        return loop.validate(model)

    grower, optimizer, loop = grown(0, validate=validate, schedule="germinate mlp@0 t=1")
    other, *_ = grown(3, schedule="germinate mlp@0 t=1")
    for _ in range(3):
        loss = loop.train(grower.model, optimizer)
        try:
            grower.step(train_loss=loss)
        except OSError:
            grower.step(train_loss=loss)
    assert left[0] < 0
    assert grower.history == other.history


def test_a_score_keeps_its_scale() -> None:
    grower, optimizer, loop = grown(0, validate=None, controller="wait")
    scores = []
    for told in (
        {"validation_accuracy": 0.5},
        {"validation_loss": 0.7},
        {"validation_accuracy": 0.6, "validation_loss": 0.6},
    ):
        loop.train(grower.model, optimizer)
        scores.append(grower.step(**told).score)
    assert scores == [0.5, None, 0.6]
    grower, optimizer, loop = grown(0, validate=None, controller="wait")
    scores = []
    for told in (
        {"validation_loss": 0.8},
        {"validation_accuracy": 0.5},
        {"validation_accuracy": 0.6, "validation_loss": 0.4},
    ):
        loop.train(grower.model, optimizer)
        scores.append(grower.step(**told).score)
    assert scores == [-1.0, None, -0.5]


def test_rounding_over_one_is_forgiven() -> None:
    grower, optimizer, loop = grown(1)
    loop.train(grower.model, optimizer)
    assert grower.step(validation_accuracy=1.0 + 1e-7).metrics.validation_accuracy == 1.0


def test_twice_an_epoch_is_ignored() -> None:
    grower, *_ = grown(3)
    life = grower.model.slots["0"].life
    before = (life.stage, life.age, grower.epoch, len(grower.history))
    with pytest.warns(GrowthWarning, match="the optimizer has not stepped since the last time"):
        decision = grower.step(train_loss=1.0)
    assert decision.action.op is LifecycleOp.WAIT
    assert (life.stage, life.age, grower.epoch, len(grower.history)) == before


def test_never_is_told_at_the_end() -> None:
    grower, optimizer, loop = grown(0)
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="finish\\(\\) without a step"):
        plain = grower.finish()
    assert torch.equal(plain(loop.inputs), grower.model(loop.inputs))


def test_more_epochs_than_were_said() -> None:
    grower, optimizer, loop = grown(2, epochs=2, schedule="germinate norm@0 t=3")
    loss = loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="called more often than epochs=2 says; going on"):
        grower.step(train_loss=loss)
    assert grower.model.slots["0"].stage is Stage.TRAINING
    grower.step(train_loss=loop.train(grower.model, optimizer))  # said once


@pytest.mark.parametrize(
    ("epochs", "expected"), [(None, [20] * 12 + [21, 22]), (14, [14] * 13), (2, [2, 11, 12, 13])]
)
def test_time_that_is_left(epochs: int | None, expected: list[int]) -> None:
    """Of 20 epochs if nobody says; never fewer than 8 are left, except of a run that said so."""
    horizons: list[int] = []

    class Clock:
        def reset(self) -> None: ...

        def act(self, situation: Situation) -> ActionSpec:
            horizons.append(situation.signals.horizon)
            return ActionSpec()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GrowthWarning)
        grown(len(expected) + (epochs is not None), controller=Clock(), epochs=epochs)
    assert horizons == expected


def test_a_policy_that_asks_for_the_impossible() -> None:
    class Eager:
        def reset(self) -> None: ...

        def act(self, situation: Situation) -> ActionSpec:
            del situation
            return ActionSpec(LifecycleOp.FOSSILIZE, "0")

    with pytest.warns(GrowthWarning, match="asked for what cannot be done, so nothing was: FOSSILIZE is not"):
        grower, *_ = grown(1, controller=Eager())
    assert grower.history[0].action.op is LifecycleOp.WAIT


@pytest.mark.parametrize("answer", [None, 0.5, {"accuracy": 0.5}])
def test_a_validation_that_answers_otherwise(answer: object) -> None:
    grower, optimizer, loop = grown(0, validate=lambda _: answer)
    loop.train(grower.model, optimizer)
    with pytest.raises(
        TypeError, match="expected a mapping with validation_loss, validation_accuracy or both"
    ):
        grower.step(train_loss=1.0)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([torch.zeros(3, 5)], "a batch of validate is a Tensor; expected"),
        ([(torch.zeros(3, 5), torch.zeros(3))], "expected classes, one for each row"),
        ([{"input": torch.zeros(3, 5)}], "the model gives no loss for these batches"),
        ([], "validate has no batches"),
    ],
)
def test_batches_that_cannot_be_validated_with(batches: list[object], message: str) -> None:
    grower, optimizer, loop = grown(0, validate=batches)
    loop.train(grower.model, optimizer)
    with pytest.raises((TypeError, ValueError), match=message):
        grower.step(train_loss=1.0)


# The governor


def break_weights(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)


def test_a_loss_that_is_nan_goes_back_and_training_goes_on() -> None:
    grower, optimizer, loop = grown(6)
    good = {name: tensor.clone() for name, tensor in grower.model.host.state_dict().items()}
    alpha = grower.model.slots["0"].alpha
    break_weights(grower.model.host)
    loss = loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="found the model not finite and went back to the last good epoch"):
        decision = grower.step(train_loss=loss)
    assert decision.rolled_back == "not_finite"
    assert decision.score is None
    assert all(torch.equal(tensor, good[name]) for name, tensor in grower.model.host.state_dict().items())
    assert grower.model.slots["0"].alpha == alpha  # the epoch is trained again, at the same alpha
    assert math.isfinite(loop.train(grower.model, optimizer))
    assert grower.step(train_loss=1.0).rolled_back is None
    assert "went back" in grower.explain()
    grower.plot()


def test_broken_weights_are_seen_without_a_training_loss() -> None:
    grower, optimizer, loop = grown(2)
    break_weights(grower.model.host)
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="not finite"):
        assert grower.step(validation_accuracy=0.3).rolled_back == "not_finite"


def test_divergence_and_collapse_by_the_hosts_own_past() -> None:
    grower, optimizer, loop = grown(2)
    first = grower.history[0].metrics.train_loss
    assert first is not None
    loop.train(grower.model, optimizer)
    assert grower.step(train_loss=2.9 * first).rolled_back is None
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="diverged"):
        assert grower.step(train_loss=3.1 * first).rolled_back == "diverged"
    grower, optimizer, loop = grown(3)
    loop.train(grower.model, optimizer)
    assert grower.step(validation_accuracy=0.01).rolled_back is None  # one epoch can be a shift
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="collapsed"):
        assert grower.step(validation_accuracy=0.01).rolled_back == "collapsed"


def test_noise_over_a_small_first_loss_is_no_divergence() -> None:
    grower, optimizer, loop = grown(0, controller="wait")
    for loss in (0.02, 0.01, 0.07, 2.9):
        loop.train(grower.model, optimizer)
        assert grower.step(train_loss=loss).rolled_back is None
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="diverged"):
        assert grower.step(train_loss=3.1).rolled_back == "diverged"


def test_an_epoch_at_chance_is_nothing_to_go_back_to() -> None:
    grower, optimizer, loop = grown(2)
    good = {name: tensor.clone() for name, tensor in grower.model.host.state_dict().items()}
    loop.train(grower.model, optimizer)
    grower.step(validation_accuracy=0.0)
    loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="collapsed"):
        grower.step(validation_accuracy=0.0)
    assert all(torch.equal(tensor, good[name]) for name, tensor in grower.model.host.state_dict().items())


def test_a_governor_that_cannot_help_gives_up_and_lets_training_be() -> None:
    grower, optimizer, loop = grown(2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(5):
            loop.train(grower.model, optimizer)
            grower.step(train_loss=math.inf)
    said = [str(each.message) for each in told]
    assert sum("went back" in each for each in said) == 3
    assert sum("going back has not helped" in each for each in said) == 1
    assert [decision.rolled_back for decision in grower.history[-5:]] == ["not_finite"] * 3 + [None] * 2


def test_without_a_governor_nothing_is_copied_or_restored() -> None:
    grower, optimizer, loop = grown(3, governor=None)
    loop.train(grower.model, optimizer)
    decision = grower.step(train_loss=math.nan, validation_accuracy=0.5)
    assert decision.rolled_back is None
    assert decision.score == 0.5  # what is known stays known
    assert grower._guard._memory is None
    grower.finish()


def test_a_broken_first_epoch_goes_back_to_the_weights_it_began_with() -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        validate=loop.validate,
        controller="wait",
    )
    model.load_state_dict(net(9).state_dict())  # loaded after the Grower was made
    loop.train(model, optimizer)
    with pytest.warns(GrowthWarning, match="not finite"):
        grower.step(train_loss=math.nan)
    for ours, theirs in zip(model.parameters(), net(9).parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_seed_that_stays_broken_is_removed_and_the_host_kept() -> None:
    grower, optimizer, loop = grown(2)
    seed = grower.model.slots["0"].seed
    assert seed is not None
    break_weights(seed)
    grower.step(train_loss=loop.train(grower.model, optimizer))  # once can be a scaler's overflow
    loss = loop.train(grower.model, optimizer)
    with pytest.warns(GrowthWarning, match="the seed at 0 put out NaN or Inf and was removed"):
        grower.step(train_loss=loss)
    assert grower.model.slots["0"].stage is Stage.EMBARGOED
    assert all(p.isfinite().all() for p in grower.model.parameters())


def test_a_seed_that_recovers_is_left_alone() -> None:
    grower, *_ = grown(3)
    guard = Guard(grower.model, None)
    found = []
    for broken in (True, False, True, True):
        grower.model.slots["0"].non_finite.fill_(broken)
        found.append(guard.broken_seeds())
    assert found == [[], [], [], ["0"]]


def test_the_governor_judges_by_the_same_first_epoch_after_a_checkpoint() -> None:
    grower, *_ = grown(0, controller="wait")
    unknown = (None, None, None)
    guard, other = Guard(grower.model, GovernorRules()), Guard(grower.model, GovernorRules())
    assert guard.judge(Vitals(2.0, *unknown)) is None
    other.load_state_dict(guard.state_dict())
    assert other.judge(Vitals(5.9, *unknown)) is None
    assert other.judge(Vitals(6.1, *unknown)) is Verdict.DIVERGED
