"""The twin: the model as it would be without growth, and the gain that is measured against it."""

import copy
import io
import math
import re
from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import esper
from esper.grower import Grower
from esper.grower.measuring import Mode, Scale
from esper.grower.twin import measure_gain
from esper.grower.validating import LoaderValidation
from esper.kasmina import WrapError
from grower.loops import Loop, net
from grower.test_grower import LIFE

Batch = tuple[Tensor, Tensor]


def train_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
    inputs, targets = batch
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def noisy_net() -> nn.Sequential:
    """With dropout, batch statistics, and a frozen norm in eval mode."""
    first, second, last = net()
    return nn.Sequential(
        nn.Sequential(*first, nn.BatchNorm1d(7), nn.Dropout(0.3)),  # type: ignore[misc]
        nn.Sequential(*second, nn.BatchNorm1d(7)),  # type: ignore[misc]
        last,
    )


class Run:
    """A loop that trains through a Grower with a twin."""

    def __init__(self, **options: object) -> None:
        self.loop = Loop()
        self.model = noisy_net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.8)
        given: dict[str, object] = {
            "validate": [
                (self.loop.inputs[:40], self.loop.targets[:40]),
                (self.loop.inputs[40:], self.loop.targets[40:]),
            ],
            "controller": esper.rule_policy("schedule", schedule=LIFE),
            "twin": train_step,
            "epochs": 9,
        }
        self.grower = Grower(
            self.model,
            ["0", "1"],
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            example_input=self.loop.inputs[:2],
            **(given | options),  # type: ignore[arg-type]
        )

    def epochs(self, count: int) -> None:
        self.grower.model.train()
        frozen_statistics(self.model)
        for _ in range(count):
            for batch in self.loop.batches():
                loss = self.grower.train(batch)
            assert isinstance(loss, Tensor)
            assert not loss.requires_grad
            self.grower.step(train_loss=loss)
            self.scheduler.step()

    @property
    def twin(self) -> nn.Module:
        assert self.grower._twin is not None
        return self.grower._twin.model


def frozen_statistics(model: nn.Sequential) -> None:
    second = model[1]
    assert isinstance(second, nn.Sequential)
    second[2].eval()


def plainly(model: nn.Sequential, epochs: int) -> None:
    """The same training without a Grower."""
    loop = Loop()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    model.train()
    frozen_statistics(model)
    for _ in range(epochs):
        for batch in loop.batches():
            train_step(model, optimizer, batch)
        scheduler.step()


def equal(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in ours.items()) and len(ours) == len(theirs)


def test_the_twin_is_the_model_without_growth_bit_for_bit() -> None:
    """Dropout, batch statistics, momentum and a schedule; growth in the other model moves nothing in it."""
    torch.default_generator.manual_seed(3)
    run = Run()
    run.epochs(9)
    assert run.grower.model.added_parameters
    after = torch.random.get_rng_state()
    torch.default_generator.manual_seed(3)
    alone = noisy_net()
    plainly(alone, 9)
    assert equal(run.twin, alone)
    assert torch.equal(torch.random.get_rng_state(), after)  # the twin draws nothing of its own


def test_without_growth_both_are_the_same_and_the_gain_is_nothing() -> None:
    run = Run(controller="wait")
    run.epochs(3)
    plain = run.grower.finish()
    assert equal(plain, run.twin)
    gain = run.grower.gain()
    assert (gain.value, gain.low, gain.high, gain.rent) == (0.0, 0.0, 0.0, 0.0)
    assert gain.over == "66 samples"
    assert plain is not run.twin


def each_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def test_the_gain_is_the_difference_on_validation() -> None:
    run = Run(rent=0.1, loss=each_loss)
    run.epochs(8)
    gain = run.grower.gain()
    with torch.no_grad():
        ours, theirs = (
            each_loss(copy.deepcopy(model).eval()(run.loop.inputs), run.loop.targets).mean().item()
            for model in (run.grower.model, run.twin)
        )
    first = run.grower.history[0].metrics.validation_loss or 0.0
    rent = 0.1 * run.grower.model.added_parameters / run.grower.model.host_parameters
    assert rent > 0.01
    assert gain.rent == pytest.approx(rent)
    assert gain.value == pytest.approx((theirs - ours) / first - rent, abs=1e-6)
    assert gain.over == "66 samples"
    assert (gain.low or 0.0) < (gain.value or 0.0) < (gain.high or 0.0)
    assert run.grower.model.training  # measuring changes nothing


