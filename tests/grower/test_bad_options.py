"""Options that a Grower refuses when it is made, or warns of, are named with what to do."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import esper
from esper.grower import Grower, GrowthWarning
from esper.kasmina import WrapError
from esper.leyline import LifecycleOp
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
        ({"slots": None, "example_input": None}, WrapError, "slots and example_input are missing"),
        ({"slots": None}, WrapError, "^slots is missing: where may the model grow"),
        ({"example_input": None}, WrapError, "^example_input is missing: what goes through it"),
        ({"example_input": torch.randn(2, 9)}, WrapError, r"example_input \(shape \(2, 9\)\) does not go"),
        ({"optimizer": torch.optim.Adam(net().parameters())}, ValueError, "none of the host's parameters"),
        ({"controller": 3}, ControllerError, "controller is 3; expected a name, a folder, a Controller"),
        ({"controller": "plato"}, ControllerError, "controller is 'plato'; expected one of"),
        ({"parameter_budget": 6}, ValueError, r"budget is 6.*the cheapest is norm at 0 with 7 parameters"),
        (
            {"parameter_budget": 7, "controller": tiny_controller(menu=("lora",))},
            ValueError,
            r"budget is 7.*the cheapest is lora at",
        ),
        ({"parameter_budget": 1.5}, ValueError, "parameter_budget is 1.5; .* >= 1, or None for no limit$"),
        ({"epochs": 0}, ValueError, "epochs is 0; expected a whole number >= 1"),
        ({"accumulate": 0}, ValueError, "accumulate is 0; expected a whole number >= 1$"),
        ({"accumulate": None}, ValueError, "accumulate is None; expected a whole number >= 1$"),
        ({"training_samples": True}, ValueError, "training_samples is True"),
        ({"rent": -1.0}, ValueError, "rent is -1.0; expected a finite number >= 0"),
        ({"rent": "a"}, ValueError, "rent is 'a'; expected a finite number >= 0"),
        ({"governor": True}, TypeError, "governor is True; expected a GovernorRules, or None"),
        ({"scaler": True}, TypeError, "scaler is True; expected a torch.amp.GradScaler, or None"),
        ({"generator": 3}, TypeError, "generator is 3; expected a torch.Generator, or None"),
        ({"keep_best": "yes"}, TypeError, "keep_best is 'yes'; expected True or False"),
        ({"keep_best": None}, TypeError, "keep_best is None; expected True or False"),
        (
            {"twin": lambda _model, _batch: None},
            TypeError,
            r"twin is .*expected a function \(model, optimizer, ba",
        ),
        ({"validate": 3}, TypeError, "validate is a int; expected a function of the model, or a loader"),
        ({"validate": iter([])}, TypeError, "is an iterator, which runs out"),
    ],
)
def test_what_is_refused_when_it_is_made(
    options: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(**options)


def test_accumulation_is_refused_where_the_penalty_was_set_before() -> None:
    loop = Loop()
    model = esper.wrap(net(), ["0", "1"], loop.inputs[:2], isolation_penalty=0.25)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with pytest.raises(WrapError, match=r"accumulate is 4.*give esper.wrap isolation_penalty=1 / 4$"):
        Grower(model, optimizer=optimizer, validate=loop.validate, accumulate=4)
    assert Grower(model, optimizer=optimizer, validate=loop.validate).model.isolation_penalty == 0.25


def test_a_class_is_no_model() -> None:
    with pytest.raises(
        TypeError, match=r"model is <class .*Linear'>; expected a torch.nn.Module, made and not"
    ):
        Grower(nn.Linear, ["0"], optimizer=torch.optim.Adam(net().parameters()))  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("rule", "least"), [("by_layout", 8), ("probe_and_keep", 9), ("frozen_spread", 6)])
def test_a_run_too_short_for_its_rule(rule: str, least: int) -> None:
    """The number of epochs that is asked for is enough, and one fewer is not."""
    with pytest.warns(GrowthWarning, match=f"{rule} begins nothing .*epochs=3: train with {least} epochs or"):
        make(controller=rule, epochs=3)
    for epochs in (least - 1, least):
        loop, model = Loop(), net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", GrowthWarning)
            grower = Grower(
                model,
                ["0", "1"],
                optimizer=optimizer,
                example_input=loop.inputs[:2],
                validate=loop.validate,
                controller=rule,
                epochs=epochs,
            )
        for _ in range(epochs):
            grower.step(train_loss=loop.train(model, optimizer))
        grows = any(decision.action.op is LifecycleOp.GERMINATE for decision in grower.history)
        assert (grows, bool(caught)) == (epochs == least, epochs < least)


def test_a_budget_without_room_for_anything_the_rule_would_try() -> None:
    """The slots offer norm with 7 parameters, which by_layout never tries."""
    with pytest.warns(
        GrowthWarning,
        match=r"budget is 48, .*by_layout would try is widen at 0 with 49 parameters. Raise the budget to 49",
    ):
        make(parameter_budget=48)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GrowthWarning)
        make(parameter_budget=49)


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
