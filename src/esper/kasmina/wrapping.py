"""`esper.wrap`: from any nn.Module, and names or patterns of its submodules, to a growing model."""

import difflib
import math
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real
from typing import TypedDict

import torch
from torch import nn

from esper.kasmina.axes import WrapError, read_layout
from esper.kasmina.blueprints import Blueprint, Site, all_blueprints
from esper.kasmina.blueprints.catalogue import bare_copy
from esper.kasmina.blueprints.registry import BlueprintError
from esper.kasmina.model import GrowingModel
from esper.kasmina.probing import ExampleInput, Sighting, batch_size, probe
from esper.kasmina.replicas import Replicas, is_sharded, recognise
from esper.kasmina.slot import IsolationPenalty, Slot
from esper.kasmina.stage_machine import GrowthRules
from esper.kasmina.tree import Seat, bare_parameters, enclosing, find_seats, keeps_children
from esper.leyline import EventSink, Layout


def resolve_slots(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Name -> submodule for every pattern.

    `*` stays inside one part of a dotted name (`layer*` is layer1 and layer2, not layer1.0); `**` crosses dots.
    """
    if isinstance(patterns, str):
        raise WrapError(
            f"slots must be a list of names, not the string {patterns!r}: write slots=[{patterns!r}]"
        )
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise WrapError(f"slots must be names, that is strings, not {patterns!r}")
    if not patterns:
        some = (
            ", ".join(name for name, _ in model.named_modules() if name)[:300]
            or "(the model has no submodules)"
        )
        raise WrapError(f"slots is empty: name at least one submodule, for instance one of {some}")
    twice = [pattern for place, pattern in enumerate(patterns) if pattern in patterns[:place]]
    if twice:
        raise WrapError(f"slots has {twice[0]!r} twice: name it once; a submodule can hold one slot")
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        parts = pattern.split(".")
        names = [name for name in modules if _matches(parts, name.split("."))]
        if not names:
            raise WrapError(_unknown(pattern, list(modules)))
        if pattern not in modules:  # a pattern may meet one module under two names; its first will do
            known = {id(module) for module in found.values()}
            firsts = {id(modules[name]): name for name in reversed(names)}
            names = [name for name in firsts.values() if id(modules[name]) not in known]
        found.update({name: modules[name] for name in names})
    by_identity: dict[int, str] = {}
    for name, module in found.items():
        twin = by_identity.setdefault(id(module), name)
        if twin != name:
            raise WrapError(f"slots {twin!r} and {name!r} are one and the same submodule: name it once")
    return found


def _matches(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Part by part; a part `**` stands for any number of parts."""
    if not pattern:
        return not name
    head, *rest = pattern
    if head == "**":
        return any(_matches(rest, name[skipped:]) for skipped in range(len(name) + 1))
    return bool(name) and fnmatchcase(name[0], head) and _matches(rest, name[1:])


def _unknown(pattern: str, names: list[str]) -> str:
    near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.5)
    last = pattern.split(".")[-1]
    near += [name for name in names if last and last in name.split(".") and name not in near][: 5 - len(near)]
    hint = "the model has " + ", ".join(names[:12])
    if near:
        others = f" Other near matches: {', '.join(near[1:])}" if near[1:] else ""
        hint = f"did you mean {near[0]!r}?{others}"
    return f"no submodule matches slot {pattern!r}; {hint}"


class WrapOptions(TypedDict, total=False):
    """The options of `wrap`, for callers that pass them on."""

    layout: Layout | str | Mapping[str, Layout | str] | None
    causal: bool
    blueprints: Sequence[str] | None
    rules: GrowthRules | None
    isolation_penalty: float
    seed: int
    events: EventSink | None


