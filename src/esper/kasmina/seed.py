"""A seed: a blueprint's body behind a zero-initialised scale, and how it is born."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from esper.kasmina.blueprints import Blueprint, Site
from esper.kasmina.blueprints.parts import pointwise
from esper.kasmina.composition import compose_delta
from esper.kasmina.errors import BlueprintError
from esper.kasmina.outputs import main_tensor
from esper.leyline import Composition, Layout


class Seed(nn.Module):
    """delta(h): what a seed would add to the host's activation at alpha 1.

    The scale is the only zero in the chain, so a newborn seed changes nothing and yet learns from its first
    step: the scale gets a gradient at once, everything behind it as soon as the scale has moved.
    """

    alpha: Tensor

    def __init__(self, blueprint: Blueprint, site: Site, composition: Composition) -> None:
        super().__init__()
        self.blueprint_name = blueprint.name
        self.composition = composition
        self.reads_input = blueprint.reads_input
        self.body = blueprint.build(site)
        self.scale = nn.Parameter(torch.zeros(site.channels))
        self.gate = pointwise(site, site.channels, 1) if composition is Composition.GATE else None
        # A tensor, so that compiled and captured programs follow it; the slot keeps the same number as a float.
        self.register_buffer("alpha", torch.zeros(()), persistent=False)
        # Behind the batch axis, channels come first or, for tokens, last.
        self._channels_last = site.layout is Layout.TOKENS

    def forward(self, h: Tensor, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
        """delta in h's dtype. A body that reads the submodule's input is given `args` and `kwargs`."""
        if not torch.is_autocast_enabled(h.device.type):
            h = h.to(self.scale.dtype)
        produced: object = self.body(*args, **kwargs) if self.reads_input else self.body(h)
        d = main_tensor(produced)
        if d is None or d.shape != h.shape:
            found = "no tensor" if d is None else f"shape {tuple(d.shape)}"
            raise BlueprintError(
                f"blueprint {self.blueprint_name!r} gave {found} for an activation of shape {tuple(h.shape)}; "
                "its module must keep the shape"
            )
        d = d * (self.scale if self._channels_last else self.scale.view(-1, *([1] * (h.ndim - 2))))
        gate: Tensor | None = None if self.gate is None else self.gate(h)
        return compose_delta(self.composition, h, d, gate)

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


@contextmanager
def birth_randomness(growth_seed: int, slot: str, birth: int) -> Iterator[None]:
    """Randomness that belongs to one birth; nobody else's is moved.

    Layers draw their weights from torch's CPU generator, so seeds are built on the CPU and it is put back.
    """
    digest = hashlib.blake2b(f"{growth_seed}/{slot}/{birth}".encode(), digest_size=8).digest()
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(int.from_bytes(digest, "little") >> 1)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_rng_state(before)


def bear_seed(
    blueprint: Blueprint,
    site: Site,
    composition: Composition,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Seed:
    """Build, check and place a seed. Call it inside `birth_randomness`."""
    seed = Seed(blueprint, site, composition)
    for part in seed.modules():
        if isinstance(part, _BatchNorm | _DropoutNd):
            raise BlueprintError(
                f"blueprint {blueprint.name!r} contains {type(part).__name__}: a seed must not move the host's "
                "randomness or mix samples; use a norm over channels and no dropout"
            )
    if not blueprint.reads_input and site.positions is not None:
        shape = (
            (site.channels, *site.positions) if site.channel_axis == 1 else (*site.positions, site.channels)
        )
        with torch.no_grad():
            seed(torch.zeros(2, *shape), (), {})
    return seed.to(device=device, dtype=dtype)
