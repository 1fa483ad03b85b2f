"""An epoch of training: the engine does what a loop by hand does, for each host as if it were alone."""

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from esper.leyline import ActionSpec, Curve, LifecycleOp, Style
from esper.tolaria.engine.host import ShuffledStream
from esper.tolaria.engine.population import Population
from esper.tolaria.engine.step import SeedGuard, autocast, clip_groups_
from esper.tolaria.tasks import OptimiserSpec, forget, register
from tiny_tasks import BATCH, STEPS, advance, germinate, tiny_task


def _weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("clip", [1e9, 0.05])
def test_an_epoch_is_what_a_loop_by_hand_does(clip: float) -> None:
    row = register(tiny_task("clipped", clip_host=clip))
    population = Population(1)
    host = population.begin(0, "clipped", seed=3)
    tally = population.train_epoch()
    data = host.data.source
    forget("clipped")

    bare = row.grow(data, seed=3).host
    optimizer = torch.optim.Adam(bare.parameters(), row.optimiser.lr, fused=True)
    train, losses, norms, right = data.phases[0].train, [], [], []
    for indices in ShuffledStream(3).draw(range(len(train)), STEPS, BATCH):
        optimizer.zero_grad(set_to_none=True)
        logits = bare(train.inputs[indices])
        loss = F.cross_entropy(logits, train.targets[indices])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(bare.parameters(), clip))
        optimizer.step()
        losses.append(loss.item())
        right.append((logits.argmax(1) == train.targets[indices]).float().mean().item())
    for ours, theirs in zip(_weights(host.model), _weights(bare), strict=True):
        assert torch.allclose(ours, theirs, rtol=0.0, atol=0.0 if clip > 1 else 1e-6)
    assert tally.loss.item() == pytest.approx(sum(losses) / STEPS, rel=1e-6)
    assert tally.accuracy.item() == pytest.approx(sum(right) / STEPS, rel=1e-6)
    assert tally.gradient_norm.item() == pytest.approx(torch.stack(norms).mean().item(), rel=1e-5)


def test_a_host_among_others_is_as_if_it_were_alone() -> None:
    crowd, alone = Population(3), Population(1)
    for index, seed in enumerate((0, 1, 2)):
        crowd.begin(index, "tiny", seed)
    alone.begin(0, "tiny", 1)
    for population, index in ((crowd, 1), (alone, 0)):
        population.host(index).apply(germinate())
        population.host(index).model.tick()
    for _ in range(2):
        crowd.train_epoch()
        alone.train_epoch()
    assert _same(_weights(crowd.host(1).model), _weights(alone.host(0).model))


def test_only_the_hosts_that_were_asked_for_are_trained() -> None:
    population = Population(3)
    for index in range(3):
        population.begin(index, "tiny", index)
    before = [_weights(population.host(index).model) for index in range(3)]
    tally = population.train_epoch([2, 0])
    assert tally.loss.shape == (2,)
    after = [_weights(population.host(index).model) for index in range(3)]
    assert [_same(one, other) for one, other in zip(before, after, strict=True)] == [False, True, False]


def test_seeds_are_measured_in_their_slots_and_nowhere_else() -> None:
    population = Population(2)
    for index in range(2):
        population.begin(index, "tiny", index)
    population.host(1).apply(germinate(2))
    population.host(1).model.tick()
    tally = population.train_epoch()
    known = torch.isfinite(tally.seed_gradient_norm)
    assert known.nonzero().tolist() == [[1, 2]]
    assert torch.equal(known, torch.isfinite(tally.seed_gradient_health))
    assert tally.seed_finite.all()
    assert 0.5 < tally.seed_gradient_health[1, 2] <= 1.0


def test_a_fossil_is_clipped_and_measured_with_the_host() -> None:
    population = Population(1)
    host = population.begin(0, "tiny", 0)
    for action in (germinate(), advance(), None, None, ActionSpec(LifecycleOp.FOSSILIZE, "blocks.1")):
        if action is not None:
            host.apply(action)
        host.model.tick()
        tally = population.train_epoch()
    assert torch.isnan(tally.seed_gradient_norm).all()
    assert tally.seed_finite.all()


def test_groups_are_clipped_apart() -> None:
    host, seed = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    host.grad, seed.grad = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 0.6, 0.8])
    measured = clip_groups_([[host], [seed]], [2.0, 2.0])
    assert measured.tolist() == pytest.approx([5.0, 1.0, 1.0])
    assert host.grad.norm().item() == pytest.approx(2.0, rel=1e-5)
    assert torch.equal(seed.grad, torch.tensor([0.0, 0.6, 0.8]))