def wrap(
    model: nn.Module,
    slots: Sequence[str],
    example_input: ExampleInput,
    *,
    layout: Layout | str | Mapping[str, Layout | str] | None = None,
    causal: bool = False,
    blueprints: Sequence[str] | None = None,
    rules: GrowthRules | None = None,
    isolation_penalty: float = 1.0,
    seed: int = 0,
    events: EventSink | None = None,
) -> GrowingModel:
    """Wrap a model so that it can grow behind the named submodules.

        model = esper.wrap(net, slots=["layer*"], example_input=torch.randn(2, 3, 32, 32))
        model.germinate("layer2", "conv_light")

    The model is not copied: it gets one permanent hook per slot, and a forward through the wrapper is a forward
    through it. Wrap first, then `torch.compile` the result. A copy of a wrapped model (`copy.deepcopy(net)`, the
    module of an average) is wrapped at the same slots, with the seeds it came with.
    A module in `DistributedDataParallel`, or after `fully_shard`, grows in all its processes alike.

    slots              submodule names or patterns; `*` stays within one part of a dotted name, `**` crosses dots
    example_input      a tensor, a tuple of arguments or a dict of keyword arguments, batch first; it is run
                       once, in eval mode, to see what passes through each slot
    layout             what the axes mean where the submodule's type does not show it: one for all, or by slot name
    causal             offer only seeds that cannot see later positions (language models)
    blueprints         names or patterns of the blueprints to offer; all that serve the slot by default
    rules              waiting times and limits of a seed's life
    isolation_penalty  weight of the penalty that keeps a seed in TRAINING from running away
    seed               of the randomness that new seeds' weights are drawn from; torch's global one is untouched
    events             where events are emitted
    """
    if not isinstance(model, nn.Module):
        raise WrapError(f"model must be an nn.Module, not {type(model).__name__}")
    model, replicas = recognise(model)
    if isinstance(model, GrowingModel):
        raise WrapError("the model is a GrowingModel already; its slots are model.slots")
    if not isinstance(causal, bool):
        raise WrapError(f"causal is {causal!r}; expected True or False")
    if not isinstance(isolation_penalty, Real) or not 0 <= float(isolation_penalty) < math.inf:
        raise WrapError(f"isolation_penalty is {isolation_penalty!r}; expected a number >= 0")
    if rules is not None and not isinstance(rules, GrowthRules):
        raise WrapError(f"rules must be a GrowthRules, not {rules!r}")
    if not isinstance(seed, int):
        raise WrapError(f"seed must be an integer, not {seed!r}")
    _refuse_unhookable(model, "the model")
    found = resolve_slots(model, slots)
    for name, module in found.items():
        _refuse_way(model, name, module)
    batch_size(example_input)  # refuses an example without samples
    sightings = probe(model, found, example_input)
    replicas.rest()
    _refuse_silent(found, sightings)
    copied = copied_slots(model)
    if copied:
        _refuse_other_slots(copied, found, blueprints, layout)
        made = [copied[name] for name in sightings]
        penalty = _adopt_copied(made, rules, isolation_penalty, replicas)
    else:
        penalty = IsolationPenalty(isolation_penalty)
        offered = _select_blueprints(blueprints)
        sites = _sites(found, sightings, layout, causal)
        serving = _serving(sites, offered)
        seats = _seats(model, {name: sightings[name].sealed for name in found})
        made = [
            Slot(
                name,
                sites[name],
                seats[name],
                serving[name],
                rules or GrowthRules(),
                penalty,
                like=_like(model, name),
                dtype=seen.dtype,
                device=seen.device,
            )
            for name, seen in sightings.items()
        ]
    return GrowingModel(model, made, penalty=penalty, growth_seed=seed, events=events, replicas=replicas)


def _adopt_copied(
    slots: Sequence[Slot], rules: GrowthRules | None, isolation_penalty: float, replicas: Replicas
) -> IsolationPenalty:
    """Take over the slots that a copied model came with; returns the penalty that they share."""
    for slot in slots:
        slot.life.rules = rules or slot.life.rules
        slot.penalty.weight = isolation_penalty
    if replicas.size > 1 and any(slot.seed is not None for slot in slots):
        raise WrapError(
            "the model holds seeds that its wrapper for several processes took for parameters of the host: "
            "distribute the network as it was built, wrap it, and load what was saved"
        )
    return slots[0].penalty


def _sites(
    found: Mapping[str, nn.Module],
    sightings: Mapping[str, Sighting],
    layout: Layout | str | Mapping[str, Layout | str] | None,
    causal: bool,
) -> dict[str, Site]:
    """What each slot is like, as far as its seeds must know."""
    layouts = _asked_layouts(layout, found)
    return {
        name: _read_site(name, found[name], seen, layouts.get(name), causal)
        for name, seen in sightings.items()
    }


