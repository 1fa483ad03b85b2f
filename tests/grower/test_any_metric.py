"""Any loss and any metric: what is measured is what the formula says, and what does not fit is named at once."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper import GrowthWarning
from esper.grower import Grower
from esper.grower.losses import Batch, refuse_unclear
from esper.grower.validating import LoaderValidation
from esper.leyline import ActionSpec, LifecycleOp, Situation, Stage

FEATURES, WIDTH, SAMPLES = 5, 7, 23


def batches(targets: Tensor, inputs: Tensor | None = None, size: int = 11) -> list[tuple[Tensor, Tensor]]:
    """Of 11, 11 and 1 samples."""
    inputs = samples() if inputs is None else inputs
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def samples() -> Tensor:
    return torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two layers with a slot, and a head that answers as a problem wants it."""

    def __init__(self, outputs: int, answer: Callable[[Tensor], object] = lambda out: out) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh())
            self.head = nn.Linear(WIDTH, outputs)
        self.answer = answer

    def forward(self, x: Tensor) -> object:
        return self.answer(self.head(self.body(x)))


@dataclass(frozen=True)
class Problem:
    outputs: int
    targets: Callable[[Tensor], Tensor]
    loss: Callable[..., object] | None
    """As a user passes it to the Grower."""
    trained: Callable[..., Tensor]
    """The same loss as a mean over the whole set, as the loop trains it."""
    answer: Callable[[Tensor], object] = lambda out: out


def padded(x: Tensor) -> Tensor:
    """(sample, 3) tokens of 4 kinds; 0 is padding, and samples have 1 to 3 that count."""
    tokens = 1 + (x[:, :3] > 0).long() + (x[:, 1:4] > 1).long()
    lengths = 1 + (x[:, 4] > 0).long() + (x[:, 4] > 0.7).long()
    return tokens * (torch.arange(3) < lengths[:, None])


def token_loss(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    found = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=0, reduction="sum")
    return found, (tokens != 0).sum()


PROBLEMS = {
    "regression": Problem(
        1,
        lambda x: 100.0 + 30.0 * x[:, 0] * x[:, 1],
        None,
        lambda out, y: F.mse_loss(out[:, 0], y),
    ),
    "several numbers": Problem(2, lambda x: x[:, :2].square(), F.mse_loss, F.mse_loss),
    "a number for each sample": Problem(
        1,
        lambda x: x[:, 0] - x[:, 1],
        lambda out, y: F.huber_loss(out[:, 0], y, reduction="none"),
        lambda out, y: F.huber_loss(out[:, 0], y),
    ),
    "one logit": Problem(
        1,
        lambda x: (x[:, 0] * x[:, 1] > 0).float(),
        lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y),
        lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y),
    ),
    "multi-label": Problem(
        3,
        lambda x: (x[:, :3] > 0).float(),
        F.binary_cross_entropy_with_logits,
        F.binary_cross_entropy_with_logits,
    ),
    "a tuple of outputs": Problem(
        3,
        lambda x: (x[:, 0] > 0).long(),
        lambda outs, y: F.cross_entropy(outs[0], y) + outs[1].square().mean(),
        lambda outs, y: F.cross_entropy(outs[0], y) + outs[1].square().mean(),
        answer=lambda out: (out[:, :2], out[:, 2]),
    ),
    "a dict of outputs": Problem(
        3,
        lambda x: (x[:, 0] > 0).long(),
        lambda outs, y: F.cross_entropy(outs["classes"], y),
        lambda outs, y: F.cross_entropy(outs["classes"], y),
        answer=lambda out: {"other": out[:, 2], "classes": out[:, :2]},
    ),
    "padded sequences": Problem(
        12,
        padded,
        token_loss,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=0),
        answer=lambda out: out.unflatten(1, (3, 4)),
    ),
}  # fmt: skip


