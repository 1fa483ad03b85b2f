"""The rules by which a model of somebody else's is built small and given an example.

Nothing here is fitted to one model: constructors and forwards are filled in by the names of their parameters, and the
first way in which a model runs by itself is the way it is tried.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

import torch
from torch import nn

from esper.kasmina.probing import ExampleInput

Make = Callable[[], nn.Module]
Given = Mapping[str, object]
Examples = Callable[[nn.Module], Iterator[ExampleInput]]


class NotByTheRules(Exception):
    """A constructor wants something that no rule names."""


@dataclass(frozen=True)
class Unit:
    """What is drawn: a family of models, or one class."""

    name: str
    makes: Callable[[Random], Iterable[Make]]
    """Ways to build it, in the order they are tried."""
    examples: Examples


def filled(function: Callable[..., object], given: Given) -> dict[str, object]:
    """Keyword arguments by the names of the parameters."""
    arguments = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name == "self":
            continue
        if parameter.name in given:
            arguments[parameter.name] = given[parameter.name]
        elif parameter.default is parameter.empty:
            raise NotByTheRules(f"no rule for the argument {parameter.name!r}")
    return arguments


def by_names(made: Callable[..., nn.Module], *givens: Given) -> Callable[[Random], Iterable[Make]]:
    """Ways to call a constructor: its parameters as in each of these tables."""
    return lambda _rng: [lambda given=given: made(**filled(made, given)) for given in givens]  # type: ignore[misc]


def tensors_of(*shapes: tuple[int, ...]) -> Examples:
    return lambda _host: (torch.randn(shape) for shape in shapes)


def named_inputs(table: Mapping[str, list[Callable[[], object]]]) -> Examples:
    """What a forward must be given, by name: the first choice of all of them, then the second of all, and so on."""

    def examples(host: nn.Module) -> Iterator[ExampleInput]:
        for choice in range(max(map(len, table.values()))):
            made = {name: makes[min(choice, len(makes) - 1)]() for name, makes in table.items()}
            required = {
                name: value
                for name, value in filled(host.forward, made).items()
                if inspect.signature(host.forward).parameters[name].default is inspect.Parameter.empty
            }
            yield required

    return examples


def classes(module: object, within: str) -> dict[str, type[nn.Module]]:
    """The modules that a package puts out, each once."""
    found: dict[int, tuple[str, type[nn.Module]]] = {}
    for name in sorted(dir(module)):
        made = getattr(module, name, None)
        if inspect.isclass(made) and issubclass(made, nn.Module) and made.__module__.startswith(within):
            found.setdefault(id(made), (made.__name__, made))
    return dict(found.values())


def families(names: Iterable[str], family_of: Callable[[str], str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(family_of(name), []).append(name)
    return grouped


def of_family(
    names: list[str], make: Callable[..., nn.Module], *options: Given
) -> Callable[[Random], Iterable[Make]]:
    """Some members of a family at random, each in all these ways."""

    def makes(rng: Random) -> Iterator[Make]:
        for name in rng.sample(names, min(len(names), 4)):
            for more in options:
                yield lambda name=name, more=more: make(name, **more)  # type: ignore[misc]

    return makes
