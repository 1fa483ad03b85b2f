"""What keeps a network able to learn: each rule by its known answer, and all of them on a stream of tasks."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from esper.kasmina.hosts import ConvNet
from esper.tolaria.upkeep import (
    ContinualBackprop,
    L2Init,
    ReDo,
    Reset,
    ShrinkAndPerturb,
    Upkeep,
    begin_anew,
    fresh_weights,
    hidden_units,
    mean_outputs,
)
from study_plasticity import ARMS, Digits, rows_of

INPUTS = torch.randn(17, 3, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))


def trained(model: nn.Module, upkeep: Upkeep, inputs: torch.Tensor = INPUTS) -> torch.optim.Adam:
    """One update, so that the optimiser has moments."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    upkeep.begin(model, optimizer, seed=3)
    model(inputs).square().mean().backward()
    optimizer.step()
    return optimizer


def values(model: nn.Module) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in model.parameters()]


def test_units_are_what_one_layer_makes_and_the_next_reads() -> None:
    first, second = hidden_units(network())
    assert (first.count, second.count) == (5, 7)
    assert first.outgoing is second.incoming
    conv = hidden_units(ConvNet(1, 4, dims=1, widths=(3, 5), pools=(1, 2)))
    assert [(units.count, type(units.norm), type(units.outgoing)) for units in conv] == [
        (3, nn.GroupNorm, nn.Conv1d),
        (5, nn.GroupNorm, nn.Linear),
    ]
    flat = nn.Sequential(nn.Conv1d(1, 3, 1), nn.Flatten(), nn.Linear(33, 2))
    with pytest.raises(ValueError, match="a Linear reads 33 units, and the Conv1d before it has 3"):
        hidden_units(flat)


def test_new_weights_follow_the_seed_and_move_no_global_generator() -> None:
    model, before = network(), torch.get_rng_state()
    weights = values(model)
    one, same, other = ([new for _, _, new in fresh_weights(model, seed)] for seed in (11, 11, 12))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, values(model), weights))
    assert [new.shape for new in one] == [weight.shape for weight in weights]
    assert all(map(torch.equal, one, same))
    assert not any(map(torch.equal, one, other))
    assert not any(map(torch.equal, one, weights))
    assert max(float(new.abs().max()) for new in one[:2]) <= 3**-0.5  # the bound of a layer that reads 3


def test_a_unit_that_gave_nothing_begins_anew_unseen() -> None:
    model = network()
    optimizer = trained(model, Upkeep())
    units = hidden_units(model)[0]
    bias = units.incoming.bias
    assert bias is not None
    with torch.no_grad():
        bias[2] = -100.0  # dead: its ReLU puts out 0
    before, weights = model(INPUTS), values(model)
    begin_anew(units, torch.tensor([2]), optimizer, seed=9)
    assert torch.equal(model(INPUTS), before)
    assert mean_outputs(model, [units], INPUTS)[0][2] > 0  # alive again
    changed = values(model)
    kept = [0, 1, 3, 4]
    assert torch.equal(weights[0][kept], changed[0][kept])
    assert not torch.equal(weights[0][2], changed[0][2])
    assert torch.equal(weights[2][:, kept], changed[2][:, kept])
    assert not changed[2][:, 2].any()
    moments = optimizer.state[units.incoming.weight]["exp_avg"]
    assert not moments[2].any()
    assert moments[kept].any()
    assert not optimizer.state[units.outgoing.weight]["exp_avg_sq"][:, 2].any()


def test_l2_init_adds_the_way_from_the_start_to_the_gradient() -> None:
    model, upkeep = network(), L2Init(strength=0.5)
    start = values(model)
    trained(model, upkeep)
    gradients = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    upkeep.before_step()
    for weight, before, old in zip(model.parameters(), gradients, start, strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, before + 0.5 * (weight.detach() - old))


