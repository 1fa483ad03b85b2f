"""Seeds in the host's module tree: where each sits, and the host without them.

A seed is part of the host while it grows there, so that whatever walks the tree (`state_dict`, `parameters`, `to`,
`deepcopy`, an averaged copy) meets it. Containers run or count their children, and so may any module that has some;
one without children never looks at them. So a seed sits at such a leaf, under a reserved name. A backward pass that
is written by hand may ask for the gradient of every parameter of the modules it runs: a seed that it does not run
sits outside.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import fx, nn

SEED_NAME = "esper_seed"
"""How the names of seeds begin in the host's tree; two at one leaf are `esper_seed` and `esper_seed_2`."""
_NO_SEATS = (
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict),
    *(
        fx.GraphModule,
        torch.jit.ScriptModule,
    ),  # copied without what their graph does not name; closed to children
)


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one slot's seed in the host's tree."""

    leaf: nn.Module
    name: str
    """Of the seed as a child of the leaf."""
    path: str
    """Of the seed in the host, as keys of its `state_dict` begin."""
    export_leaf: nn.Module
    """Where an export holds the seed: a leaf without weights if there is one, since tools replace those with some."""

    def occupant(self) -> nn.Module | None:
        """The module that sits here."""
        return self.leaf._modules.get(self.name)

    def put(self, seed: nn.Module | None) -> None:
        """Seat a seed in place of the one before; None leaves the seat empty.

        Seeds at one leaf stay in the order of their names, whichever was seated first: averages pair the parameters
        of two models by order.
        """
        children = self.leaf._modules
        children.pop(self.name, None)
        if seed is not None:
            self.leaf.add_module(self.name, seed)
        for name in sorted(filter(is_seed_name, children)):
            children[name] = children.pop(name)


def is_seed_name(name: str) -> bool:
    """Whether a child of this name is a seed."""
    return name.startswith(SEED_NAME)


def names_a_seed(key: str) -> bool:
    """Whether a key of a state dict belongs to a seed."""
    return any(is_seed_name(part) for part in key.split("."))


def find_seats(host: nn.Module, sealed: Mapping[str, AbstractSet[nn.Module]]) -> dict[str, Seat | None]:
    """Slot -> its seat: the last leaf in the slot's submodule, or else in the nearest module around it.

    A leaf that the host holds in one place only goes first: in several, the seed's keys would show several times.
    A leaf in a module that is sealed for the slot is taken where there is no other.
    None where there is no leaf that a copy of the host would hold with its seed.
    """
    paths: dict[int, list[str]] = {}
    for path, module in host.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    seats: dict[str, Seat | None] = {}
    taken: set[tuple[int, str]] = set()

    def is_single(leaf: nn.Module) -> bool:
        return len(paths[id(leaf)]) == 1

    def is_single_and_bare(leaf: nn.Module) -> tuple[bool, bool]:
        return is_single(leaf), next(leaf.parameters(), None) is None

    for slot, closed in sealed.items():
        leaf = _leaf_for(host, slot, closed, is_single)
        export_leaf = _leaf_for(host, slot, closed, is_single_and_bare)
        if leaf is None or export_leaf is None:
            seats[slot] = None
            continue
        name, count = SEED_NAME, 1
        while (id(leaf), name) in taken:
            count += 1
            name = f"{SEED_NAME}_{count}"
        taken.add((id(leaf), name))
        seats[slot] = Seat(leaf, name, f"{paths[id(leaf)][0]}.{name}".lstrip("."), export_leaf)
    return seats


def _leaf_for(
    host: nn.Module,
    slot: str,
    sealed: AbstractSet[nn.Module],
    rank: Callable[[nn.Module], bool | tuple[bool, bool]],
) -> nn.Module | None:
    """The last of the leaves that rank highest."""
    for closed in (sealed, frozenset[nn.Module]()):
        for around in enclosing(host, slot):
            best_last = sorted(_leaves(around, closed), key=rank)
            chosen = next(filter(keeps_children, reversed(best_last)), None)
            if chosen is not None:
                return chosen
    return None


def keeps_children(module: nn.Module) -> bool:
    """Whether a copy of a module has the children and hooks that the module was given after it was made.

    Some write down no more than what they were made from, as the layers of einops do: a seed there would be lost.
    """
    kind, ways = type(module), ("__getstate__", "__reduce__", "__reduce_ex__")
    if hasattr(kind, "__deepcopy__") or all(getattr(kind, way) is getattr(nn.Module, way) for way in ways):
        return True
    module.add_module(SEED_NAME, nn.Module())
    try:
        return SEED_NAME in copy.copy(module)._modules
    except RuntimeError:  # it refuses to be copied, and so loses nothing
        return True
    finally:
        del module._modules[SEED_NAME]


def enclosing(host: nn.Module, name: str) -> Iterator[nn.Module]:
    """The submodule of this name, then every module around it, up to the host."""
    parts = name.split(".")
    for depth in range(len(parts), -1, -1):
        yield host.get_submodule(".".join(parts[:depth]))


def _leaves(module: nn.Module, sealed: AbstractSet[nn.Module]) -> Iterator[nn.Module]:
    # What makes a weight of another one is part of its layer, which takes it off again.
    children = [child for name, child in bare_children(module) if name != "parametrizations"]
    if not children and not isinstance(module, _NO_SEATS):
        yield module
    for child in children:
        if child not in sealed:
            yield from _leaves(child, sealed)


# The host alone


def bare_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The children that are no seeds, with their names."""
    for name, child in module.named_children():
        if not is_seed_name(name):
            yield name, child


def bare_modules(module: nn.Module) -> Iterator[nn.Module]:
    """The module and everything in it, in order and once each, but for seeds."""
    known: set[int] = set()

    def walk(part: nn.Module) -> Iterator[nn.Module]:
        known.add(id(part))
        yield part
        for name, child in part._modules.items():
            if child is not None and id(child) not in known and not is_seed_name(name):
                yield from walk(child)

    return walk(module)


def bare_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """As `parameters()`, but for those of seeds."""
    known: set[int] = set()
    for part in bare_modules(module):
        for parameter in part._parameters.values():
            if parameter is not None and id(parameter) not in known:
                known.add(id(parameter))
                yield parameter


def is_frozen(host: nn.Module, slots: Sequence[str]) -> bool:
    """Whether most of the host's own parameters do not require gradients, and none of those up to the last slot.

    Submodules count in the order in which the host registered them.
    """
    own = [(name, each) for name, each in host.named_parameters() if not names_a_seed(name)]
    learning = sum(parameter.numel() for _, parameter in own if parameter.requires_grad)
    if 2 * learning >= sum(parameter.numel() for _, parameter in own):
        return False
    names = (name for name, _ in host.named_modules(remove_duplicate=False))  # all names of shared ones
    modules = [name for name in names if not names_a_seed(name)]
    inside = tuple(f"{slot}." for slot in slots)
    last = max(place for place, name in enumerate(modules) if name in slots or name.startswith(inside))
    owners = {name.rpartition(".")[0] for name, parameter in own if parameter.requires_grad}
    return all(modules.index(owner) > last for owner in owners)
