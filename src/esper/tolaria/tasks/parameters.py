"""What an instance of a task may choose."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

Parameter = int | float | str

_KINDS: Mapping[str, type[int] | type[float] | type[str]] = {"int": int, "float": float, "str": str}


class ParameterError(ValueError):
    """An instance parameter is unknown, missing, or not what its task allows."""


_LARGEST = 2**63
"""No parameter is as large: whole numbers are rng seeds and counts of 64 bits."""
_LONGEST = 200
"""Characters of a text that an error repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One parameter of a task: what it may be and what it does."""

    kind: Literal["int", "float", "str"]
    doc: str
    """One line."""
    default: Parameter | None = None
    """None: it must be given."""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    is_path: bool = False
    """Names a file: data loaded from it are read again when the file changes."""

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"ParameterSpec.kind must be one of {', '.join(_KINDS)}, not {self.kind!r}")
        if self.default is not None:
            self.check("default", self.default)

    @property
    def allowed(self) -> str:
        """In words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.is_path:
            return "the path of a file"
        noun = {"int": "a whole number", "float": "a number", "str": "a text that is not empty"}[self.kind]
        if self.low is not None and self.high is not None:
            return f"{noun} from {self.low:g} to {self.high:g}"
        return noun if self.low is None else f"{noun} of at least {self.low:g}"

    def check(self, name: str, value: Parameter) -> Parameter:
        """The value in its canonical type, or an error that names the field, the value and what is allowed."""
        kind = _KINDS[self.kind]
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            with suppress(OverflowError):  # too large for a float: refused below
                value = float(value)
        if type(value) is not kind:
            raise ParameterError(f"{name} must be {self.allowed}, not {value!r}")
        if isinstance(value, str):
            wrong = (bool(self.choices) and value not in self.choices) or not value
        else:
            below = self.low is not None and value < self.low
            above = self.high is not None and value > self.high
            wrong = below or above or not abs(value) < _LARGEST  # NaN too
        if wrong:
            raise ParameterError(f"{name} must be {self.allowed}, not {value!r}")
        return value + 0.0 if isinstance(value, float) else value  # -0.0 becomes 0.0: one value, one text

    def parse(self, name: str, text: str) -> Parameter:
        """The value of a text, checked."""
        try:
            return self.check(name, _KINDS[self.kind](text))
        except ParameterError:
            raise
        except ValueError:
            raise ParameterError(f"{name} must be {self.allowed}, not {text!r}") from None


def shown(text: str) -> str:
    """A text in quotes, for an error; a long one ends in dots."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def parse_parameters(text: str, specs: Mapping[str, ParameterSpec]) -> list[tuple[str, Parameter]]:
    """The parameters that `name:parameter=value,parameter=value` gives, each checked, in the order of the text."""
    name, colon, rest = text.partition(":")
    if colon and not rest:
        raise ParameterError(f"{shown(text)} ends after the colon: write {name} or {name}:parameter=value")
    chosen: list[tuple[str, Parameter]] = []
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ParameterError(f"{shown(part)} in {shown(text)} must be parameter=value")
        require_known(name, specs, {key: value})
        chosen.append((key, specs[key].parse(f"{name}.{key}", unquote(value))))
    return chosen


def complete(
    owner: str, specs: Mapping[str, ParameterSpec], given: Mapping[str, Parameter]
) -> dict[str, Parameter]:
    """The given parameters checked, the others at their defaults, in the order of the specs."""
    require_known(owner, specs, given)
    chosen = {}
    for name, spec in specs.items():
        value = given.get(name, spec.default)
        if value is None:
            raise ParameterError(f"task {owner!r} needs {name} ({spec.doc}): write {owner}:{name}=...")
        chosen[name] = spec.check(f"{owner}.{name}", value)
    return chosen


def require_known(owner: str, specs: Mapping[str, ParameterSpec], names: Mapping[str, object]) -> None:
    """Raise ParameterError for a name that the task `owner` has no parameter of."""
    unknown = [name for name in names if name not in specs]
    if unknown:
        has = "has " + ", ".join(specs) if specs else "has none"
        raise ParameterError(f"task {owner!r} has no parameter {unknown[0]!r}; it {has}")