def test_the_data_change_with_the_phase() -> None:
    population = Population(1)
    host = population.begin(0, "tiny:change=1", 0)
    assert host.training_samples == 61
    first = host.validation
    population.train_epoch()
    assert host.training_samples == 61  # nothing announces a change before its data do
    assert host.validation is first
    assert host.plan_epoch().order.min() >= 61
    population.train_epoch()
    assert host.training_samples == 67
    assert host.validation is not first


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (lambda population: population.train_epoch([]), "at least one host"),
        (lambda population: population.train_epoch([0, 0]), "none twice"),
        (lambda population: population.host(1), r"host 1 has not begun: call begin\(1, case, seed\)"),
        (lambda population: population.begin(1, "nonsense", 0), "no task is named 'nonsense'"),
        (lambda population: population.host(2), r"host_idx must be 0..1, not 2"),
        (lambda population: population.begin(-1, "tiny", 0), r"host_idx must be 0..1, not -1"),
        (lambda population: population.validate([0, -2]), r"host_idx must be 0..1, not -2"),
        (lambda _: Population(0), "size must be at least 1"),
        (lambda _: Population(1, max_slots=2).begin(0, "tiny", 0), "has 3 slots"),
    ],
)
def test_mistakes_are_named(problem: Callable[[Population], object], message: str) -> None:
    population = Population(2)
    population.begin(0, "tiny", 0)
    with pytest.raises(ValueError, match=message):
        problem(population)


def test_a_cpu_computes_in_float32_whatever_the_task_says() -> None:
    register(tiny_task("half", precision="bf16"))
    try:
        host = Population(1).begin(0, "half", 0)
    finally:
        forget("half")
    with autocast(host):
        assert not torch.is_autocast_enabled("cpu")


def test_a_broken_seed_is_not_updated_and_its_neighbours_are() -> None:
    records = torch.zeros(3, 2, dtype=torch.bool)
    seeds = [[nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, 3))] for _ in range(2)]
    for seed in seeds:
        for parameter in seed:
            parameter.grad = torch.ones_like(parameter)
    guard = SeedGuard(records, [0, 2], seeds)
    records[1, 0] = True  # one that fades: it has no gradients, and is told of all the same
    guard(torch.tensor([1.0, 1.0]))
    assert all(parameter.grad is not None for seed in seeds for parameter in seed)
    guard(torch.tensor([1.0, torch.nan]))
    assert [parameter.grad is None for seed in seeds for parameter in seed] == [False, False, True, True]
    assert records.tolist() == [[False, False], [False, True], [False, True]]
    records[0, 0] = True
    guard(torch.tensor([1.0, 1.0]))
    assert [parameter.grad is None for seed in seeds for parameter in seed] == [True] * 4
    assert records.tolist() == [[False, True]] * 3


def test_gradients_of_broken_seeds_can_be_zeroed_without_asking() -> None:
    """What CUDA does, on the CPU; a weight that had no part in the forward has no gradient."""
    seeds = [[nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, 3))] for _ in range(3)]
    for seed in seeds:
        seed[1].grad = torch.full((2, 3), torch.inf)
    seeds[1][0].grad = torch.ones(2)
    guard = SeedGuard(torch.zeros(3, 2, dtype=torch.bool), [0, 1, 2], seeds)
    for broken in ([True, False, False], [False, False, True]):
        guard.zero(torch.tensor(broken))
    zeroed = [seed[1].grad is not None and bool((seed[1].grad == 0).all()) for seed in seeds]
    assert zeroed == [True, False, True]
    assert torch.equal(seeds[1][0].grad, torch.ones(2))


def _gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    return float(torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm())


def test_seeds_have_their_own_limit_and_fossils_the_hosts() -> None:
    register(tiny_task("limited", clip_host=1e-3, clip_seeds=1e-4, steps_per_epoch=1))
    population = Population(1)
    try:
        host = population.begin(0, "limited", 0)
    finally:
        forget("limited")
    fossilize = ActionSpec(LifecycleOp.FOSSILIZE, "blocks.1")
    for action in (germinate(), advance(), None, None, fossilize):
        if action is not None:
            host.apply(action)
        host.model.tick()
        tally = population.train_epoch()
        seed = host.slots[1].seed
        assert seed is not None
        bare, own = list(host.model.bare_parameters()), list(seed.parameters())
        if action is fossilize:
            assert _gradient_norm([*bare, *own]) == pytest.approx(1e-3, rel=0.01)
        else:
            assert _gradient_norm(bare) == pytest.approx(1e-3, rel=0.01)
            assert _gradient_norm(own) == pytest.approx(1e-4, rel=0.02)
            assert tally.seed_gradient_norm[0, 1] > 2e-4
    assert tally.gradient_norm.item() > 2e-3


