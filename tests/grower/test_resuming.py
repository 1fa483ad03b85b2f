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