def test_shrink_and_perturb_shrinks_layers_and_leaves_norms() -> None:
    model, upkeep = ConvNet(1, 4, dims=1, widths=(3, 5), pools=(1, 2)), ShrinkAndPerturb(0.25, 0.0, every=2)
    inputs = torch.randn(7, 1, 12)
    trained(model, upkeep, inputs)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    upkeep.maintain(inputs)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    upkeep.maintain(inputs)
    for name, weight in model.named_parameters():
        norm = name.endswith((".1.weight", ".1.bias"))
        assert torch.allclose(weight, before[name] * (1.0 if norm else 0.75)), name
    noisy = ShrinkAndPerturb(1.0, 1.0)
    trained(model, noisy, inputs)
    noisy.maintain(inputs)
    (drawn,) = (new for _, weight, new in fresh_weights(model, noisy.seed + 1) if weight is model.head.weight)
    assert torch.equal(model.head.weight, drawn)


def test_continual_backprop_begins_the_least_used_mature_unit_anew() -> None:
    model, upkeep = network(), ContinualBackprop(rate=0.1, maturity=3, decay=0.5)
    trained(model, upkeep)
    first = hidden_units(model)[0]
    with torch.no_grad():
        first.outgoing.weight[:, 1] = 1e-6
    marked = first.incoming.weight[1].detach().clone()
    for call in range(1, 6):
        # mature after the third call: 0.1 x 5 units are due at each, so the second of these calls begins one anew
        upkeep.maintain(INPUTS)
        assert torch.equal(first.incoming.weight[1], marked) == (call < 5), call
    assert (
        first.outgoing.weight[:, 1].count_nonzero() <= 1
    )  # but for a unit of the next layer, which began anew too
    again = first.incoming.weight[1].detach().clone()
    upkeep.maintain(INPUTS)
    assert torch.equal(first.incoming.weight[1], again)  # it is young


def test_redo_begins_dormant_units_anew_and_no_others() -> None:
    model, upkeep = network(), ReDo(threshold=0.05, every=2)
    trained(model, upkeep)
    first = hidden_units(model)[0]
    bias = first.incoming.bias
    assert bias is not None
    with torch.no_grad():
        bias[3] = -100.0
    before = values(model)[0]
    upkeep.maintain(INPUTS)
    assert torch.equal(values(model)[0], before)
    upkeep.maintain(INPUTS)
    same = (values(model)[0] == before).all(1).tolist()
    assert same == [True, True, True, False, True]


@pytest.mark.parametrize("only_last", [False, True])
def test_a_reset_waits_for_a_change(only_last: bool) -> None:
    model, upkeep = network(), Reset(only_last=only_last)
    optimizer = trained(model, upkeep)
    before = values(model)
    upkeep.maintain(INPUTS)
    assert all(map(torch.equal, values(model), before))
    upkeep.maintain(INPUTS, changed=True)
    new = [not torch.equal(*pair) for pair in zip(values(model), before, strict=True)]
    assert new == [not only_last] * 4 + [True] * 2
    moments = [bool(optimizer.state[weight]["exp_avg"].any()) for weight in model.parameters()]
    assert moments == [only_last] * 4 + [False] * 2


@pytest.mark.parametrize(
    "make", [Upkeep, lambda: L2Init(0.1), lambda: ReDo(0.1), lambda: ContinualBackprop(0.1, 1)]
)
def test_weights_are_changed_in_place(make: Callable[[], Upkeep]) -> None:
    model, upkeep = network(), make()
    trained(model, upkeep)
    places = [weight.data_ptr() for weight in model.parameters()]
    for _ in range(5):
        upkeep.before_step()
        upkeep.maintain(INPUTS, changed=True)
    assert [weight.data_ptr() for weight in model.parameters()] == places


@pytest.mark.slow
def test_plain_training_loses_what_the_rivals_keep() -> None:
    """On 40 tasks of permuted digits plain training lost 0.12, continual backprop and ReDo nothing."""
    rows = {str(row["arm"]): row for row in rows_of(ARMS, Digits(tasks=40), seeds=1)}
    plain = rows.pop("plain")
    assert float(plain["lost"]) > 0.07
    for name, row in rows.items():
        assert float(row["lost"]) < 0.5 * float(plain["lost"]), name
        assert float(row["last quarter"]) > float(plain["last quarter"]) + 0.05, name