def test_a_place_begun_again_trains_the_new_host() -> None:
    again, fresh = Population(1), Population(1)
    again.begin(0, "tiny:samples=60", 0)
    again.train_epoch()
    for population in (again, fresh):
        population.begin(0, "tiny", 1)
        population.train_epoch()
    assert _same(_weights(again.host(0).model), _weights(fresh.host(0).model))
    assert list(again._data) == ["tiny"]  # what nobody uses any more is let go


def test_an_epoch_is_tallied_on_its_own() -> None:
    population = Population(1)
    population.begin(0, "tiny", 0)
    population._tally.fill_(1e6)
    assert population.train_epoch().loss.item() < 10.0


def test_hosts_may_have_epochs_of_different_length() -> None:
    register(tiny_task("longer", steps_per_epoch=STEPS + 2))
    populations = [Population(2), Population(1), Population(1)]
    cases = ("tiny", "longer")
    try:
        for population, chosen in zip(populations, (cases, cases[:1], cases[1:]), strict=True):
            for index, case in enumerate(chosen):
                population.begin(index, case, 0)
    finally:
        forget("longer")
    together, *alone = populations
    tally = together.train_epoch([1, 0])
    for index, population in enumerate(alone):
        assert population.train_epoch().loss.item() == tally.loss[1 - index].item()
        assert _same(_weights(together.host(index).model), _weights(population.host(0).model))


def test_a_seed_is_measured_from_its_birth_until_it_fades() -> None:
    population = Population(1)
    host = population.begin(0, "tiny", 0)
    fade = ActionSpec(LifecycleOp.PRUNE, "blocks.1", alpha_speed=5)
    known = []
    for action in (None, germinate(), advance(), None, fade, None):
        if action is not None:
            host.apply(action)
        host.model.tick()
        known.append(bool(population.train_epoch().seed_gradient_norm[0, 1] > 0.0))  # NaN is not
    assert known == [False, True, True, True, False, False]


def test_all_of_an_action_reaches_the_seed() -> None:
    population = Population(1)
    host = population.begin(0, "tiny", 0)
    chosen = ActionSpec(
        LifecycleOp.GERMINATE, "blocks.1", "norm", style=Style.GATE, tempo=5, alpha_target=0.5
    )
    host.apply(chosen)
    life = host.slots[1].life
    assert (life.style, life.tempo, life.alpha_target) == (Style.GATE, 5, 0.5)
    for action in (None, advance(), *[None] * 5):
        if action is not None:
            host.apply(action)
        host.model.tick()
        population.train_epoch()
    host.apply(
        ActionSpec(
            LifecycleOp.SET_ALPHA_TARGET,
            "blocks.1",
            style=Style.GATE,
            alpha_target=0.7,
            alpha_speed=8,
            alpha_curve=Curve.COSINE,
        )
    )
    assert life.ramp is not None
    assert (life.ramp.target, life.ramp.epochs, life.ramp.curve) == (0.7, 8, Curve.COSINE)
    host.apply(ActionSpec(LifecycleOp.PRUNE, "blocks.1", alpha_speed=3, alpha_curve=Curve.SIGMOID_SHARP))
    assert life.fading
    assert (life.ramp.target, life.ramp.epochs, life.ramp.curve) == (0.0, 3, Curve.SIGMOID_SHARP)


@pytest.mark.parametrize(("kind", "made"), [("sgd", SGD), ("adam", Adam), ("adamw", AdamW)])
def test_the_optimiser_is_the_tasks(kind: str, made: type[Optimizer]) -> None:
    spec = OptimiserSpec(kind=kind, lr=0.02, weight_decay=0.3, momentum=0.7)  # type: ignore[arg-type]
    register(tiny_task("own", optimiser=spec, seed_lr_multiplier=5.0))
    try:
        host = Population(1).begin(0, "own", 0)
    finally:
        forget("own")
    host.apply(germinate())
    assert type(host.optimizer) is made
    bare, seed = host.optimizer.param_groups
    assert (bare["lr"], bare["weight_decay"]) == (0.02, 0.3)
    assert seed["lr"] == pytest.approx(0.1)
    assert bare.get("momentum", 0.7) == 0.7
