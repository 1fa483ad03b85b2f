"""Three lines in anybody's training loop: what they do, and what they leave alone."""

import copy
import math
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import esper
from esper.grower import Grower, GrowthWarning
from esper.leyline import ActionSpec, LifecycleOp, Situation, Stage, Style
from grower.loops import Loop, net

LIFE = "germinate mlp@0 t=2; advance 0 t=4; fossilize 0 t=8"


def grown(
    trained: int, /, *, schedule: str = LIFE, loop: Loop | None = None, **options: object
) -> tuple[Grower, torch.optim.Optimizer, Loop]:
    """A grower after so many epochs of a scripted life."""
    loop, model = loop or Loop(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    given: dict[str, object] = {
        "slots": ["0", "1"],
        "optimizer": optimizer,
        "example_input": loop.inputs[:2],
        "controller": esper.rule_policy("schedule", schedule=schedule),
        "validate": loop.validate,
    }
    grower = Grower(model, **(given | options))  # type: ignore[arg-type]
    for _ in range(trained):
        grower.step(train_loss=loop.train(grower.model, optimizer))
    return grower, optimizer, loop


def test_a_life_in_a_users_loop() -> None:
    grower, optimizer, loop = grown(9)
    slot = grower.model.slots["0"]
    assert slot.stage is Stage.FOSSILIZED
    assert [decision.action.op for decision in grower.history] == [
        LifecycleOp.WAIT, LifecycleOp.GERMINATE, LifecycleOp.WAIT, LifecycleOp.ADVANCE, LifecycleOp.WAIT,
        LifecycleOp.WAIT, LifecycleOp.WAIT, LifecycleOp.FOSSILIZE, LifecycleOp.WAIT,
    ]  # fmt: skip
    # One decision, one tick, one epoch: alpha was 1/3, 2/3 and 1 in the epochs after the fourth.
    alphas = [decision.slots["0"].alpha for decision in grower.history]
    assert alphas == pytest.approx([0, 0, 0, 0, 1 / 3, 2 / 3, 1, 1, 1])
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert owned == {id(p) for p in grower.model.parameters()}
    plain = grower.finish()
    assert torch.equal(plain(loop.inputs), grower.model(loop.inputs))
    assert not any("esper" in type(module).__module__ for module in plain.modules())
    clone = pickle.loads(pickle.dumps(plain))
    assert torch.equal(clone(loop.inputs), plain(loop.inputs))


def test_what_is_measured_of_a_seed() -> None:
    grower, _, loop = grown(3)
    training = grower.history[-1].slots["0"]
    assert training.probe is not None
    assert training.contribution is None
    with torch.no_grad(), grower.model.eval().override_alpha({"0": 1.0}):
        with_it = loop.validate(grower.model)["validation_accuracy"]
    without = loop.validate(grower.model)["validation_accuracy"]
    assert training.probe == pytest.approx(with_it - without)
    grower, _, loop = grown(7)
    holding = grower.history[-1].slots["0"]
    assert holding.stage is Stage.HOLDING
    with torch.no_grad(), grower.model.eval().override_alpha({"0": 0.0}):
        without = loop.validate(grower.model)["validation_accuracy"]
    with_it = loop.validate(grower.model)["validation_accuracy"]
    assert holding.contribution == pytest.approx(with_it - without)


def test_without_growth_training_is_the_same_bit_for_bit() -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(3)
    for _ in range(4):
        loop.train(model, optimizer)
    drawn = torch.rand(1)

    def validate(candidate: nn.Module) -> dict[str, float]:
        torch.rand(1)  # as a loader that shuffles does
        return loop.validate(candidate)

    torch.manual_seed(3)
    # A seed that is born after the third epoch is trained behind the host in the fourth.
    grower, *_ = grown(4, schedule="germinate norm@0 t=3", validate=validate)
    assert torch.equal(torch.rand(1), drawn)
    for ours, theirs in zip(grower.model.bare_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_validation_may_be_told_or_measured() -> None:
    calls = []

    def validate(model: nn.Module) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        calls.append(model)
        model.train()  # as a careless loop does
        return {"validation_accuracy": 0.5}

    grower, optimizer, loop = grown(0, validate=validate)
    assert len(calls) == 1  # tried at once
    calls.clear()
    assert grower.model.training
    grower.step(train_loss=loop.train(grower.model, optimizer))
    assert grower.history[0].metrics.validation_accuracy == 0.5
    assert len(calls) == 1
    assert grower.model.training
    loop.train(grower.model, optimizer)
    grower.step(train_loss=1.0, validation_loss=2.0, validation_accuracy=0.75)  # told, and no seed to measure
    assert len(calls) == 1
    assert grower.history[1].metrics.validation_accuracy == 0.75
    loop.train(grower.model, optimizer)
    grower.step(
        train_loss=1.0, validation_loss=2.0, validation_accuracy=0.75
    )  # one seed: as it is, and with it
    assert len(calls) == 3
    loop.train(grower.model.eval(), optimizer)
    grower.model.eval()
    grower.step(train_loss=1.0)
    assert not grower.model.training


def test_a_loader_of_batches_will_do() -> None:
    by_call, *_ = grown(6)
    loop = Loop()
    batches = [(loop.inputs[:30], loop.targets[:30]), (loop.inputs[30:], loop.targets[30:])]
    by_loader, *_ = grown(6, validate=batches)
    for ours, theirs in zip(by_loader.history, by_call.history, strict=True):
        assert ours.metrics.validation_accuracy == pytest.approx(theirs.metrics.validation_accuracy)
        assert ours.metrics.validation_loss == pytest.approx(theirs.metrics.validation_loss, rel=1e-5)


def test_losses_alone_are_enough() -> None:
    grower, *_ = grown(
        8, validate=lambda model: {"validation_loss": Loop().validate(model)["validation_loss"]}
    )
    first = grower.history[0].metrics.validation_loss
    last = grower.history[-1]
    assert first is not None
    assert last.metrics.validation_loss is not None
    assert last.score == pytest.approx(-last.metrics.validation_loss / first)
    assert last.slots["0"].contribution is not None


def test_the_last_epoch_decides_nothing() -> None:
    grower, *_ = grown(4, epochs=4)
    assert grower.history[-1].action.op is LifecycleOp.WAIT
    assert grower.history[-1].reason == "the last epoch: finish() settles"
    assert grower.model.slots["0"].stage is Stage.TRAINING
    assert grower.model.slots["0"].life.age == 2


def test_finish_takes_back_what_was_never_trained_with() -> None:
    grower, *_ = grown(8)
    before = copy.deepcopy(grower.model.slots["0"].life)
    assert before.stage is Stage.FOSSILIZED
    accuracy = grower.history[-1].metrics.validation_accuracy
    plain = grower.finish()
    kept = grower.model.slots["0"].stage
    assert kept in (Stage.HOLDING, Stage.EMBARGOED)  # settled as it was trained, on its merits
    assert accuracy is not None
    assert Loop().validate(plain)["validation_accuracy"] >= accuracy


def test_finish_keeps_an_epoch_that_was_trained_without_a_step() -> None:
    grower, optimizer, loop = grown(8)
    loop.train(grower.model, optimizer)
    trained = {name: tensor.clone() for name, tensor in grower.model.host.state_dict().items()}
    grower.finish()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in grower.model.host.state_dict().items())


@pytest.mark.parametrize("worth", [0.9, 0.1])
def test_finish_keeps_what_pays(worth: float) -> None:
    def validate(model: nn.Module) -> dict[str, float]:
        if not isinstance(model, esper.GrowingModel):
            return {"validation_accuracy": 0.5}
        slot = model.slots["0"]
        on = slot.seed is not None and slot.alpha_override != 0.0
        return {"validation_accuracy": worth if on else 0.5}

    grower, *_ = grown(7, validate=validate, epochs=7)
    grower.finish()
    assert (grower.model.slots["0"].seed is not None) == (worth > 0.5)


@pytest.mark.parametrize(("alone", "kept"), [(math.nan, True), (0.9, False)])
def test_a_model_that_cannot_be_scored_without_a_seed_needs_it(alone: float, kept: bool) -> None:
    def validate(model: nn.Module) -> dict[str, float]:
        if not isinstance(model, esper.GrowingModel):
            return {"validation_accuracy": 0.2}
        slot = model.slots["0"]
        on = slot.seed is None or slot.alpha_override != 0.0
        return {"validation_accuracy": 0.2 if on else alone}

    grower, *_ = grown(7, validate=validate, epochs=7)
    grower.finish()
    assert (grower.model.slots["0"].seed is not None) == kept


def test_rent_can_make_a_seed_too_dear() -> None:
    def validate(model: nn.Module) -> dict[str, float]:
        off = isinstance(model, esper.GrowingModel) and model.slots["0"].alpha_override == 0.0
        return {"validation_accuracy": 0.5 if off else 0.6}

    for rent, kept in ((0.0, True), (100.0, False)):
        grower, *_ = grown(7, validate=validate, epochs=7, rent=rent)
        grower.finish()
        assert (grower.model.slots["0"].seed is not None) == kept


def test_without_validation_what_holds_is_kept_and_that_is_told_once() -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rule = esper.rule_policy("schedule", schedule="germinate mlp@0 t=1; advance 0 t=2; germinate norm@1 t=6")
    grower = Grower(
        model, ["0", "1"], optimizer=optimizer, example_input=loop.inputs[:2], controller=rule, epochs=7
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(7):
            grower.step(train_loss=loop.train(grower.model, optimizer), validation_accuracy=0.5)
        grower.finish()
    assert [str(each.message) for each in told if each.category is GrowthWarning] == [
        "seeds grow, and without validate= it is unknown what each contributes: by_layout and other rules that go by "
        "that take them out again, or leave them undecided; what is HOLDING or FOSSILIZED at the end is kept. Pass "
        "validate= to have them judged"
    ]
    assert grower.model.slots["0"].stage is Stage.HOLDING
    assert grower.model.slots["1"].seed is None
    assert grower.history[-1].slots["0"].contribution is None


def test_settle_committed() -> None:
    grower, *_ = grown(7, epochs=7)
    grower.finish(settle="committed")
    assert grower.model.added_parameters == 0


def test_a_gate_is_left_out_where_the_budget_has_no_room_for_it() -> None:
    class Gates:
        def reset(self) -> None: ...

        def act(self, situation: Situation) -> ActionSpec:
            legal = situation.legal["0"]
            if "norm" not in legal.blueprints:
                return ActionSpec()
            return ActionSpec(LifecycleOp.GERMINATE, "0", "norm", style=Style.GATE)

    for room, style in ((7, Style.LINEAR_ADD), (15, Style.GATE)):  # a scale of 7, a gate of 8
        grower, *_ = grown(2, controller=Gates(), parameter_budget=room)
        assert grower.history[0].action.style is style
        assert grower.model.added_parameters <= room


def test_what_it_says() -> None:
    grower, *_ = grown(9)
    assert str(grower.history[1]).startswith("epoch 2: germinate mlp at 0 (224 parameters, ")
    told = grower.explain()
    parts = ["controller schedule, 9 epochs", "advance 0", "switching it on would change the score by"]
    parts += ["fossilize 0 (contribution ", "added 224 parameters"]
    parts += [f"score {grower.history[-1].score:.4f} after epoch 9 (validation accuracy)\n"]
    for part in parts:
        assert part in told, part
    assert "nothing was grown" in grown(1)[0].explain()


def test_it_claims_no_gain_that_was_not_measured() -> None:
    kept, *_ = grown(9, schedule="germinate mlp@0 t=4; advance 0 t=5")
    assert kept.history[-1].gain_forecast is not None
    assert "forecast" not in kept.explain()
    assert "gain" not in kept.explain()


def test_what_the_end_took_out_is_told() -> None:
    grower, *_ = grown(6, schedule="germinate mlp@0 t=2; germinate norm@1 t=4; advance 0 t=5", rent=100.0)
    assert "finish" not in grower.explain()
    grower.finish()
    told = grower.explain()
    assert "finish: removed mlp at 0, norm at 1 (unfinished, or not worth the rent)" in told
    assert f"score {grower.history[-1].score:.4f} after epoch 6, before finish removed seeds (" in told


def test_the_picture(tmp_path: Path) -> None:
    grower, *_ = grown(9)
    with pytest.raises(ValueError, match=r"path is '.*none/run.png'; there is no folder '.*none'"):
        grower.plot(tmp_path / "none" / "run.png")
    with pytest.raises(
        ValueError, match=r"path is '.*run.foo'; expected a name that ends in .png, .svg or .pdf"
    ):
        grower.plot(tmp_path / "run.foo")
    figure = grower.plot(tmp_path / "run.png")
    above, below = figure.axes
    assert above.get_ylabel() == "validation accuracy"
    assert [label.get_text() for label in below.get_yticklabels()] == ["1", "0"]
    assert (tmp_path / "run.png").stat().st_size > 10_000
    known = [decision.score for decision in grower.history if decision.score is not None]
    low, high = above.get_ylim()
    assert above.texts
    assert max(known) < low + 0.65 * (high - low)  # the names of operations have the room above
    grown(0)[0].plot()


def test_the_picture_names_no_forecast_where_none_is_drawn() -> None:
    early, *_ = grown(4, schedule="germinate mlp@0 t=1; advance 0 t=2")
    legend = early.plot().axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["validation"]
    with_one, *_ = grown(7, schedule="germinate mlp@0 t=4; advance 0 t=5")
    legend = with_one.plot().axes[0].get_legend()
    assert legend is not None
    assert "forecast without growth" in [text.get_text() for text in legend.get_texts()]


def test_forecasts_are_measured_while_no_seed_takes_part() -> None:
    early, *_ = grown(4, schedule="germinate mlp@0 t=1; advance 0 t=2")
    assert early.history[-1].forecast is None  # two epochs without a seed show no trend
    grower, *_ = grown(7, schedule="germinate mlp@0 t=4; advance 0 t=5")
    rent = 0.01 * grower.model.added_parameters / grower.model.host_parameters
    for decision in grower.history[:5]:  # one in isolation owes its rent, and changes nothing
        assert decision.forecast == decision.score
        assert decision.gain_forecast == pytest.approx(-rent if decision.added_parameters else 0.0)
    later = grower.history[-1]
    assert later.score is not None
    assert later.forecast is not None
    assert later.forecast != later.score
    assert later.gain_forecast == pytest.approx(later.score - later.forecast - rent)


def test_a_forecast_begins_anew_when_the_seed_is_gone() -> None:
    """A seed that was tried and pruned is no anchor: what came after it was measured."""
    grower, *_ = grown(
        10, schedule="germinate mlp@0 t=3; advance 0 t=4; prune 0 t=6; germinate norm@1 t=8; advance 1 t=9"
    )
    measured = [decision.forecast == decision.score for decision in grower.history]
    assert measured == [True] * 4 + [False] * 2 + [True] * 3 + [False]


def test_importing_esper_stays_cheap() -> None:
    code = (
        "import sys, esper; assert not {'torch', 'esper.kasmina'} & set(sys.modules); "
        "esper.Grower; assert {'torch', 'esper.kasmina'} <= set(sys.modules); "  # names load on first use
        "assert not {'sklearn', 'matplotlib', 'gymnasium', 'torch._dynamo'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_growing_model_is_taken_as_it_is() -> None:
    loop = Loop()
    model = esper.wrap(net(), ["1"], loop.inputs[:2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grower = Grower(model, optimizer=optimizer, validate=loop.validate, controller="wait")
    grower.step(train_loss=loop.train(model, optimizer))
    assert grower.model is model
