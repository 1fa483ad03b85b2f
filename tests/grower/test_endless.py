"""A loop without an end: data that change are no breakdown, and what is kept does not grow."""

import copy
import gc
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.grower import Grower, GrowthWarning
from esper.grower.history import ACTIONS_KEPT, DECISIONS_KEPT, PHASES_KEPT, Phases
from esper.leyline import LifecycleOp, Stage
from esper.tamiyo.rules import RulePolicy, SchedulePolicy
from esper.tamiyo.rules.by_layout import LiveOnPolicy

SAMPLES, FEATURES, CLASSES = 96, 6, 3


def _net(width: int = 5) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh()),
            nn.Sequential(nn.Linear(width, width), nn.Tanh()),
            nn.Linear(width, CLASSES),
        )


@dataclass
class Stream:
    """Classes that are told by the features; `turn` gives them other names, as when the data change."""

    turn: int = 0
    inputs: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.classes = self.inputs[:, :CLASSES].argmax(1)

    @property
    def targets(self) -> Tensor:
        return (self.classes + self.turn) % CLASSES

    def validate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            logits = model(self.inputs)
        accuracy = (logits.argmax(1) == self.targets).float().mean()
        loss = F.cross_entropy(logits, self.targets)
        return {"validation_loss": loss.item(), "validation_accuracy": accuracy.item()}

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> float:
        model.train()
        for _ in range(steps):
            loss = F.cross_entropy(model(self.inputs), self.targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()


def _grower(
    stream: Stream, controller: str | RulePolicy = "wait", lr: float = 0.05, **options: object
) -> tuple[Grower, torch.optim.Optimizer]:
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    make: Callable[..., Grower] = Grower
    options = {"validate": stream.validate, **options}
    grower = make(
        model, ["0", "1"], optimizer=optimizer, example_input=stream.inputs, controller=controller, **options
    )
    return grower, optimizer


def _live(grower: Grower, optimizer: torch.optim.Optimizer, stream: Stream, epochs: int) -> None:
    for _ in range(epochs):
        grower.step(train_loss=stream.train(grower.model, optimizer))


# The governor


def test_a_change_of_the_data_is_no_breakdown() -> None:
    """Every class has another name: accuracy is gone for good, and the last good network is no better."""
    stream = Stream()
    grower, optimizer = _grower(stream, lr=0.01)
    _live(grower, optimizer, stream, 30)
    assert grower.history[-1].score is not None
    assert grower.history[-1].score > 0.9
    stream.turn = 1
    for _ in range(4):  # nothing is taken back
        loss = stream.train(grower.model, optimizer, steps=1)
        before = copy.deepcopy((grower.model.state_dict(), optimizer.state_dict()))
        grower.step(train_loss=loss)
        torch.testing.assert_close(
            (grower.model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0
        )
    assert not any(decision.rolled_back for decision in grower.history)
    notes = [note for decision in grower.history for note in decision.notes]
    assert sum("the data have changed, and training goes on" in note for note in notes) == 1
    _live(grower, optimizer, stream, 60)
    assert grower.history[-1].score is not None
    assert grower.history[-1].score > 0.9


def test_a_network_that_breaks_on_the_same_data_still_goes_back() -> None:
    stream = Stream()
    grower, optimizer = _grower(stream)
    _live(grower, optimizer, stream, 12)
    good = [p.detach().clone() for p in grower.model.parameters()]
    stream.train(grower.model, optimizer)
    with torch.no_grad():
        for parameter in grower.model.host[2].parameters():  # type: ignore[index]
            parameter.mul_(-200.0)  # it says the opposite, very surely
    loss = F.cross_entropy(grower.model(stream.inputs), stream.targets).item()
    assert loss > 3.0
    with pytest.warns(GrowthWarning, match=r"found the model diverged \(train_loss is \d+\) and went back"):
        assert grower.step(train_loss=loss).rolled_back == "diverged"
    assert all(torch.equal(p, q) for p, q in zip(grower.model.parameters(), good, strict=True))


def test_a_change_is_told_from_a_breakdown_by_a_metric_alone() -> None:
    """A target that grows a hundredfold: the training loss is far over the first, for the last good network too."""
    inputs, scale = Stream().inputs, 1.0

    def error(model: nn.Module) -> Tensor:
        off: Tensor = model(inputs)[:, 0] - scale * inputs[:, 0]
        return off.square().mean()

    def validate(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"validation_metric": error(model).item()}

    grower, optimizer = _grower(Stream(), validate=validate, mode="min")
    losses = []
    for epoch in range(24):
        scale = 1.0 if epoch < 12 else 100.0
        optimizer.zero_grad()
        loss = error(grower.model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        grower.step(train_loss=loss)
    assert losses[12] > 3 * max(losses[0], 1.0)
    assert not any(decision.rolled_back for decision in grower.history)
    grower.model.host[2].weight.data.mul_(-1e4)  # type: ignore[index]
    optimizer.zero_grad()
    loss = error(grower.model)
    loss.backward()
    for parameter in grower.model.parameters():
        parameter.grad = None
    optimizer.step()
    with pytest.warns(GrowthWarning, match="diverged"):
        assert grower.step(train_loss=loss).rolled_back == "diverged"


def test_it_goes_back_again_after_the_data_have_changed() -> None:
    """What it had learned of the old data is forgotten as a measure, and the new data have a measure of their own."""
    stream = Stream()
    grower, optimizer = _grower(stream, lr=0.01)
    _live(grower, optimizer, stream, 30)
    stream.turn = 1
    for _ in range(3):
        grower.step(train_loss=stream.train(grower.model, optimizer, steps=1))
    _live(grower, optimizer, stream, 60)
    stream.train(grower.model, optimizer)
    with torch.no_grad():
        next(iter(grower.model.parameters())).fill_(torch.nan)
    with pytest.warns(GrowthWarning, match="not finite"):
        assert grower.step(train_loss=float("nan")).rolled_back == "not_finite"
    assert stream.validate(grower.model)["validation_accuracy"] > 0.9


# What is kept


def test_the_history_of_an_endless_run_is_bounded_and_of_another_is_not() -> None:
    for epochs, kept in ((None, DECISIONS_KEPT), (500, DECISIONS_KEPT + 7)):
        stream = Stream()
        grower, optimizer = _grower(stream, epochs=epochs)
        for _ in range(DECISIONS_KEPT + 7):
            grower.step(train_loss=stream.train(grower.model, optimizer, steps=1))
        assert len(grower.history) == kept
        assert grower.history[-1].epoch == DECISIONS_KEPT + 7
        assert grower.explain().startswith(f"controller wait, {DECISIONS_KEPT + 7} epochs\n")
        assert ("epochs 1 to 107: score" in grower.explain()) == (epochs is None)


def test_explain_tells_the_phases_apart() -> None:
    stream = Stream()
    schedule = SchedulePolicy("germinate norm@0 t=3; advance 0 t=4; fossilize 0 t=8; retire 0 t=14")
    grower, optimizer = _grower(stream, schedule, lr=0.01)
    _live(grower, optimizer, stream, 10)
    assert "epochs 1 to" not in grower.explain()  # one phase, and every decision is there
    stream.turn = 1
    _live(grower, optimizer, stream, 10)
    lines = grower.explain().splitlines()
    phases = [line for line in lines if line.startswith("epochs ")]
    assert [line.partition(":")[0] for line in phases] == ["epochs 1 to 10", "epochs 11 to 20"]
    assert lines.index("  epoch 3: germinate norm at 0") < lines.index(phases[1])
    assert "  epoch 14: retire 0" in lines[lines.index(phases[1]) :]
    assert "0 parameters added" in phases[1]


def test_phases_go_through_a_checkpoint_and_the_run_goes_on_bit_for_bit() -> None:
    runs = []
    for cut in (False, True):
        stream = Stream()
        grower, optimizer = _grower(stream, "live_on", parameter_budget=60)
        for epoch in range(60):
            stream.turn = epoch // 20
            if cut and epoch in (19, 33, 47):
                buffer = io.BytesIO()
                torch.save(grower.state_dict(), buffer)
                buffer.seek(0)
                grower, optimizer = _grower(stream, "live_on", parameter_budget=60)
                grower.load_state_dict(torch.load(buffer, weights_only=True))
            grower.step(train_loss=stream.train(grower.model, optimizer, steps=1))
        runs.append(grower)
    straight, resumed = runs
    assert resumed.explain() == straight.explain()
    assert resumed.history == straight.history
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_size_of_phases_does_not_grow() -> None:
    stream = Stream()
    grower, optimizer = _grower(stream)
    _live(grower, optimizer, stream, 1)
    (decision,) = grower.history
    phases, sizes = Phases(), []
    act = esper.ActionSpec(LifecycleOp.PRUNE, "0")
    for epoch in range(1, 4000):
        score = 0.9 if epoch // 10 % 2 else 0.4
        phases.record(replace(decision, epoch=epoch, score=score, action=act))
        sizes.append(len(str(phases.state_dict())))
    assert len(phases.closed) == PHASES_KEPT
    assert all(len(phase.actions) <= ACTIONS_KEPT for phase in phases.closed)
    assert phases.closed[0].first == 1
    assert phases.closed[0].operations > 3000
    assert max(sizes[2000:]) < 1.02 * max(sizes[1000:2000])


# Live on


def test_structure_comes_and_goes_within_the_budget() -> None:
    hasty = LiveOnPolicy(patience=1, noise_margin=0.0, decay_epochs=1)
    stream = Stream()
    grower, optimizer = _grower(stream, hasty, parameter_budget=60)
    used, retired = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(150):
            stream.turn = epoch // 30
            decision = grower.step(train_loss=stream.train(grower.model, optimizer, steps=2))
            retired += decision.action.op is LifecycleOp.RETIRE
            used.append(grower.model.added_parameters)
    assert 0 < max(used) <= 60
    assert retired
    learning = sorted(id(p) for p in grower.model.parameters() if p.requires_grad)
    assert sorted(id(p) for group in optimizer.param_groups for p in group["params"]) == learning


@pytest.mark.slow
def test_memory_and_checkpoints_are_steady_over_a_long_life() -> None:
    """1,000 epochs in which 50 seeds are grown, kept and given back."""
    clauses = []
    for birth in range(50):
        start, slot, kind = 20 * birth, birth % 2, ("norm", "widen", "mlp_small")[birth % 3]
        clauses += [
            f"germinate {kind}@{slot} t={start}",
            f"advance {slot} t={start + 2}",
            f"fossilize {slot} t={start + 7}",
            f"retire {slot} t={start + 12}",
        ]
    stream = Stream()
    grower, optimizer = _grower(stream, SchedulePolicy("; ".join(clauses)), lr=0.01)
    sizes, objects, tensors, births = [], [], [], 0
    for epoch in range(1, 1001):
        stream.turn = epoch // 100
        decision = grower.step(train_loss=stream.train(grower.model, optimizer, steps=1))
        births += decision.action.op is LifecycleOp.GERMINATE
        if epoch % 60 == 0:  # the same place of the same kind of life each time
            buffer = io.BytesIO()
            torch.save(grower.state_dict(), buffer)
            sizes.append(buffer.tell())
            gc.collect()
            found = gc.get_objects()
            objects.append(len(found))
            tensors.append(sum(issubclass(type(each), Tensor) for each in found))
            del found
    assert births == 50
    assert {slot.stage for slot in grower.model.slots.values()} <= {Stage.DORMANT, Stage.EMBARGOED}
    assert sum(slot.life.births for slot in grower.model.slots.values()) == 50
    assert grower.model.added_parameters == 0
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.05 * max(sizes[3:half])
    assert max(objects[half:]) < 1.02 * max(objects[3:half])
    assert max(tensors[half:]) <= max(tensors[3:half])
    assert grower.explain().count("retire") >= 5
