"""What a seed could do in each place, before any is born: signals of the gradient on its scale.

A newborn seed adds s * body(h) to the activation h of its slot, with a scale s of zero, and changes nothing. The
gradient of the loss with respect to that scale,

    v_c = sum over samples and positions of dL/dh_c body(h)_c ,

says to first order what a seed of that kind would change there. It needs dL/dh of the bare host, which one backward
gives for all slots, and one forward of each body.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from esper.kasmina.model import GrowingModel, untouched
from esper.kasmina.seed import Seed, bear_seed, birth_randomness
from esper.kasmina.slot import Slot
from esper.leyline import Composition
from esper.leyline.errors import EsperError

_Batch = TypeVar("_Batch")


class SignalError(EsperError, ValueError):
    """Signals cannot be measured with what was given."""


def birth_signals(
    model: GrowingModel, batches: Iterable[_Batch], loss: Callable[[nn.Module, _Batch], Tensor]
) -> dict[tuple[str, str], float | None]:
    """(slot, blueprint) -> signal-to-noise ratio of the gradient on a newborn seed's scale, over minibatches.

        signals = birth_signals(model, batches, lambda net, batch: cross_entropy(net(batch[0]), batch[1]))

    batches  at least two, of like size; each costs a forward and a backward of the host, and a forward of each body
    loss     (model, batch) -> the mean loss of the batch

    With the gradients v of n minibatches it is n |mean v|^2 / trace cov v: 1 is what noise alone gives, inf is no
    noise. None where the loss does not depend on the slot. Pairs are those of slots without a seed, and a seed is the
    one that `germinate` would plant there next, with style linear_add. The model is run in evaluation mode and left
    as it was: gradients, weights, statistics, modes and random states.
    """
    places = [_Place(slot, _newborns(model, slot)) for slot in model.slots.values() if slot.seed is None]
    if not places:
        raise SignalError("every slot holds a seed: signals are of seeds that are not born yet")
    count = 0
    hooks = [place.listen() for place in places]
    try:
        with untouched(model), torch.enable_grad():
            for batch in batches:
                _measure(places, loss(model, batch))
                count += 1
    finally:
        for hook in hooks:
            hook.remove()
    if count < 2:
        raise SignalError(
            f"batches has {count}; a ratio over minibatches needs at least 2, and better 8 or more"
        )
    return {
        (place.slot.name, kind): found.ratio(count)
        for place in places
        for kind, found in place.gradients.items()
    }


def _newborns(model: GrowingModel, slot: Slot) -> dict[str, Seed]:
    """Blueprint -> the seed that would be born, at a scale of one: its delta is what its body says."""
    device, dtype = slot.placement()
    born = {}
    for name, blueprint in slot.blueprints.items():
        with birth_randomness(model.growth_seed, slot.name, slot.life.births):
            seed = bear_seed(blueprint, slot.site, Composition.ADD, device=device, dtype=dtype)
        seed.scale.detach().fill_(1.0)
        born[name] = seed
    return born


@dataclass
class _Moments:
    """Of the gradients of minibatches, channel by channel."""

    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0

    def add(self, gradient: Tensor) -> None:
        self.total = self.total + gradient
        self.squares = self.squares + gradient.square()

    def ratio(self, count: int) -> float | None:
        """n |mean|^2 / trace of the (unbiased) covariance."""
        total, squares = torch.as_tensor(self.total), torch.as_tensor(self.squares)
        signal = float((total / count).square().sum()) * count
        noise = float((squares - total.square() / count).clamp_min(0.0).sum()) / (count - 1)
        if not signal and not noise:
            return None
        return signal / noise if noise else math.inf


@dataclass
class _Place:
    """One slot, the seeds that could be born there, and what was seen of it in the forward that is under way."""

    slot: Slot
    seeds: dict[str, Seed]
    gradients: dict[str, _Moments] = field(init=False)
    seen: list[tuple[Tensor, tuple[object, ...], dict[str, object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gradients = {kind: _Moments() for kind in self.seeds}

    def listen(self) -> torch.utils.hooks.RemovableHandle:
        """Note the activations of the forwards to come, and give the host copies: it may work on them in place."""

        def note(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> object:
            form = self.slot.site.form
            h: Tensor = form.pick(output)
            if not h.requires_grad:
                h = h.detach().requires_grad_()
            self.seen.append((h, args, kwargs))
            return form.put_back(output, h.clone())

        module = self.slot.site.module
        assert module is not None
        return module.register_forward_hook(note, with_kwargs=True)

    @torch.no_grad()
    def take(self, gradients: Iterable[Tensor | None]) -> None:
        """Add the minibatch whose gradients at the activations seen these are."""
        axis = self.slot.layout.channel_axis
        for kind, seed in self.seeds.items():
            found = torch.zeros(self.slot.channels, dtype=torch.float64)
            for (h, args, kwargs), gradient in zip(self.seen, gradients, strict=True):
                if gradient is not None:
                    product = (gradient * seed(h, args, kwargs)[0]).movedim(axis, -1).flatten(0, -2)
                    found += product.sum(0, dtype=torch.float64).cpu()
            self.gradients[kind].add(found)
        self.seen.clear()


def _measure(places: list[_Place], loss: Tensor) -> None:
    """Take a minibatch in, by its loss."""
    if loss.numel() != 1:
        raise SignalError(
            f"loss returned {tuple(loss.shape)}; expected the mean loss of the batch, a tensor of one number"
        )
    if not loss.requires_grad:
        raise SignalError("the loss does not depend on any slot: is it computed without gradients?")
    activations = [h for place in places for h, _, _ in place.seen]
    gradients = iter(torch.autograd.grad(loss, activations, allow_unused=True))
    for place in places:
        place.take([next(gradients) for _ in place.seen])