@pytest.mark.parametrize(("harm", "given"), [(False, "grown model"), (True, "twin, which is better")])
def test_the_better_of_the_two_is_given_back(harm: bool, given: str) -> None:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        climbs = isinstance(model, esper.GrowingModel) == harm
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        (-0.1 * loss if climbs else loss).backward()
        optimizer.step()
        return loss

    run = Run(twin=step, loss=F.cross_entropy, governor=None)
    run.epochs(9)
    run.grower.model.eval()
    plain = run.grower.finish()
    assert equal(plain, run.twin) == harm
    assert not any(m.training for m in plain.modules() if isinstance(m, nn.BatchNorm1d | nn.Dropout))
    assert not plain.training
    assert all(parameter.grad is None for parameter in plain.parameters())
    assert not {id(p) for p in plain.parameters()} & {id(p) for p in run.twin.parameters()}
    gain = run.grower.gain()
    assert gain.value is not None
    assert (gain.value < 0) == harm
    told = run.grower.explain()
    assert f"finish: gave back the {given}" in told
    assert re.search(r"twin: trained on 27 batches, \d+ parameters more in memory, \d+\.\d s beside", told)
    assert f"gain {gain.value:+.4f} over the twin, after rent" in told
    assert (gain.low, gain.high, gain.over) == (None, None, "2 batches")
    assert (
        "(paired over 2 batches, too few for an interval); score: minus validation loss, in units of " in told
    )


def test_without_a_twin_nothing_is_called_a_gain() -> None:
    run = Run(twin=None, controller=esper.rule_policy("schedule", schedule=LIFE))
    for _ in range(9):
        for batch in run.loop.batches():
            loss = train_step(run.grower.model, run.optimizer, batch)
        run.grower.step(train_loss=loss)
    run.grower.finish()
    assert "gain" not in run.grower.explain()
    with pytest.raises(ValueError, match="a gain is measured against a twin, and there is none"):
        run.grower.gain()
    with pytest.raises(ValueError, match="beside its twin, and there is none: make the Grower with twin="):
        run.grower.train(run.loop.batches()[0])


def test_a_twin_goes_on_from_a_checkpoint_bit_for_bit() -> None:
    torch.default_generator.manual_seed(5)
    first = Run()
    first.epochs(5)
    file = io.BytesIO()
    torch.save({"grower": first.grower.state_dict(), "scheduler": first.scheduler.state_dict()}, file)
    order, random = first.loop.order.get_state(), torch.random.get_rng_state()
    first.epochs(4)
    second = Run()
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second.grower.load_state_dict(state["grower"])
    second.scheduler.load_state_dict(state["scheduler"])
    second.loop.order.set_state(order)
    torch.random.set_rng_state(random)
    second.epochs(4)
    assert equal(first.twin, second.twin)
    assert first.grower.history == second.grower.history
    assert first.grower.gain() == second.grower.gain()
    with pytest.raises(ValueError, match="saved with a twin; this Grower was made without one"):
        Run(twin=None).grower.load_state_dict(state["grower"])
    with pytest.raises(ValueError, match="saved without a twin; this Grower was made with one"):
        Run().grower.load_state_dict({**state["grower"], "twin": None})