def _serving(sites: Mapping[str, Site], offered: Sequence[Blueprint]) -> dict[str, tuple[Blueprint, ...]]:
    """The blueprints that each slot is offered; raises where there is none."""
    serving = {name: tuple(b for b in offered if b.serves(site)) for name, site in sites.items()}
    for name in (name for name, some in serving.items() if not some):
        raise WrapError(
            f"no blueprint serves slot {name!r} (layout {sites[name].layout}): nothing could grow there"
        )
    return serving


def _seats(model: nn.Module, sealed: Mapping[str, frozenset[nn.Module]]) -> dict[str, Seat]:
    """Where the seed of each slot will sit in the model's tree."""
    seats = {}
    for name, seat in find_seats(model, sealed).items():
        if seat is None or hasattr(seat.leaf, seat.name):
            problem = "holds no module without children" if seat is None else f"has a {seat.path} of its own"
            raise WrapError(f"slot {name!r} has no place for a seed in the module tree: the model {problem}")
        seats[name] = seat
    return seats


def _like(model: nn.Module, name: str) -> nn.Module:
    """The module whose parameters show where a seed's belong: the slot's, or the nearest around that has some."""
    around = enclosing(model, name)
    return next((m for m in around if any(p.is_floating_point() for p in bare_parameters(m))), model)