class Once:
    """Germinates the cheapest seed at once and advances it when it can."""

    def __init__(self) -> None:
        self.seen: list[float | None] = []

    def reset(self) -> None: ...

    def act(self, situation: Situation) -> ActionSpec:
        self.seen.append(situation.signals.score)
        legal = situation.legal["body"]
        if LifecycleOp.ADVANCE in legal.operations:
            return ActionSpec(LifecycleOp.ADVANCE, "body")
        if legal.blueprints:
            return ActionSpec(LifecycleOp.GERMINATE, "body", legal.blueprints[0])
        return ActionSpec()


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_life_with_any_loss(name: str) -> None:
    problem, x, rule = PROBLEMS[name], samples(), Once()
    y, model = problem.targets(x), Net(problem.outputs, problem.answer)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = Grower(
        model,
        ["body"],
        optimizer=optimizer,
        example_input=x[:2],
        validate=batches(y),
        loss=problem.loss,
        controller=rule,
        epochs=6,
    )
    losses = []
    for _ in range(6):
        loss = problem.trained(grower.model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decision = grower.step(train_loss=loss)
        losses.append(problem.trained(model(x), y).item())
        assert decision.metrics.validation_loss is not None
    before = [decision.metrics.validation_loss for decision in grower.history]
    assert before[0] == pytest.approx(losses[0], rel=1e-5)  # whatever the sizes of batches and the padding
    assert grower.history[0].score == -1.0
    assert grower.history[3].score == pytest.approx(-before[3] / before[0])  # type: ignore[operator]
    assert rule.seen[:4] == [decision.score for decision in grower.history[:4]]
    assert grower.history[-1].slots["body"].contribution is not None
    unit = f"minus validation loss, in units of the first one, {before[0]:.4g}"
    assert f"score: {unit}" in grower.explain()
    last = grower.history[-1]
    assert f"score {last.score:.4f} after epoch {last.epoch} ({unit})" in grower.explain()
    grower.finish()


def r_squared(out: Tensor, y: Tensor) -> Tensor:
    assert len(out) == len(y) == SAMPLES  # the whole of validation
    return 1 - (out[:, 0] - y).square().sum() / (y - y.mean()).square().sum()


class Running:
    """Mean absolute error, batch by batch, as torchmetrics has it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.total += (outputs[:, 0] - targets).abs().sum().item()
        self.count += len(targets)

    def compute(self) -> float:
        return self.total / self.count


def with_metric(**options: object) -> tuple[Grower, Callable[[], Tensor]]:
    x, model = samples(), Net(1)
    y = x[:, 0] - x[:, 1]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    given: dict[str, object] = {
        "validate": batches(y),
        "controller": Once(),
        "metric": r_squared,
        "mode": "max",
    }
    grower = Grower(model, ["body"], optimizer=optimizer, example_input=x[:2], **(given | options))  # type: ignore[arg-type]

    def train() -> Tensor:
        loss = F.mse_loss(grower.model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return grower, train


def test_a_metric_of_the_whole_where_more_is_better() -> None:
    grower, train = with_metric()
    for _ in range(8):
        grower.step(train_loss=train())
    values = [decision.metrics.validation_metric or 0.0 for decision in grower.history]
    span = max(0.0, *values[:3]) - min(0.0, *values[:3])
    scores = [decision.score for decision in grower.history]
    assert scores[:2] == [None, None]
    assert scores[2:] == pytest.approx([value / span for value in values[2:]])
    assert all(decision.metrics.validation_loss is None for decision in grower.history)
    assert grower.model.slots["body"].stage is Stage.HOLDING
    x = samples()
    with torch.no_grad(), grower.model.override_alpha({"body": 0.0}):
        without = r_squared(grower.model(x), x[:, 0] - x[:, 1]).item()
    contribution = grower.history[-1].slots["body"].contribution
    assert contribution == pytest.approx((values[-1] - without) / span, abs=1e-6)
    assert abs(values[-1] - without) > 1e-4
    assert (
        f"score: validation metric, in units of its span in the first epochs, {span:.4g}" in grower.explain()
    )


def test_a_contribution_is_in_the_scores_unit() -> None:
    """The same metric in another unit: the same scores and contributions, so that margins mean the same."""
    told = []
    for factor in (1.0, 1000.0):
        grower, train = with_metric(metric=lambda out, y, factor=factor: factor * r_squared(out, y))
        for _ in range(7):
            grower.step(train_loss=train())
        told.append(
            [(decision.score, decision.slots["body"].contribution) for decision in grower.history[3:]]
        )
        assert told[-1][-1][1] is not None
    for (score, contribution), (other, others) in zip(*told, strict=True):
        assert other == pytest.approx(score, rel=1e-4)
        assert (others is None) == (contribution is None)
        assert contribution is None or others == pytest.approx(contribution, rel=1e-3, abs=1e-6)


def test_a_metric_that_is_fed_batch_by_batch() -> None:
    grower, train = with_metric(metric=Running(), mode="min")
    decision = grower.step(train_loss=train())
    x = samples()
    expected = (grower.model(x)[:, 0] - (x[:, 0] - x[:, 1])).abs().mean().item()
    assert decision.metrics.validation_metric == pytest.approx(expected, rel=1e-5)
    assert decision.score == -1.0


def test_a_metric_that_the_loop_measures() -> None:
    grower, train = with_metric(metric=None, validate=None, controller="wait")
    scores = []
    for value in (0.1, 0.3, 0.2, 0.6):
        loss = train()
        with pytest.raises(ValueError, match="pass validation_metric, or make the Grower with validate="):
            grower.step(train_loss=loss, validation_loss=0.5)
        scores.append(grower.step(train_loss=loss, validation_metric=value).score)
    assert scores[:2] == [None, None]
    assert scores[2:] == pytest.approx([0.2 / 0.3, 0.6 / 0.3])


def test_a_function_returns_the_metric() -> None:
    grower, train = with_metric(metric=None, validate=lambda _: {"validation_metric": 2.5}, mode="min")
    assert grower.step(train_loss=train(), validation_loss=3.0).metrics.validation_metric == 2.5
    with pytest.raises(TypeError, match=r"expected a mapping with validation_metric \(mode is 'min'\)"):
        with_metric(metric=None, validate=lambda _: {"validation_loss": 2.5}, mode="min")


def test_it_goes_on_from_a_checkpoint_in_the_same_unit() -> None:
    life = "germinate norm@body t=1; advance body t=2"
    grower, train = with_metric(controller=esper.rule_policy("schedule", schedule=life))
    for _ in range(2):
        grower.step(train_loss=train())
    state = copy.deepcopy(grower.state_dict())
    other, train_other = with_metric(controller=esper.rule_policy("schedule", schedule=life))
    other.load_state_dict(state)
    for _ in range(4):
        one, two = grower.step(train_loss=train()), other.step(train_loss=train_other())
        assert one == two
    assert two.score is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": None}, "metric is given and mode is not: pass mode='max'"),
        ({"mode": "best"}, "mode is 'best'; expected 'min' or 'max'"),
        ({"metric": None}, "mode is 'max' and there is no metric: pass metric="),
        (
            {"validate": None},
            "metric would be measured over the batches of a loader, and validate is missing",
        ),
        ({"validate": lambda _: {}, "loss": F.mse_loss}, "loss and metric would be.*validate is a function"),
        ({"metric": 3}, r"metric is a int; expected a function of \(outputs, targets\)"),
        (
            {"metric": lambda out, y: (out - y[:, None, None]).mean(dim=0)},
            r"metric returned tensor\(.*expected one number",
        ),
        (
            {"metric": lambda out, y: out @ y},
            r"metric failed for float32 \(23, 1\) and float32 \(23,\): RuntimeError",
        ),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.compile(message, re.DOTALL)):
        with_metric(**options)


@pytest.mark.parametrize("more", ["outputs", "targets"])
def test_a_loss_that_is_suggested_fits_the_shapes(more: str) -> None:
    outputs, targets = torch.randn(5), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    outputs, targets = (outputs[:, None], targets) if more == "outputs" else (outputs, targets[:, None])
    with pytest.raises(TypeError, match=r"all of them 0 or 1") as refused:
        refuse_unclear(Batch(outputs, targets, 5))
    suggested = re.findall(r"loss=(lambda .*?\)) if they", str(refused.value))
    assert len(suggested) == 2
    losses: list[Callable[..., Tensor]] = [F.binary_cross_entropy_with_logits, F.mse_loss]
    for source, loss in zip(suggested, losses, strict=True):
        assert torch.equal(eval(source, {"F": F})(outputs, targets), loss(outputs.view(5), targets.view(5)))


def test_no_rows_are_not_all_0_or_1() -> None:
    refuse_unclear(Batch(torch.zeros(0, 1), torch.zeros(0), 0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": lambda out, y: F.mse_loss(out[:, 0], y)},
        {"metric": lambda out, y: F.mse_loss(out[:, 0], y)},
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_an_empty_batch_is_left_out(options: dict[str, Any], place: int) -> None:
    model, whole = Net(1), batches(samples()[:, 0])
    with_empty = [*whole[:place], (samples()[:0], torch.zeros(0)), *whole[place:]]
    LoaderValidation(with_empty, **options).check(model)
    found = LoaderValidation(with_empty, **options)(model)
    assert found == LoaderValidation(whole, **options)(model)
    only_empty = LoaderValidation(with_empty[place : place + 1], **options)
    with pytest.raises(ValueError, match="validate has no batches with samples"):
        only_empty(model)
    with pytest.raises(ValueError, match="validate has no batches with samples"):
        only_empty.check(model)


def test_why_something_is_grown_before_there_is_a_score() -> None:
    grower, train = with_metric(controller=esper.rule_policy("schedule", schedule="germinate mlp@body t=1"))
    grower.step(train_loss=train())
    decision = grower.history[0]
    assert decision.action.op is LifecycleOp.GERMINATE
    assert decision.score is None
    assert decision.reason.endswith("the score is not known yet")


ZEROES = torch.zeros(SAMPLES)


@pytest.mark.parametrize(
    ("outputs", "targets", "loss", "message"),
    [
        (1, ZEROES, None, r"all of them 0 or 1: pass loss=lambda .*squeeze\(-1\), targets\) if they are labels"),
        (1, ZEROES.long(), None, r"one output for two classes wants .*logits\(outputs.squeeze\(-1\), targets.float"),
        (1, ZEROES + 0.5, nn.MSELoss, r"MSELoss is a class; pass an instance, loss=MSELoss\(\)"),
        (1, ZEROES, F.binary_cross_entropy_with_logits, r"pass loss=lambda .*logits\(outputs.squeeze\(-1\), targ"),
        (3, ZEROES + 2.0, None, r"whole numbers \(labels\? pass targets.long\(\)\)"),
        (2, ZEROES + 0.5, None, r"outputs are float32 \(11, 2\), targets float32 \(11,\); expected float targets"),
        (1, ZEROES + 0.5, F.mse_loss, r"loss failed.*Using a target size.*outputs are float32 \(11, 1\)"),
        (1, ZEROES + 0.5, lambda out, y: (out - y) ** 2, r"float32 \(11, 11\) for 11 samples.*was something broad"),
        (1, ZEROES.long(), lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y), "loss failed on a"),
        (2, ZEROES.long(), lambda *_: 0.5, r"loss returned a float; expected the mean over the batch as a tensor"),
        (3, torch.stack([ZEROES] * 3, 1).long(), None, r"int64 \(11, 3\); expected classes, one for each row"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_the_way_out(
    outputs: int, targets: Tensor, loss: Callable[..., object] | None, message: str
) -> None:
    model = Net(outputs)
    optimizer = torch.optim.Adam(model.parameters())

    def make(loss: Callable[..., object] | None) -> Grower:
        given = batches(targets)
        return Grower(
            model, ["body"], optimizer=optimizer, example_input=samples()[:2], validate=given, loss=loss
        )

    with pytest.raises(TypeError, match=re.compile(message, re.DOTALL)):
        make(loss)
    make(lambda out, _: out.float().mean())  # nothing was done to the model: it can be mended and made again


def test_trying_changes_nothing() -> None:
    model = Net(1)
    model.body.append(nn.BatchNorm1d(WIDTH))
    model.body.append(nn.Dropout(0.5))
    before, random = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    optimizer = torch.optim.Adam(model.parameters())
    options = {"optimizer": optimizer, "example_input": samples()[:2], "metric": r_squared, "mode": "max"}
    with pytest.warns(GrowthWarning, match="slot body.0 is a bare Linear, and the copy of it"):
        Grower(model, ["body.0"], validate=batches(samples()[:, 0]), **options)  # type: ignore[arg-type]
    assert model.training
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_classes_on_axis_one() -> None:
    """As torch's own losses have it for images; where both axes fit it is not clear, and refused."""
    logits = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(3, (2, 5, 7), generator=torch.Generator().manual_seed(1))
    labels[0, 0] = -100
    model = nn.Sequential(nn.Identity(), nn.Linear(1, 1))
    model.forward = lambda _: logits  # type: ignore[method-assign]
    found = LoaderValidation([(logits, labels)])(model)
    assert found["validation_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    right = (logits.argmax(1) == labels)[labels != -100]
    assert found["validation_accuracy"] == pytest.approx(right.float().mean().item())
    model.forward = lambda _: logits[:, :, :3, 0]  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="it is not clear which axis the classes are on"):
        LoaderValidation([(logits, labels[:, :3, 0])])(model)


def test_a_plateau_is_one_of_the_score() -> None:
    """A loss of thousands that falls by a hundredth an epoch improves by 0.01, not by tens."""

    class Watch:
        def __init__(self) -> None:
            self.stuck: list[int] = []

        def reset(self) -> None: ...

        def act(self, situation: Situation) -> ActionSpec:
            self.stuck.append(situation.signals.plateau_epochs)
            return ActionSpec()

    told = []
    for factor in (1.0, 5000.0):
        watch = Watch()
        grower, train = with_metric(metric=None, validate=None, mode=None, controller=watch)
        for value in (1.0, 0.999, 0.998, 0.98, 0.9799):
            train()
            grower.step(train_loss=1.0, validation_loss=factor * value)
        told.append(watch.stuck)
    assert told[0] == told[1] == [0, 1, 2, 0, 1]


def test_the_rule_that_comes_with_it_grows_a_regression() -> None:
    grower, train = with_metric(
        metric=None, mode=None, controller=esper.rule_policy("probe_and_keep", start=1), epochs=9
    )
    for _ in range(9):
        grower.step(train_loss=train())
    done = {decision.action.op: decision.reason for decision in grower.history}
    assert {LifecycleOp.GERMINATE, LifecycleOp.ADVANCE} <= set(done)
    verdict = done.get(LifecycleOp.FOSSILIZE) or done[LifecycleOp.PRUNE]
    compared = re.search(r"contribution ([+-][\d.]+) is (over|under) margin 0\.02 \+ rent ([\d.]+);", verdict)
    assert compared is not None
    contribution, side, rent = compared.groups()
    assert (float(contribution) > 0.02 + float(rent)) == (side == "over") == (LifecycleOp.FOSSILIZE in done)
