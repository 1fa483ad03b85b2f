"""A seed that puts out NaN or Inf: the host's output and gradients are unaffected, its update is skipped."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import esper
from esper.kasmina import GrowingModel, IllegalOperation, forget
from esper.kasmina.blueprints import Site
from esper.leyline import Layout, LifecycleOp, NonFiniteSeedOutput, Stage, Style
from tiny import BATCH, SLOT, Recorder, grow_until, tiny_host, tiny_input


class Exploding(nn.Module):
    """Inf for the samples that `broken` marks."""

    broken = torch.zeros(BATCH, dtype=torch.bool)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), 0.3))

    def forward(self, h: Tensor) -> Tensor:
        blow_up = torch.where(self.broken[: len(h), None], float("inf"), 1.0)
        return h * self.weight * blow_up


@pytest.fixture
def model() -> Iterator[GrowingModel]:
    @esper.blueprint("exploding", layouts=["flat"])
    def exploding(site: Site) -> nn.Module:
        return Exploding(site.channels)

    Exploding.broken = torch.zeros(BATCH, dtype=torch.bool)
    yield esper.wrap(tiny_host(Layout.FLAT), [SLOT], tiny_input(Layout.FLAT), events=Recorder())
    forget("exploding")


def _train(model: GrowingModel, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    out.square().mean().backward()
    optimizer.step()
    return out.detach()


def _bare(model: GrowingModel) -> tuple[Tensor, list[Tensor]]:
    """Output and gradients of the host alone."""
    out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    gradients = torch.autograd.grad(out.square().mean(), list(model.bare_parameters()))
    return out.detach(), list(gradients)


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.BLENDING, Stage.HOLDING])
def test_the_host_is_unaffected_and_an_event_says_so(model: GrowingModel, stage: Stage) -> None:
    output, gradients = _bare(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.attach(optimizer)
    grow_until(model, SLOT, stage, "exploding")
    if stage is Stage.BLENDING:
        model.tick()
    slot = model.slots[SLOT]
    assert slot.seed is not None
    Exploding.broken[:] = True
    before = {name: p.detach().clone() for name, p in slot.seed.named_parameters()}
    with torch.no_grad():
        slot.seed.scale.fill_(1.0)
        before["scale"] = slot.seed.scale.clone()
    optimizer.zero_grad()
    out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    assert torch.equal(out, output)
    out.square().mean().backward()
    for parameter, expected in zip(model.bare_parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected)
    optimizer.step()
    assert all(torch.equal(p, before[name]) for name, p in slot.seed.named_parameters())
    assert LifecycleOp.ADVANCE not in model.legal_operations()[SLOT].operations
    model.tick()
    sink = model._events
    assert isinstance(sink, Recorder)
    assert sink.events.count(NonFiniteSeedOutput(SLOT, stage)) == 1


def test_only_the_broken_samples_lose_the_seed(model: GrowingModel) -> None:
    grow_until(model, SLOT, Stage.HOLDING, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        bare = model.host(tiny_input(Layout.FLAT))
        seed.scale.fill_(1.0)
        whole = model(tiny_input(Layout.FLAT))
        Exploding.broken[2] = True
        grown = model(tiny_input(Layout.FLAT))
    assert isinstance(grown, Tensor)
    assert isinstance(whole, Tensor)
    others = [0, 1, 3, 4]
    assert torch.equal(grown[others], whole[others])
    assert torch.equal(grown[2], bare[2])
    assert not torch.equal(whole[2], bare[2])


def test_the_seed_goes_on_once_it_is_finite_again(model: GrowingModel) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.attach(optimizer)
    model.germinate(SLOT, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    Exploding.broken[:] = True
    _train(model, optimizer)
    assert not seed.scale.any()
    Exploding.broken[:] = False
    _train(model, optimizer)
    assert seed.scale.all()
    model.tick()
    _train(model, optimizer)
    model.tick()
    sink = model._events
    assert isinstance(sink, Recorder)
    assert sum(isinstance(event, NonFiniteSeedOutput) for event in sink.events) == 1


def test_looking_leaves_no_record(model: GrowingModel) -> None:
    grow_until(model, SLOT, Stage.HOLDING, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(1.0)
    Exploding.broken[:] = True
    with torch.no_grad(), model.override_alpha({SLOT: torch.ones(BATCH)}):
        out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    assert out.isfinite().all()
    assert not model.slots[SLOT].non_finite.any()


@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.MULTIPLY, Style.GATE])
@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.HOLDING])
def test_clipping_does_not_spread_a_broken_seed_to_the_host(
    model: GrowingModel, stage: Stage, style: Style
) -> None:
    """The seed's gradients are clean before anybody computes a norm over all of them; copies are as safe."""
    grow_until(model, SLOT, stage, "exploding", style=style)
    for each in (model, copy.deepcopy(model)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each.attach(optimizer)
        seed = each.slots[SLOT].seed
        assert seed is not None
        with torch.no_grad():
            seed.scale.fill_(float("inf"))
        out = each(tiny_input(Layout.FLAT))
        assert isinstance(out, Tensor)
        out.square().mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(each.parameters(), 1.0)
        optimizer.step()
        assert norm.isfinite()
        assert all(p.isfinite().all() for p in each.bare_parameters())
        assert all(p.isfinite().all() for p in seed.body.parameters())


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.HOLDING])
def test_a_grad_scaler_goes_on_with_the_host(model: GrowingModel, stage: Stage) -> None:
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.amp.GradScaler("cpu", init_scale=64.0),
    )
    model.attach(optimizer, scaler=scaler)
    grow_until(model, SLOT, stage, "exploding")
    Exploding.broken[:] = True
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(1.0)
    before = [p.detach().clone() for p in model.bare_parameters()]
    out = model(tiny_input(Layout.FLAT))
    assert isinstance(out, Tensor)
    scaler.scale(out.square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 64.0
    assert not any(torch.equal(p, was) for p, was in zip(model.bare_parameters(), before, strict=True))


def test_a_broken_seed_is_not_fossilised_and_its_end_is_told(model: GrowingModel) -> None:
    grow_until(model, SLOT, Stage.HOLDING, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    Exploding.broken[:] = True
    with torch.no_grad():
        seed.scale.fill_(1.0)
        model(tiny_input(Layout.FLAT))
    with pytest.raises(IllegalOperation, match="the seed was not finite in this epoch"):
        model.fossilize(SLOT)
    model.prune(SLOT)
    sink = model._events
    assert isinstance(sink, Recorder)
    assert NonFiniteSeedOutput(SLOT, Stage.HOLDING) in sink.events


def test_a_broken_validation_does_not_cost_a_training_step(model: GrowingModel) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.attach(optimizer)
    grow_until(model, SLOT, Stage.HOLDING, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None
    Exploding.broken[:] = True
    with torch.no_grad():
        model(tiny_input(Layout.FLAT))
    Exploding.broken[:] = False
    _train(model, optimizer)
    assert seed.scale.any()


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_step_is_as_safe(model: GrowingModel, by_name: bool) -> None:
    """With a closure, forward and backward happen inside step(): it is their gradients that are looked at."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)  # whose momentum moves on without a gradient
    model.attach(optimizer)
    model.germinate(SLOT, "exploding")
    seed = model.slots[SLOT].seed
    assert seed is not None

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(tiny_input(Layout.FLAT)).square().mean()
        loss.backward()
        return loss.item()

    def step() -> list[Tensor]:
        loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert isinstance(loss, float)
        return [p.detach().clone() for p in seed.parameters()]

    for _ in range(2):
        before = step()
    bare = [p.detach().clone() for p in model.bare_parameters()]
    Exploding.broken[:] = True
    assert all(map(torch.equal, step(), before))
    assert not any(map(torch.equal, model.bare_parameters(), bare))
    Exploding.broken[:] = False
    assert not any(
        map(torch.equal, step(), before)
    )  # it is the broken step that was left out, not the one after


def test_a_large_gradient_in_half_precision_is_finite() -> None:
    """Its entries are, and only their sum is more than half precision holds."""
    x = torch.ones(1, 40, dtype=torch.half)
    model = esper.wrap(nn.Sequential(nn.Linear(40, 40)).half(), ["0"], x)
    model.germinate("0", "mlp")
    slot = model.slots["0"]
    assert slot.seed is not None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.02)
    out = model(x)
    assert isinstance(out, Tensor)
    (out * 2000.0).sum().backward()
    gradient = slot.seed.scale.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert not gradient.sum().isfinite()
    assert gradient.all()
    assert not slot.non_finite.any()


class RootOfZero(nn.Module):
    """A finite output whose gradient is not."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, h: Tensor) -> Tensor:
        return (self.weight * 0.0).sqrt() + h * self.weight


def test_a_finite_output_with_a_broken_gradient_is_skipped_too() -> None:
    esper.blueprint("root", layouts=["flat"])(lambda site: RootOfZero(site.channels))
    try:
        model = esper.wrap(tiny_host(Layout.FLAT), [SLOT], tiny_input(Layout.FLAT))
    finally:
        forget("root")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.attach(optimizer)
    model.germinate(SLOT, "root")
    model.tick()
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(1.0)
    _train(model, optimizer)
    assert all(torch.equal(p, torch.ones(3)) for p in seed.parameters())
    assert model.slots[SLOT].gradients_finite() is False


def test_a_widened_copy_cannot_poison_the_host_through_its_input() -> None:
    """The copy reads the submodule's arguments; their gradients are guarded as well."""
    x = tiny_input(Layout.FLAT)
    model = esper.wrap(tiny_host(Layout.FLAT), [SLOT], x)
    grow_until(model, SLOT, Stage.HOLDING, "widen")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(1.0)
        for parameter in seed.body.parameters():
            parameter.fill_(float("inf"))
    model(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.bare_parameters())


class Spike(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return torch.where(h.abs() > 3.0, float("inf"), h)


def test_under_causality_a_broken_position_does_not_reach_back() -> None:
    esper.blueprint("spike", layouts=["tokens"], causal=True)(lambda _: Spike())
    try:
        model = esper.wrap(nn.Sequential(nn.Linear(4, 4)), ["0"], torch.randn(2, 7, 4), causal=True)
    finally:
        forget("spike")
    grow_until(model, "0", Stage.HOLDING, "spike")
    seed = model.slots["0"].seed
    assert seed is not None
    calm = torch.zeros(1, 7, 4)
    wild = calm.clone()
    wild[:, 5] = 1e3
    with torch.no_grad():
        seed.scale.fill_(1.0)
        assert torch.equal(model(calm)[:, :5], model(wild)[:, :5])


@pytest.mark.parametrize("by", ["itself", "a copy", "a file"])
def test_a_fossil_is_the_host_gradients_that_overflow_are_seen_and_the_next_ones_train_it(
    model: GrowingModel, by: str, tmp_path: Path
) -> None:
    grow_until(model, SLOT, Stage.FOSSILIZED, "exploding")
    if by == "a copy":
        model = copy.deepcopy(model)
    if by == "a file":
        model.save(tmp_path / "fossil")
        model = esper.wrap(tiny_host(Layout.FLAT), [SLOT], tiny_input(Layout.FLAT))
        model.load(tmp_path / "fossil")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.attach(optimizer)
    seed = model.slots[SLOT].seed
    assert seed is not None

    def gradient(loss_scale: float) -> Tensor:
        optimizer.zero_grad()
        out = model(tiny_input(Layout.FLAT))
        assert isinstance(out, Tensor)
        (out.square().mean() * loss_scale).backward()
        assert seed.scale.grad is not None
        return seed.scale.grad

    assert not gradient(float("inf")).isfinite().all()  # as those of the host, for a scaler to see
    finite = gradient(1.0)
    assert finite.isfinite().all()
    assert finite.abs().sum() > 0.0


def test_a_broken_output_zeroes_the_seeds_gradients_before_clipping_though_they_are_finite() -> None:
    class Offset(Exploding):
        def forward(self, h: Tensor) -> Tensor:
            return h * self.weight + torch.where(self.broken[: len(h), None], float("inf"), 0.0)

    esper.blueprint("offset", layouts=["flat"])(lambda site: Offset(site.channels))
    try:
        model = esper.wrap(tiny_host(Layout.FLAT), [SLOT], tiny_input(Layout.FLAT), events=Recorder())
        grow_until(model, SLOT, Stage.HOLDING, "offset")
        seed = model.slots[SLOT].seed
        assert seed is not None
        with torch.no_grad():
            seed.scale.fill_(1.0)
        for broken in (False, True):
            Exploding.broken = torch.tensor([broken] + [False] * (BATCH - 1))
            model.zero_grad()
            out = model(tiny_input(Layout.FLAT))
            assert isinstance(out, Tensor)
            out.square().mean().backward()
            weights = seed.get_parameter("body.weight").grad  # which that offset does not enter
            assert weights is not None
            assert weights.any() != broken
    finally:
        Exploding.broken = torch.zeros(BATCH, dtype=torch.bool)
        forget("offset")


def _batched_gradient(model: GrowingModel, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    out = model(x)
    each = torch.eye(out.numel()).view(-1, *out.shape)
    return torch.autograd.grad(out, x, each, is_grads_batched=True)[0]


def _recorded_gradient(model: GrowingModel, x: Tensor) -> Tensor:
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(model(x).square().sum(), x)[0]

    recorded = make_fx(gradient)(torch.ones_like(x))
    found: Tensor = recorded(x)
    return found


def _jacobian(model: GrowingModel, x: Tensor, *, vectorize: bool) -> Tensor:
    return torch.autograd.functional.jacobian(model, x, vectorize=vectorize)


def _hessian(model: GrowingModel, x: Tensor, *, vectorize: bool) -> Tensor:
    return torch.autograd.functional.hessian(lambda x: model(x).square().sum(), x, vectorize=vectorize)


def _plain_gradient(model: GrowingModel, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x).square().sum(), x)[0]


_Transform = Callable[[GrowingModel, Tensor], Tensor]


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.HOLDING])
@pytest.mark.parametrize(
    ("transform", "plain"),
    [
        pytest.param(
            lambda model, x: _jacobian(model, x, vectorize=True),
            lambda model, x: _jacobian(model, x, vectorize=False),
            id="jacobian",
        ),
        pytest.param(
            lambda model, x: _hessian(model, x, vectorize=True),
            lambda model, x: _hessian(model, x, vectorize=False),
            id="hessian",
        ),
        pytest.param(
            _batched_gradient,
            lambda model, x: _jacobian(model, x, vectorize=False).view(-1, *x.shape),
            id="is_grads_batched",
        ),
        pytest.param(
            lambda model, x: make_fx(model)(torch.ones_like(x))(x), lambda model, x: model(x), id="make_fx"
        ),
        pytest.param(_recorded_gradient, _plain_gradient, id="make_fx of a gradient"),
    ],
)
def test_nothing_is_asked_of_values_that_stand_for_others(
    model: GrowingModel, stage: Stage, transform: _Transform, plain: _Transform
) -> None:
    grow_until(model, SLOT, stage, "mlp")
    seed = model.slots[SLOT].seed
    assert seed is not None
    with torch.no_grad():
        seed.scale.fill_(0.5)
    x = tiny_input(Layout.FLAT)
    torch.testing.assert_close(transform(model, x), plain(model, x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "record", [torch.jit.trace, lambda model, x: make_fx(model)(x)], ids=["torch.jit.trace", "make_fx"]
)
def test_a_program_recorded_while_all_was_finite_keeps_the_guard(
    record: Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]],
) -> None:
    esper.blueprint("spike", layouts=["flat"])(lambda _: Spike())
    try:
        model = esper.wrap(nn.Sequential(nn.Linear(4, 4)), ["0"], torch.zeros(5, 4))
    finally:
        forget("spike")
    grow_until(model, "0", Stage.HOLDING, "spike")
    seed = model.slots["0"].seed
    assert seed is not None
    wild = torch.zeros(5, 4)
    wild[2] = 1e3
    with torch.no_grad():
        seed.scale.fill_(1.0)
        recorded = record(model, torch.zeros(5, 4))
        assert torch.equal(recorded(wild), model(wild))
        assert model(wild).isfinite().all()
