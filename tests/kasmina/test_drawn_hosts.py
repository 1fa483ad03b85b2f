"""Hosts made from drawn numbers: every kind takes every sort of sample, trains whole, and has slots to grow in."""

from itertools import product

import pytest
import torch
from torch import Tensor

from esper.kasmina import wrap
from esper.kasmina.hosts.drawn import DrawnHost, HostShape
from esper.leyline import Layout

SAMPLES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "vector": ((7,), None),
    "series": ((1, 40), None),
    "picture": ((3, 8, 8), None),
    "tokens": ((24,), 11),
}
LAYOUTS = {
    ("conv", "series"): Layout.SERIES,
    ("conv", "picture"): Layout.IMAGE,
    ("conv", "tokens"): Layout.SERIES,
}
CASES = [
    (kind, what)
    for kind, what in product(("mlp", "conv", "mixer", "attention"), SAMPLES)
    if (kind, what) != ("conv", "vector")
]


def example(what: str, batch: int) -> Tensor:
    sample, vocabulary = SAMPLES[what]
    generator = torch.Generator().manual_seed(0)
    if vocabulary is None:
        return torch.randn(batch, *sample, generator=generator)
    return torch.randint(vocabulary, (batch, *sample), generator=generator)


def host(kind: str, what: str, **changes: object) -> DrawnHost:
    sample, vocabulary = SAMPLES[what]
    settings: dict[str, object] = {"kind": kind, "width": 6, "depth": 3, **changes}
    return DrawnHost(HostShape(**settings), sample, 5, vocabulary=vocabulary)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "what", "norm"),
    [
        (kind, what, norm)
        for kind, what in CASES
        for norm in ("layer", "batch", "none")
        if norm != "batch" or kind in ("mlp", "conv")
    ],
)
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_every_kind_takes_every_sample_and_every_parameter_learns(
    kind: str, what: str, norm: str, pool: str
) -> None:
    network = host(kind, what, norm=norm, pool=pool)
    outputs = network(example(what, 13))
    assert outputs.shape == (13, 5)
    outputs.square().sum().backward()
    still = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()]
    # a norm behind a layer takes its bias away
    assert [name for name in still if not (norm != "none" and name.endswith(".bias"))] == []


@pytest.mark.parametrize(("kind", "what"), CASES)
@pytest.mark.parametrize("depth", [1, 8])
def test_every_block_can_hold_a_slot(kind: str, what: str, depth: int) -> None:
    model = wrap(host(kind, what, depth=depth), ["blocks.*"], example(what, 2))
    assert model.slot_config.slot_ids == tuple(f"blocks.{place}" for place in range(depth))
    tokens = Layout.TOKENS if kind in ("mixer", "attention") else Layout.FLAT
    for slot in model.slots.values():
        assert slot.site.layout is LAYOUTS.get((kind, what), tokens)
        assert slot.site.channels == 6


@pytest.mark.parametrize(("kind", "width"), [("conv", 24), ("attention", 24), ("mixer", 24)])
def test_as_many_positions_as_channels_are_not_mistaken(kind: str, width: int) -> None:
    model = wrap(host(kind, "tokens", width=width, depth=1), ["blocks.*"], example("tokens", 2))
    (slot,) = model.slots.values()
    assert slot.site.layout is (Layout.SERIES if kind == "conv" else Layout.TOKENS)


@pytest.mark.parametrize(
    ("kind", "what", "parameters"),
    [
        ("mlp", "vector", 7 * 6 + 6 + 3 * (6 * 6 + 6 + 12) + 35),
        ("conv", "series", 3 * 6 + 6 + 3 * (6 * 6 * 3 + 6 + 12) + 35),
        ("mixer", "tokens", 11 * 6 + 24 * 6 + 3 * (24 * 24 + 24 + 24 + 6 * 12 + 12 + 12 * 6 + 6) + 35),
        ("attention", "vector", 2 * 7 * 6 + 3 * (3 * 36 + 36 + 6 + 24 + 6 * 12 + 12 + 12 * 6 + 6) + 35),
    ],
)
def test_known_sizes(kind: str, what: str, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in host(kind, what).parameters()) == parameters


def test_convolutions_shrink_positions_twice() -> None:
    network, lengths = host("conv", "series", depth=5), []
    h = network.stem(example("series", 2))
    for block in network.blocks:
        h = block(h)
        lengths.append(h.shape[-1])
    assert lengths == [40, 20, 20, 10, 10]


def test_a_pool_of_maxima_is_not_one_of_means() -> None:
    torch.manual_seed(0)
    network = host("attention", "tokens", pool="max")
    inputs = example("tokens", 4)
    h = network.blocks(network.stem(inputs))
    assert torch.equal(network(inputs), network.head(h.amax(1)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "mixer", "norm": "batch"}, "norm must be layer or none for kind mixer"),
        ({"kind": "attention", "width": 7}, "width must be even for kind attention .*, not 7"),
        ({"kind": "conv", "kernel": 2}, "kernel must be odd, not 2"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HostShape(**{"kind": "mlp", "width": 6, "depth": 2, **changes})  # type: ignore[arg-type]


def test_a_vector_has_no_positions_to_convolve() -> None:
    with pytest.raises(ValueError, match="a vector has none"):
        host("conv", "vector")
