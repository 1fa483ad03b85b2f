"""The loops that people have: mixed precision, accumulation, schedulers, compilation, checkpoints, frozen parts."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

import esper
from esper.grower import Grower, GrowthWarning
from esper.kasmina.persistence import ModelFileError
from esper.leyline import LifecycleOp, Stage
from grower.loops import Loop, net
from grower.test_grower import LIFE, grown
from tiny_controllers import tiny_controller


def life() -> object:
    return esper.rule_policy("schedule", schedule=LIFE)


@pytest.mark.parametrize("fused", [False, True])
def test_mixed_precision_with_a_scaler(fused: bool) -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller=life(),  # type: ignore[arg-type]
        validate=loop.validate,
        scaler=scaler,
    )
    norms = []
    for _ in range(9):
        for inputs, targets in loop.batches():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        grower.step(train_loss=loss)
        norms.append(grower._host.report.gradient_norm)
    assert grower.model.slots["0"].stage is Stage.FOSSILIZED
    assert all(
        norm is not None and norm < 10.0 for norm in norms
    )  # unscaled, though the loss was scaled by 1024


def test_steps_that_a_scaler_skips_are_left_out() -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        scaler=scaler,
        validate=loop.validate,
    )
    (inputs, targets), *_ = loop.batches()
    for factor in (1.0, 1e38, 1e38, 1.0):  # the middle ones overflow
        optimizer.zero_grad()
        scaler.scale(factor * F.cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
    grower.step(train_loss=1.0)
    norm = grower._host.report.gradient_norm
    assert norm is not None
    assert 0.01 < norm < 10.0


def test_gradients_that_are_added_up() -> None:
    def train(accumulate: int, batches: int) -> Grower:
        loop, model = Loop(), net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        grower = Grower(
            model,
            ["0"],
            optimizer=optimizer,
            example_input=loop.inputs[:2],
            controller=esper.rule_policy("schedule", schedule="germinate mlp@0 t=1"),
            validate=loop.validate,
            accumulate=accumulate,
        )
        for _ in range(3):
            optimizer.zero_grad()
            for part in range(batches):
                rows = slice(part * 66 // batches, (part + 1) * 66 // batches)
                loss = F.cross_entropy(model(loop.inputs[rows]), loop.targets[rows])
                (loss / batches).backward()
            optimizer.step()
            grower.step(train_loss=loss)
        return grower

    whole, parts = train(1, 1), train(3, 3)
    seeds = [grower.model.slots["0"].seed for grower in (whole, parts)]
    for ours, theirs in zip(*(seed.parameters() for seed in seeds if seed is not None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        whole._host.report.gradient_norm, parts._host.report.gradient_norm, rtol=1e-4, atol=0
    )


def test_schedulers_go_on_across_growth() -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cosine, plateau = CosineAnnealingLR(optimizer, T_max=10), ReduceLROnPlateau(optimizer, patience=100)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller=life(),  # type: ignore[arg-type]
        validate=loop.validate,
        scheduler=[cosine, plateau],
    )
    lengths = set()
    for _ in range(9):
        loss = loop.train(grower.model, optimizer)
        rates = [group["lr"] for group in optimizer.param_groups]
        lengths.add(len(rates))
        assert rates[1:] in ([], [3.0 * rates[0]])
        cosine.step()
        plateau.step(loss)
        grower.step(train_loss=loss)
    assert lengths == {1, 2}
    assert len(optimizer.param_groups) == 1


def test_a_scheduler_that_was_kept_back_is_asked_for() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    CosineAnnealingLR(optimizer, T_max=10)
    with pytest.raises(ValueError, match="a scheduler drives this optimizer: pass it too, as scheduler="):
        Grower(model, ["0"], optimizer=optimizer, example_input=Loop().inputs[:2])


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch warns about its own internals while it compiles
@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models_grow_and_that_is_told(in_place: bool) -> None:
    torch._dynamo.reset()
    loop, model = Loop(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    frames: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        frames.append(graph)
        return graph

    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller=life(),  # type: ignore[arg-type]
        validate=loop.validate,
    )
    trained: nn.Module = grower.model
    if in_place:
        grower.model.compile(backend=backend)
    else:
        trained = torch.compile(grower.model, backend=backend)  # type: ignore[assignment]
    eager, *_ = grown(9)
    compiled = []
    for _ in range(9):
        grower.step(train_loss=loop.train(trained, optimizer))
        compiled.append(len(frames))
    assert len(set(compiled)) >= 4  # as it was, and at every change of stage; measuring compiles nothing
    told = [decision.epoch for decision in grower.history if decision.notes]
    assert told == [2, 4, 6, 8]
    assert "torch.compile compiles it anew" in grower.explain()
    assert [d.action for d in grower.history] == [d.action for d in eager.history]
    assert grower.history[-1].metrics.validation_loss == pytest.approx(
        eager.history[-1].metrics.validation_loss, rel=1e-3
    )
    plain = grower.finish()
    torch.testing.assert_close(plain(loop.inputs), grower.model(loop.inputs))
    torch._dynamo.reset()
    another, *_ = grown(3)  # what others compiled before is not its affair
    assert not any(decision.notes for decision in another.history)


@pytest.mark.parametrize(
    ("controller", "stop", "anew"),  # in a new Grower, or in the one that has grown on since
    [
        ("schedule", 5, True),  # half way through the schedule's blend
        ("schedule", 7, False),  # after it
        ("probe_and_keep", 7, True),
        ("learned", 5, False),
        pytest.param("schedule", 5, False, marks=pytest.mark.slow),
        pytest.param("schedule", 7, True, marks=pytest.mark.slow),
        pytest.param("probe_and_keep", 5, True, marks=pytest.mark.slow),
        pytest.param("probe_and_keep", 5, False, marks=pytest.mark.slow),
        pytest.param("probe_and_keep", 7, False, marks=pytest.mark.slow),
        pytest.param("learned", 5, True, marks=pytest.mark.slow),
        pytest.param("learned", 7, True, marks=pytest.mark.slow),
        pytest.param("learned", 7, False, marks=pytest.mark.slow),
    ],
)
def test_it_goes_on_inside_the_users_checkpoint(controller: str, stop: int, anew: bool) -> None:
    def begin() -> tuple[Grower, torch.optim.Optimizer, Loop, CosineAnnealingLR]:
        loop, model = Loop(), net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scheduler = CosineAnnealingLR(optimizer, T_max=30)
        who = {"schedule": life(), "learned": tiny_controller(1, scale=3.0)}.get(controller, controller)
        grower = Grower(
            model,
            ["0", "1"],
            optimizer=optimizer,
            example_input=loop.inputs[:2],
            controller=who,  # type: ignore[arg-type]
            validate=loop.validate,
            scheduler=scheduler,
            generator=torch.Generator().manual_seed(4),
            epochs=20,
        )
        return grower, optimizer, loop, scheduler

    def go(
        epochs: int, grower: Grower, optimizer: torch.optim.Optimizer, loop: Loop, s: CosineAnnealingLR
    ) -> None:
        for _ in range(epochs):
            loss = loop.train(grower.model, optimizer)
            s.step()
            grower.step(train_loss=loss)

    straight = begin()
    go(14, *straight)
    stopped = begin()
    go(stop, *stopped)
    if controller == "schedule":
        assert (stopped[0].model.slots["0"].alpha < 1.0) == (stop == 5)
    file = io.BytesIO()
    checkpoint = {"grower": stopped[0].state_dict(), "order": stopped[2].order.get_state()}
    torch.save({**checkpoint, "scheduler": stopped[3].state_dict()}, file)
    go(4, *stopped)  # what happens later is not in it
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    resumed = begin() if anew else stopped
    resumed[0].load_state_dict(loaded["grower"])
    resumed[2].order.set_state(loaded["order"])
    resumed[3].load_state_dict(loaded["scheduler"])
    go(14 - stop, *resumed)
    assert resumed[0].history == straight[0].history
    assert any(decision.action.op is not LifecycleOp.WAIT for decision in resumed[0].history)
    ours, theirs = (run[0].model.state_dict() for run in (resumed, straight))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_scores_keep_their_scale_across_a_checkpoint() -> None:
    loop = Loop()
    grower, *_ = grown(
        5, loop=loop, validate=lambda model: {"validation_loss": loop.validate(model)["validation_loss"]}
    )
    resumed, optimizer, _ = grown(0, loop=loop, validate=None)
    resumed.load_state_dict(grower.state_dict())
    first = grower.history[0].metrics.validation_loss
    assert first is not None
    loop.train(resumed.model, optimizer)
    with pytest.warns(GrowthWarning, match="without validate="):
        assert resumed.step(validation_loss=first / 2).score == pytest.approx(-0.5)


def test_states_that_do_not_fit() -> None:
    grower, *_ = grown(5)
    state = grower.state_dict()
    with pytest.raises(ValueError, match="version 99; this Esper reads 'esper grower', version 9"):
        grown(0)[0].load_state_dict({**state, "version": 99})
    with pytest.raises(ValueError, match="saved under controller 'schedule'; this Grower has 'wait'"):
        grown(0, controller="wait")[0].load_state_dict(state)
    with pytest.raises(ModelFileError, match="slot layouts differ"):
        grown(0, slots=["0"])[0].load_state_dict(state)
    with pytest.raises(ModelFileError, match="the saved state is damaged"):
        grown(0)[0].load_state_dict({**state, "history": "[{}]"})
    with pytest.raises(
        ModelFileError, match="the saved state is damaged: observer: Input should be a valid dict"
    ):
        grown(0)[0].load_state_dict({**state, "observer": 3})


def test_a_frozen_host_grows_adapters() -> None:
    loop, model = Loop(), net()
    model[:2].requires_grad_(False)
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-2)  # only the last layer is trained
    before = {name: tensor.clone() for name, tensor in model[0].state_dict().items()}
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller=life(),  # type: ignore[arg-type]
        validate=loop.validate,
        blueprints=["lora", "mlp"],
    )
    for _ in range(9):
        grower.step(train_loss=loop.train(grower.model, optimizer))
    seed = grower.model.slots["0"].seed
    assert seed is not None
    assert grower.model.slots["0"].stage is Stage.FOSSILIZED
    assert seed.scale.abs().sum() > 0
    after = model[0].state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_zero_grad_after_the_step_does_not_hide_gradients() -> None:
    loop, model = Loop(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller=life(),  # type: ignore[arg-type]
        validate=loop.validate,
    )
    for _ in range(5):
        for inputs, targets in loop.batches():
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        grower.step(train_loss=1.0)
    assert grower.model.slots["0"].stage is Stage.BLENDING
    reading = grower.model.readings()[0]
    assert reading.contribution == pytest.approx(grower.model.slots["0"].contribution)
