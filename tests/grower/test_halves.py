"""A step in two halves: an epoch is taken in, perhaps saved, and decided on when training goes on."""

import io
import math

import pytest
import torch
from torch import Tensor

import esper
from esper.grower import Grower
from grower.loops import Loop, net

SCHEDULE = "germinate mlp@0 t=1; advance 0 t=2; prune 0 t=4; germinate lora@1 t=6"
EPOCHS = 9


def begin() -> tuple[Grower, torch.optim.Optimizer, Loop]:
    loop, model = Loop(), net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = Grower(
        model,
        ["0", "1"],
        optimizer=optimizer,
        example_input=loop.inputs[:2],
        controller=esper.rule_policy("schedule", schedule=SCHEDULE),
        validate=loop.validate,
        epochs=EPOCHS,
    )
    return grower, optimizer, loop


def saved(grower: Grower) -> dict[str, object]:
    """Its state, through a file."""
    file = io.BytesIO()
    torch.save(grower.state_dict(), file)
    file.seek(0)
    state: dict[str, object] = torch.load(file, weights_only=True)
    return state


def go_on(
    grower: Grower, optimizer: torch.optim.Optimizer, loop: Loop, *, broken_at: int | None
) -> dict[str, Tensor]:
    """Decide on what waits, then train to the end; an epoch's loss may be NaN."""
    if grower.undecided:
        grower.decide()
    while grower.epoch < EPOCHS:
        loss = loop.train(grower.model, optimizer)
        grower.step(train_loss=math.nan if grower.epoch + 1 == broken_at else loss)
    return grower.model.state_dict()


@pytest.mark.filterwarnings("ignore:epoch 5")
@pytest.mark.parametrize("broken_at", [None, 5])
def test_a_checkpoint_between_the_halves(broken_at: int | None) -> None:
    """After epoch 4 a seed is pruned; with an epoch 5 that breaks, it comes back from the epoch before."""
    expected = begin()
    weights = go_on(*expected, broken_at=broken_at)
    grower, optimizer, loop = begin()
    for _ in range(3):
        grower.step(train_loss=loop.train(grower.model, optimizer))
    grower.take_in(train_loss=loop.train(grower.model, optimizer))
    assert grower.undecided
    assert grower.model.slots["0"].seed is not None  # nothing has been decided yet
    resumed, its_optimizer, its_loop = begin()
    resumed.load_state_dict(saved(grower))
    its_loop.order.set_state(loop.order.get_state())
    found = go_on(resumed, its_optimizer, its_loop, broken_at=broken_at)
    assert resumed.history == expected[0].history
    assert any(decision.rolled_back for decision in resumed.history) == (broken_at is not None)
    assert all(torch.equal(found[name], weights[name]) for name in weights | found)


def test_a_checkpoint_in_the_middle_of_an_epoch() -> None:
    """What was seen of the epoch's gradients goes on: their norms are means over all of its steps."""
    decisions = []
    for stops in (False, True):
        grower, optimizer, loop = begin()
        for _ in range(2):
            grower.step(train_loss=loop.train(grower.model, optimizer))
        for number, (inputs, targets) in enumerate(loop.batches()):
            if stops and number == 1:
                state, (grower, optimizer, _) = saved(grower), begin()
                grower.load_state_dict(state)
            loss = loop.loss(grower.model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        decisions.append((grower.step(train_loss=loss), grower._host.report))
    assert decisions[0][1].gradient_norm is not None
    assert decisions[0] == decisions[1]


def test_there_has_to_be_an_epoch_to_decide_on() -> None:
    grower, optimizer, loop = begin()
    with pytest.raises(RuntimeError, match=r"decide\(\) has no epoch to decide on: call take_in\(\) first"):
        grower.decide()
    grower.step(train_loss=loop.train(grower.model, optimizer))
    assert not grower.undecided
