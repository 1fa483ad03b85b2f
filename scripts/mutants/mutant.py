"""One break of a rule, with the tests that must notice."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One break."""

    name: str
    """What is broken."""
    file: str
    """Under `src/esper`."""
    text: str
    """What stands there, exactly once."""
    replacement: str
    tests: tuple[str, ...]
    """As pytest takes them, under `tests`; one that fails is enough."""


def mutant(name: str, file: str, text: str, replacement: str, *tests: str) -> Mutant:
    """A row; its tests are named from the folder `tests` on."""
    return Mutant(name, file, text, replacement, tuple(f"tests/{test}" for test in tests))
