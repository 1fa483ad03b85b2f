"""Blueprints and where they are registered; the site that a blueprint builds for, and the form of its outputs."""

import copy
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from esper.leyline import BlueprintKind, Layout
from esper.leyline.errors import EsperError

Kind = Literal["tensor", "tuple", "list", "named tuple", "mapping"]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Where the main tensor sits: the output itself, or a member of it, which may be a container in turn."""

    kind: Kind
    key: str | int | None = None
    """The member's key in a mapping, its field in a named tuple, its index otherwise."""
    member: "OutputForm | None" = None
    """The member's own form, if it is not the tensor."""

    def pick(self, output: Any) -> Any:
        """The main tensor of an output of this form; of an `fx.Proxy` the proxy of it."""
        if self.kind == "tensor":
            return output
        member = getattr(output, str(self.key)) if self.kind == "named tuple" else output[self.key]
        return member if self.member is None else self.member.pick(member)

    def put_back(self, output: Any, tensor: Any) -> Any:
        """`output`, or the `fx.Proxy` of one, with its main tensor replaced; the original is left as it was."""
        if self.kind == "tensor":
            return tensor
        if self.member is not None:
            held = getattr(output, str(self.key)) if self.kind == "named tuple" else output[self.key]
            tensor = self.member.put_back(held, tensor)
        if self.kind == "named tuple":
            return output._replace(**{str(self.key): tensor})
        if self.kind == "mapping":
            replaced = output.copy() if isinstance(output, fx.Proxy) else copy.copy(output)
            replaced.__setitem__(self.key, tensor)  # as a call, which a proxy records
            return replaced
        assert isinstance(self.key, int)
        grown: Any = (tensor,) if self.kind == "tuple" else [tensor]
        behind = grown + output[self.key + 1 :]
        return output[: self.key] + behind if self.key else behind

    def fits(self, output: object) -> bool:
        """Whether an output has a tensor where this form has it."""
        if self.kind == "tensor":
            return isinstance(output, Tensor)
        kind, members = _members(output)
        held = members.get(self.key)
        found = isinstance(held, Tensor) if self.member is None else self.member.fits(held)
        return kind == self.kind and found


PLAIN = OutputForm("tensor")


def output_forms(output: object) -> list[OutputForm]:
    """A form for each floating-point tensor in an output; members come before what is inside members."""
    if isinstance(output, Tensor):
        return [PLAIN] if output.is_floating_point() else []
    kind, members = _members(output)
    outer: list[OutputForm] = []
    inner: list[OutputForm] = []
    for key, member in members.items():
        for form in output_forms(member):
            if form is PLAIN:
                outer.append(OutputForm(kind, key))
            else:
                inner.append(OutputForm(kind, key, form))
    return outer + inner


def _members(output: object) -> tuple[Kind, dict[Any, object]]:
    """What a container holds, by key, and its kind; nothing for anything else."""
    if isinstance(output, MutableMapping):
        return "mapping", dict(output.items())
    if isinstance(output, tuple) and hasattr(output, "_replace"):
        return "named tuple", dict(zip(getattr(output, "_fields"), output, strict=True))  # noqa: B009
    if type(output) is tuple or type(output) is list:
        return "tuple" if isinstance(output, tuple) else "list", dict(enumerate(output))
    return "tuple", {}


def main_tensor(output: object) -> Tensor | None:
    """The output itself, or the first floating-point tensor in a tuple, a list or a mapping."""
    if isinstance(output, Tensor):
        return output
    forms = output_forms(output)
    tensor: Tensor | None = forms[0].pick(output) if forms else None
    return tensor


class BlueprintError(EsperError, ValueError):
    """A blueprint is unknown, does not serve the slot, or is badly made."""


@dataclass(frozen=True, slots=True)
class Site:
    """One slot as seen in the example forward."""

    layout: Layout
    channels: int
    positions: tuple[int, ...] | None
    """(height, width), (length,) or (); None when it varied between calls of the submodule, or is not known."""
    causal: bool = False
    """Outputs at a position must not depend on later positions."""
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    """The host's submodule whose output is grown."""
    copyable: bool = False
    """The submodule can be copied and fed the same arguments a second time."""
    form: OutputForm = PLAIN
    """Where in the submodule's output the activation sits."""
    positional: int = 1
    """Positional arguments the submodule is called with."""
    keywords: tuple[str, ...] = ()
    """Keyword arguments the submodule is called with."""
    samples_in_order: bool = True
    """Entry i of the batch axis is sample i of the input, or one of several of it that lie together."""

    @property
    def channel_axis(self) -> int:
        """The axis of the channels."""
        return self.layout.channel_axis

    @property
    def guard_axes(self) -> tuple[int, ...]:
        """What is judged finite or not together: a sample or a row; in a causal model a position of it."""
        if self.causal or self.layout is Layout.ROWS:
            return (self.channel_axis,)
        return tuple(axis for axis in range(len(self.layout.axes)) if axis != self.layout.batch_axis)

    def example(self, batch: int) -> Tensor | None:
        """An activation of zeros as the slot sees it; None where the positions are not known."""
        if self.positions is None:
            return None
        positions = iter(self.positions)
        sizes = {"batch": batch, "row": batch, "channel": self.channels}
        return torch.zeros([sizes[axis] if axis in sizes else next(positions) for axis in self.layout.axes])


