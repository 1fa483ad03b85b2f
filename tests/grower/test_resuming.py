"""A checkpoint of a Grower that was taken after an epoch at chance, which holds the last good epoch too."""

import copy
from collections.abc import Sequence

import torch

from esper.grower import Grower
from esper.integrations.callback import with_host, without_host
from grower.loops import Loop
from grower.test_grower import grown

Trained = tuple[Grower, torch.optim.Optimizer, Loop]
DOUBTFUL = (0.7, 0.7, 0.7, 0.0)
"""Validation accuracies of epochs, the last of which is at chance."""


def live(
    grower: Grower, optimizer: torch.optim.Optimizer, loop: Loop, accuracies: Sequence[float]
) -> Trained:
    for accuracy in accuracies:
        loss = loop.train(grower.model, optimizer)
        grower.step(train_loss=loss, validation_accuracy=accuracy)
    return grower, optimizer, loop


def test_a_state_that_holds_the_models_own_tensors() -> None:
    """So trainers put it together that restore the host themselves."""
    straight, *_ = live(*grown(0), DOUBTFUL)
    growth, weights = copy.deepcopy(without_host(straight)), copy.deepcopy(straight.state_dict())
    assert growth["good"] is not None
    resumed, *_ = grown(0)
    resumed.load_state_dict(weights)
    resumed.load_state_dict(with_host(resumed, growth))
    ours, theirs = straight.model.state_dict(), resumed.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_saving_leaves_a_schedule_by_hand_alone() -> None:
    """Its group is the optimiser's, whatever is saved when."""

    def rates(*, saves: bool) -> list[float]:
        grower, optimizer, loop = grown(0)
        (group,), found = optimizer.param_groups, []
        for epoch, accuracy in enumerate((*DOUBTFUL, 0.7, 0.7)):
            group["lr"] = 0.02 * 0.5**epoch
            found.append(optimizer.param_groups[0]["lr"])
            live(grower, optimizer, loop, (accuracy,))
            if saves:
                grower.state_dict()
        return found

    assert rates(saves=True) == rates(saves=False)


def test_saving_between_a_forward_and_its_backward() -> None:
    grower, optimizer, loop = live(*grown(0), DOUBTFUL)
    optimizer.zero_grad()
    loss = loop.loss(grower.model(loop.inputs), loop.targets)
    assert grower.state_dict()["good"] is not None
    loss.backward()


def test_looking_back_leaves_the_model_as_it_was() -> None:
    grower, optimizer, loop = live(*grown(2), DOUBTFUL)
    optimizer.zero_grad()
    loop.loss(grower.model(loop.inputs), loop.targets).backward()
    gradients = [parameter.grad for parameter in grower.model.parameters()]
    weights = {name: tensor.clone() for name, tensor in grower.model.state_dict().items()}
    assert any(gradient is not None for gradient in gradients)
    grower._guard.look_back(lambda: None)
    assert list(map(id, gradients)) == [id(parameter.grad) for parameter in grower.model.parameters()]
    now = grower.model.state_dict()
    assert all(torch.equal(tensor, now[name]) for name, tensor in weights.items())
