"""One row of the table of architectures: how a model is built, and where it grows."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from esper.kasmina.probing import ExampleInput

Build = Callable[[], tuple[nn.Module, ExampleInput]]


@dataclass(frozen=True)
class Case:
    """A model of somebody else's."""

    package: str
    """What must be importable to build it."""
    build: Build
    slots: list[str] = field(default_factory=list)
    """Where it grows; by default two of its blocks, chosen by a rule."""
    causal: bool = False
    layout: str | None = None
    refused: bool = False
    """Refusing it, with a clear message, is what is expected."""
    compiled: bool = False
    note: str = ""


def case(package: str, name: str, build: Build, **more: object) -> tuple[str, Case]:
    """A row named after its package and its class."""
    return f"{package} {name}", Case(package, build, **more)  # type: ignore[arg-type]