class Heavy(Optimizer):
    """Momentum, in attributes that are no options of its groups."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.beta, self.steps = 0.9, torch.zeros(())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    held = self.state[parameter]
                    held["m"] = held.get("m", torch.zeros_like(parameter)) * self.beta + parameter.grad
                    parameter.sub_(group["lr"] / self.steps.sqrt() * held["m"])


def heavy_run(loop: Loop) -> tuple[nn.Sequential, Heavy, Grower]:
    """Nothing grows; the optimiser has stepped before, and the first part is frozen."""
    model = net()
    optimizer = Heavy(model.parameters())
    train_step(model, optimizer, loop.batches()[0])
    model[0].requires_grad_(False)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller="wait",
        validate=loop.validate,
        twin=train_step,
    )
    return model, optimizer, grower


def test_an_optimiser_with_attributes_and_a_part_that_is_thawed() -> None:
    loop = Loop()
    model, optimizer, grower = heavy_run(loop)
    grower.train(loop.batches()[0])
    frozen = copy.deepcopy(model[0])
    model[0].requires_grad_(True)
    grower.train(loop.batches()[0])
    assert not equal(model[0], frozen)
    assert grower._twin is not None
    assert equal(model, grower._twin.model)
    assert optimizer.steps == 3


def test_parameters_that_come_to_the_optimiser_later_are_refused() -> None:
    loop, model = Loop(), net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1:].parameters(), lr=0.1)
    grower = Grower(
        model,
        ["1"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller="wait",
        validate=loop.validate,
        twin=train_step,
    )
    optimizer.add_param_group({"params": list(model[0].requires_grad_(True).parameters())})
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match="more parameters of the model after the Grower was made"):
        grower.train(loop.batches()[0])
    assert equal(model, before)


def test_training_beside_the_twin_is_noticed() -> None:
    run = Run()
    train_step(run.grower.model, run.optimizer, run.loop.batches()[0])
    run.grower.train(run.loop.batches()[0])
    with pytest.raises(
        RuntimeError, match="stepped 2 times in this epoch and the twin's 1 times: train only with"
    ):
        run.grower.step(train_loss=1.0)


@pytest.mark.parametrize("with_the_given_optimizer", [False, True])
def test_a_step_that_trains_the_model_of_the_loop_is_noticed(with_the_given_optimizer: bool) -> None:
    def careless(_: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        return train_step(run.grower.model, optimizer if with_the_given_optimizer else run.optimizer, batch)

    run = Run(twin=careless)
    with pytest.raises(
        RuntimeError, match="twin= trained the model of your loop while it was given the twin"
    ):
        run.grower.train(run.loop.batches()[0])


def test_a_twin_that_is_not_stepped_is_noticed() -> None:
    def careless(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        if model is run.grower.model:
            return train_step(model, optimizer, batch)
        return torch.zeros(())

    run = Run(twin=careless)
    run.grower.train(run.loop.batches()[0])
    with pytest.raises(RuntimeError, match="let twin= step the optimizer that it is given"):
        run.grower.step(train_loss=1.0)


def test_a_schedule_within_the_step_is_noticed() -> None:
    def step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> Tensor:
        loss = train_step(model, optimizer, batch)
        run.scheduler.step()
        return loss

    run = Run(twin=step)
    with pytest.raises(RuntimeError, match=r"Call scheduler.step\(\) in your loop, after grower.train"):
        run.grower.train(run.loop.batches()[0])


def foreign(model: nn.Module) -> Optimizer:
    return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"twin": True}, TypeError, r"twin is True; expected a function \(model, optimizer, batch\) -> loss"),
        ({"validate": None}, ValueError, "twin is given and validate is not: there is nothing to measure"),
        ({"scaler": torch.amp.GradScaler("cpu")}, ValueError, "two models cannot share a GradScaler"),
        ({"keep_best": True}, ValueError, "twin and keep_best=True are given: the best of many epochs"),
        ({"optimizer": foreign}, ValueError, "holds 1 tensors that are no parameters of the model"),
    ],
)
def test_what_can_have_no_honest_twin_is_refused(
    options: dict[str, object], kind: type[Exception], message: str
) -> None:
    model, loop = net(), Loop()
    optimizer = options.get("optimizer", lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    given: dict[str, object] = {"validate": loop.validate, "twin": train_step}
    with pytest.raises(kind, match=message):
        Grower(
            model,
            ["0"],
            example_input=loop.inputs[:2],
            **(given | options | {"optimizer": optimizer(model)}),  # type: ignore[operator]
        )


def test_a_wrapped_model_has_no_twin() -> None:
    model = esper.wrap(net(), ["0"], Loop().inputs[:2])
    with pytest.raises(WrapError, match="a twin is copied from a plain model"):
        Grower(
            model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            validate=Loop().validate,
            twin=train_step,
        )


# The interval


class Says(nn.Module):
    """Answers with what its weight makes of the input."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def per_sample(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square()


