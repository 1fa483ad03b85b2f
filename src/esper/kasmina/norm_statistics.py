"""The running statistics of normalising layers: which there are, several sets of them kept, and new ones estimated.

For a shift of the inputs, statistics of the target in the place of those that a frozen host was trained with are a
large part of what can be gained, and cost no labels (Li et al. 2017, adaptive batch normalisation).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from esper.kasmina.model import untouched
from esper.kasmina.tree import bare_modules

SOURCE = "source"
"""The set that a host came with."""


def norm_statistics(host: nn.Module) -> dict[str, Tensor]:
    """Name in the host -> each running mean, running variance and count of batches: the live buffers."""
    names = {id(module): name for name, module in host.named_modules()}
    return {
        f"{names[id(part)]}.{name}".lstrip("."): buffer
        for part in bare_modules(host)
        if isinstance(part, _NormBase)
        for name, buffer in part.named_buffers(recurse=False)
    }


class KeptStatistics:
    """Sets of running statistics under names, of which the host uses one; "source" is the one it came with."""

    def __init__(self, host: nn.Module) -> None:
        self._host = host
        self._sets: dict[str, dict[str, Tensor]] = {}
        self.keep(SOURCE)

    @property
    def names(self) -> tuple[str, ...]:
        """The sets that are kept."""
        return tuple(self._sets)

    @property
    def in_use(self) -> str | None:
        """The set that the host has now; None where its statistics are none of those that are kept."""
        now = norm_statistics(self._host)
        return next(
            (
                name
                for name, kept in self._sets.items()
                if all(torch.equal(kept[key], value.cpu()) for key, value in now.items())
            ),
            None,
        )

    def keep(self, name: str) -> None:
        """Keep what the host has now under this name; what had the name before is forgotten."""
        now = norm_statistics(self._host)
        self._sets[name] = {key: value.detach().to("cpu", copy=True) for key, value in now.items()}

    @torch.no_grad()
    def use(self, name: str) -> None:
        """Give the host the statistics of this name."""
        if name not in self._sets:
            raise ValueError(f"no statistics are named {name!r}; kept: {', '.join(self._sets)}")
        for key, value in norm_statistics(self._host).items():
            value.copy_(self._sets[name][key])


@contextmanager
def estimating(host: nn.Module) -> Iterator[None]:
    """Forwards inside estimate the statistics of every BatchNorm anew; everything else is in evaluation mode.

    The mean is that of all samples and positions; the variance is the mean of the batches' (unbiased) variances, both
    weighted by how much a batch holds. Where no forward ran, or one failed, the statistics are as before.
    """
    layers = [
        part for part in bare_modules(host) if isinstance(part, _BatchNorm) and part.track_running_stats
    ]
    if not layers:
        raise ValueError(
            "the host has no BatchNorm layer with running statistics: there is nothing to estimate"
        )
    before = {name: buffer.clone() for name, buffer in norm_statistics(host).items()}
    momenta = [layer.momentum for layer in layers]
    seen = [0] * len(layers)  # values of a channel so far
    done = False

    def weigh(index: int, layer: _BatchNorm, given: Tensor) -> None:
        count = given.numel() // given.shape[1]
        seen[index] += count
        layer.momentum = count / seen[index]

    hooks = [
        layer.register_forward_pre_hook(lambda part, args, index=index: weigh(index, part, args[0]))
        for index, layer in enumerate(layers)
    ]
    try:
        with untouched(host), torch.no_grad():
            for layer in layers:
                layer.reset_running_stats()
                layer.training = True
            yield
        done = all(seen)
    finally:
        for hook, layer, momentum in zip(hooks, layers, momenta, strict=True):
            hook.remove()
            layer.momentum = momentum
        if not done:
            for name, buffer in norm_statistics(host).items():
                buffer.copy_(before[name])
    if not done:
        raise ValueError(
            "no samples reached some BatchNorm layer: give batches that go through all of the model"
        )
