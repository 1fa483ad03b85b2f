"""What a user's loop may say that cannot be meant is named with what to do, and training is never broken by it."""

import math
import warnings

import pytest
import torch
from torch import nn

from esper.grower import Grower, GrowthWarning
from esper.grower.measuring import EpochMetrics
from esper.kasmina.governor import GovernorRules
from esper.leyline import ActionSpec, LifecycleOp, Situation, Stage
from grower.loops import Loop
from grower.test_grower import grown


def test_a_batch_that_the_model_does_not_take_is_named_with_its_shapes() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    validate = [(torch.zeros(8, 5), torch.zeros(8, dtype=torch.int64))]
    with pytest.raises(
        TypeError,
        match=r"validate gives a tuple of float32 \(8, 5\), int64 \(8,\), which the model does not take: ",
    ):
        Grower(
            model,
            ["0"],
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            example_input=torch.zeros(2, 4),
            validate=validate,
            epochs=20,
        )


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
            r"validation_loss is a tensor of shape \(3,\); expected a float",
        ),
        (
            {"validation_accuracy": "0.5"},
            TypeError,
            r"validation_accuracy is '0.5' \(str\); expected a float",
        ),
        ({"validation_loss": "low"}, TypeError, r"validation_loss is 'low' \(str\); expected"),
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


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("governor", [GovernorRules(), None])
def test_a_validation_that_is_nan_costs_no_training(measured: bool, governor: GovernorRules | None) -> None:
    broken = {"validation_loss": math.nan, "validation_accuracy": 0.3}
    answers = [False]
    loop = Loop()
    grower, optimizer, loop = grown(
        3, loop=loop, validate=lambda model: broken if answers[0] else loop.validate(model), governor=governor
    )
    grower.model.host.register_buffer("mask", torch.full((2, 2), -math.inf))  # as attention has them
    answers[0] = True
    loss = loop.train(grower.model, optimizer)
    trained = {name: tensor.clone() for name, tensor in grower.model.named_parameters()}
    with pytest.warns(
        GrowthWarning, match="validation_loss is NaN while the network is finite: look at validate="
    ):
        decision = grower.step(train_loss=loss, **({} if measured else broken))
    assert decision.rolled_back is None
    assert decision.score is None
    assert decision.metrics == EpochMetrics(train_loss=loss)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in grower.model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error", GrowthWarning)  # said once
        assert grower.step(train_loss=loop.train(grower.model, optimizer)).score is None
        answers[0] = False
        assert grower.step(train_loss=loop.train(grower.model, optimizer)).score is not None


@pytest.mark.parametrize("buffer", [True, False])
def test_a_validation_that_is_nan_by_the_network_goes_back(buffer: bool) -> None:
    """Weights, or running statistics: a scaler that skips a step keeps the weights from what these have seen."""
    grower, optimizer, loop = grown(0, controller="wait")
    grower.model.host.register_buffer("running", torch.zeros(2))
    for _ in range(2):
        grower.step(train_loss=loop.train(grower.model, optimizer))
    loop.train(grower.model, optimizer)
    broken = next(grower.model.host.buffers() if buffer else grower.model.host.parameters())
    with torch.no_grad():
        broken.fill_(math.nan)
    with pytest.warns(GrowthWarning, match="found the model not finite"):
        decision = grower.step(train_loss=1.0, validation_loss=math.nan)
    assert decision.rolled_back == "not_finite"
    assert bool(broken.isfinite().all())


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

    left[0] += 1  # it is tried when the Grower is made
    loop = Loop()
    grower, optimizer, loop = grown(0, validate=validate, schedule="germinate mlp@0 t=1", loop=loop)
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
    with pytest.raises(
        TypeError, match="expected a mapping with validation_loss, validation_accuracy or both"
    ):
        grown(0, validate=lambda _: answer)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([torch.zeros(3, 5)], "a batch of validate is a Tensor; expected"),
        ([(torch.zeros(3, 5), torch.zeros(3, 2).long())], "expected classes, one for each row"),
        (
            [(torch.zeros(3, 5), torch.tensor([0, -100, 5]))],
            "the targets go to 5, and the model puts out 3 classes: expected targets from 0 to 2",
        ),
        (
            [(torch.zeros(3, 5), torch.tensor([-1, 0, 1]))],
            "the targets go from -1 to 1, and the model puts out",
        ),
        (
            [(torch.zeros(3, 5), torch.rand(3))],
            r"float32 \(3,\); expected float targets shaped as the outputs",
        ),
        ([{"input": torch.zeros(3, 5)}], "the model gives no loss for these batches"),
        ([], "validate has no batches"),
    ],
)
def test_batches_that_cannot_be_validated_with(batches: list[object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        grown(0, validate=batches)