def _refuse_unhookable(place: nn.Module, what: str) -> None:
    """Modules whose hooks would be ignored or misplaced."""
    # Importing dynamo takes a second, and without it nothing has been compiled.
    if "torch._dynamo" in sys.modules and (
        isinstance(place, torch._dynamo.OptimizedModule) or place._compiled_call_impl is not None
    ):
        raise WrapError(
            f"{what} is compiled by torch.compile, which would ignore the slots: give the plain model, and compile "
            "what comes of it, torch.compile(grower.model) or torch.compile(esper.wrap(...))"
        )
    if isinstance(place, torch.jit.ScriptModule):
        raise WrapError(f"{what} is a TorchScript module, which takes no hooks: wrap the original nn.Module")
    if isinstance(place, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise WrapError(f"{what} is a {type(place).__name__}: wrap its .module first")


def _refuse_way(model: nn.Module, name: str, module: nn.Module) -> None:
    """The same for everything on the way from the root to a slot."""
    parts = name.split(".")
    for depth in range(len(parts) + 1):
        path = ".".join(parts[:depth])
        place = model.get_submodule(path)
        _refuse_unhookable(place, repr(path))
        if isinstance(place, nn.TransformerEncoder) and place is not module and place.use_nested_tensor:
            raise WrapError(
                f"slot {name!r} lies in an nn.TransformerEncoder that packs padded batches into nested tensors, "
                "which seeds cannot read: build it with enable_nested_tensor=False, or set use_nested_tensor = False "
                f"on {path} of this one"
            )
    if not keeps_children(module):
        raise WrapError(
            f"slot {name!r} is a {type(module).__name__}, whose copies and pickles hold no more than what it was "
            "made from and would lose the seed: name the submodule around it, or the one before it"
        )
    slot = slot_behind(module)
    if slot is not None and slot.owner is not None and slot.owner() is not None:
        raise WrapError(
            f"slot {name!r} is one of another Grower or GrowingModel: go on with that one, take it off this model "
            "(grower.model.unwrap(), model.unwrap()), or begin with a fresh model, such as what finish() returned"
        )


def slot_behind(module: nn.Module) -> Slot | None:
    """The slot that hooks this module."""
    hooked = (getattr(hook, "__self__", None) for hook in module._forward_hooks.values())
    return next((slot for slot in hooked if isinstance(slot, Slot)), None)


def copied_slots(model: nn.Module) -> dict[str, Slot]:
    """Name -> the slot that a copy of a wrapped model came with."""
    slots = (slot_behind(module) for module in model.modules())
    return {slot.name: slot for slot in slots if slot is not None}


def _refuse_other_slots(
    copied: Mapping[str, Slot], found: Mapping[str, nn.Module], blueprints: object, layout: object
) -> None:
    """A copy of a wrapped model has its slots already, as they were made."""
    if set(copied) != set(found):
        raise WrapError(
            f"the model is a copy of one that was wrapped at {', '.join(copied)}: name these slots, not "
            f"{', '.join(found)}"
        )
    if blueprints is not None or layout is not None:
        raise WrapError(
            "the model is a copy of a wrapped one, whose blueprints and layout it keeps: leave both out"
        )


def _refuse_silent(found: Mapping[str, nn.Module], sightings: Mapping[str, Sighting]) -> None:
    for name, module in found.items():
        if name not in sightings:
            members = [f"{name}.{child}" for child, _ in module.named_children()]
            container = isinstance(module, nn.ModuleList | nn.ModuleDict)
            hint = f"; it is a container, name its members: {', '.join(members[:6])}" if container else ""
            raise WrapError(
                f"slot {name!r} never fired: no forward of it was called for example_input, so nothing would ever "
                f"grow there{hint}"
            )
        if sightings[name].unusable is not None:
            raise WrapError(f"slot {name!r} cannot grow: {sightings[name].unusable}")


def _asked_layouts(
    layout: Layout | str | Mapping[str, Layout | str] | None, found: Mapping[str, nn.Module]
) -> dict[str, Layout]:
    if layout is None:
        return {}
    by_name = dict(layout) if isinstance(layout, Mapping) else dict.fromkeys(found, layout)
    unknown = sorted(set(by_name) - set(found))
    if unknown:
        raise WrapError(f"layout names {', '.join(unknown)}, not among the slots {', '.join(found)}")
    try:
        return {name: Layout(asked) for name, asked in by_name.items()}
    except ValueError as error:
        raise WrapError(f"layout: {error}; choose from {', '.join(Layout)}") from None


def _read_site(name: str, module: nn.Module, seen: Sighting, asked: Layout | None, causal: bool) -> Site:
    layout = read_layout(
        name,
        seen.shapes[0],
        asked,
        channels=seen.channels,
        batch=seen.batch,
        samples_in_order=seen.samples_in_order,
    )
    widths = {(len(shape), shape[layout.channel_axis]) for shape in seen.shapes}
    if len(widths) > 1:
        raise WrapError(
            f"slot {name!r} is called {len(seen.shapes)} times in one forward with different shapes "
            f"({', '.join(str(tuple(shape)) for shape in seen.shapes)}): one seed cannot serve them all"
        )
    positions = {
        tuple(
            size
            for axis, size in enumerate(shape)
            if axis not in (layout.batch_axis, layout.channel_axis % len(shape))
        )
        for shape in seen.shapes
    }
    known = len(positions) == 1 and (layout is not Layout.ROWS or positions == {()})
    return Site(
        layout=layout,
        channels=widths.pop()[1],
        positions=positions.pop() if known else None,
        causal=causal,
        module=module,
        copyable=seen.plain_arguments and _can_copy(module),
        form=seen.form,
        positional=seen.positional,
        keywords=seen.keywords,
        samples_in_order=seen.samples_in_order and layout.batch_axis in seen.batch,
    )


def _can_copy(module: nn.Module) -> bool:
    if not any(parameter.numel() for parameter in module.parameters()):
        return False
    # A hook may make the weights, as weight_norm does, and FSDP2 from shards.
    if any(is_sharded(parameter) for parameter in module.parameters()):
        return False
    if any(part._forward_pre_hooks for part in module.modules()):
        return False
    try:
        bare_copy(module, torch.device("meta"))
    except Exception:  # whatever a foreign module raises when it cannot be copied
        return False
    return True


def _select_blueprints(patterns: Sequence[str] | None) -> tuple[Blueprint, ...]:
    known = all_blueprints()
    if patterns is None:
        return known
    if isinstance(patterns, str):
        raise BlueprintError(f"blueprints must be a list of names: write blueprints=[{patterns!r}]")
    for pattern in patterns:
        if not any(fnmatchcase(blueprint.name, pattern) for blueprint in known):
            names = ", ".join(blueprint.name for blueprint in known)
            raise BlueprintError(f"no blueprint matches {pattern!r}; registered: {names}")
    return tuple(b for b in known if any(fnmatchcase(b.name, pattern) for pattern in patterns))