Factory = Callable[[Site], nn.Module]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A kind of seed: how to build its body, and where that makes sense."""

    name: str
    kind: BlueprintKind
    layouts: frozenset[Layout]
    causal_layouts: frozenset[Layout]
    build: Factory
    fits: Callable[[Site], bool]
    reads_input: bool
    """The body is called with the submodule's arguments instead of its output."""

    def __deepcopy__(self, memo: dict[int, object]) -> "Blueprint":
        return self

    def __reduce__(self) -> tuple[Callable[[str], "Blueprint"], tuple[str]]:
        return find_blueprint, (self.name,)  # pickled by name: code is never stored

    def serves(self, site: Site) -> bool:
        """Whether a seed of this kind can grow at `site`."""
        layouts = self.causal_layouts if site.causal else self.layouts
        return site.layout in layouts and self.fits(site)

    def body_parameters(self, site: Site) -> int:
        """Parameters of a body built for `site`, counted without allocating one."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in self.construct(site).parameters())

    def construct(self, site: Site) -> nn.Module:
        """A body for `site`."""
        body = self.build(site)
        if not isinstance(body, nn.Module):
            raise BlueprintError(
                f"blueprint {self.name!r} must return an nn.Module, not {type(body).__name__}"
            )
        return body


_REGISTRY: dict[str, Blueprint] = {}


def blueprint(
    name: str,
    *,
    layouts: Iterable[Layout | str],
    kind: BlueprintKind = BlueprintKind.OTHER,
    causal: bool | Iterable[Layout | str] = False,
    fits: Callable[[Site], bool] = lambda _: True,
    reads_input: bool = False,
) -> Callable[[Factory], Factory]:
    """Register a factory `site -> nn.Module` under a stable name.

    The module maps the slot's output h to a tensor of the same shape. Esper adds the zero-initialised scale
    and the composition, so nothing in the module should be zero-initialised (two zeros in a row never learn),
    and it holds no dropout and no batch norm.

        @esper.blueprint("wide_mlp", layouts=["flat"])
        def wide_mlp(site):
            return nn.Sequential(nn.Linear(site.channels, 256), nn.GELU(), nn.Linear(256, site.channels))

    `causal` says where it cannot see later positions: True for all its layouts, or a list of them; look at
    `site.causal` when building. `fits` refuses further sites, for instance by `site.positions`.
    """
    served = _layouts(name, layouts)
    if not served:
        raise BlueprintError(f"blueprint {name!r}: layouts is empty; the layouts are {', '.join(Layout)}")
    causal_layouts = served if causal is True else _layouts(name, causal or ())

    def register(build: Factory) -> Factory:
        known = _REGISTRY.get(name)
        # Running a notebook cell again defines the same function again; that replaces it.
        if known is not None and _home(known.build) != _home(build):
            raise BlueprintError(f"a blueprint named {name!r} is registered already by {_home(known.build)}")
        _REGISTRY[name] = Blueprint(name, kind, served, causal_layouts & served, build, fits, reads_input)
        return build

    return register


def forget(name: str) -> None:
    """Take a blueprint out of the registry; models wrapped before keep it."""
    del _REGISTRY[name]


def find_blueprint(name: str) -> Blueprint:
    """The blueprint of this name; an unknown one is an error that lists the names."""
    if name not in _REGISTRY:
        raise BlueprintError(f"no blueprint is named {name!r}; registered: {', '.join(_REGISTRY)}")
    return _REGISTRY[name]


def all_blueprints() -> tuple[Blueprint, ...]:
    """Every registered blueprint, in order of registration."""
    return tuple(_REGISTRY.values())


def _layouts(name: str, layouts: Iterable[Layout | str]) -> frozenset[Layout]:
    if isinstance(layouts, str):
        raise BlueprintError(f"blueprint {name!r}: layouts must be a list, write layouts=[{layouts!r}]")
    try:
        return frozenset(Layout(layout) for layout in layouts)
    except ValueError as error:
        raise BlueprintError(f"blueprint {name!r}: {error}; the layouts are {', '.join(Layout)}") from None


def _home(build: Factory) -> str:
    return f"{build.__module__}.{build.__qualname__}"