def numbers(count: int = 400) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, generator=generator)
    return x, x + 0.5 * torch.randn(count, generator=generator)


def gained(
    loss: Callable[..., object] | None = per_sample,
    metric: Callable[..., object] | None = None,
    mode: Mode | None = None,
) -> esper.grower.Gain:
    x, y = numbers()
    batches = list(zip(x.split(90), y.split(90), strict=True))
    return measure_gain(Says(1.0), Says(0.8), LoaderValidation(batches, loss, metric), Scale(mode), rent=0.0)


def test_an_interval_over_samples_is_that_of_the_mean_of_pairs() -> None:
    x, y = numbers()
    ours, theirs = per_sample(x, y), per_sample(0.8 * x, y)
    difference = (theirs - ours) / ours.mean()  # scores are minus the loss over the first, which is ours
    gain = gained()
    assert gain.over == "400 samples"
    assert gain.value == pytest.approx(difference.mean().item(), rel=1e-4)
    error = (difference.std() / math.sqrt(len(x))).item()
    assert gain.low == pytest.approx(difference.mean().item() - 1.96 * error, abs=0.15 * error)
    assert gain.high == pytest.approx(difference.mean().item() + 1.96 * error, abs=0.15 * error)


def test_means_of_batches_are_paired_by_batch() -> None:
    gain, finer = gained(F.mse_loss), gained()
    assert gain.over == "5 batches"
    assert gain.value == pytest.approx(finer.value, rel=1e-4)


def test_a_metric_of_the_whole_is_drawn_anew() -> None:
    def r_squared(out: Tensor, y: Tensor) -> Tensor:
        return 1 - per_sample(out, y).mean() / y.var()

    x, y = numbers()
    gain = gained(None, metric=r_squared, mode="max")
    unit = r_squared(x, y).item()
    assert gain.over == "400 samples"
    assert gain.value == pytest.approx((unit - r_squared(0.8 * x, y).item()) / unit, rel=1e-4)
    assert 0 < (gain.low or 0.0) < (gain.value or 0.0) < (gain.high or 0.0)

    def fails_on_draws(out: Tensor, y: Tensor) -> Tensor:
        if len(torch.unique(out)) < len(out):
            raise ValueError("doubled samples")
        return r_squared(out, y)

    without = gained(None, metric=fails_on_draws, mode="max")
    assert (without.low, without.over) == (None, "")
    assert "one number each, so without an interval" in str(without)


def test_a_loader_that_shuffles_is_paired_all_the_same() -> None:
    x, y = numbers()

    class Shuffled:
        def __iter__(self):  # type: ignore[no-untyped-def]
            order = torch.randperm(len(x))
            return iter([(x[rows], y[rows]) for rows in order.split(90)])

    gain = measure_gain(Says(1.0), Says(0.8), LoaderValidation(Shuffled(), per_sample), Scale(), rent=0.0)
    assert gain.high - gain.low == pytest.approx(gained().high - gained().low, rel=0.1)  # type: ignore[operator]


def test_what_cannot_be_measured_is_unknown_and_the_other_is_kept() -> None:
    x, y = numbers()
    validate = LoaderValidation([(x, y)], per_sample)
    lost = measure_gain(Says(math.nan), Says(0.8), validate, _scale(), rent=0.0)
    assert (lost.value, lost.pays) == (None, False)
    assert str(lost) == "gain unknown: the grown model could not be measured"
    broken_twin = measure_gain(Says(1.0), Says(math.nan), validate, _scale(), rent=0.0)
    assert (broken_twin.value, broken_twin.pays) == (None, True)


def _scale() -> Scale:
    return Scale(by="loss", seen=[1.0], unit=1.0)
