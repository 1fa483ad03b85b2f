"""How settings are checked: the ranges they may have, each with its words, and what is wrong in one line."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from esper.leyline import ALPHA_SPEEDS, ALPHA_TARGETS, HEAD_NAMES, TEMPOS, Curve, LifecycleOp, Style
from esper.leyline.errors import EsperError, nearest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Expected:
    """What an error says was expected."""

    text: str


def _holds(test: Callable[[T], bool]) -> AfterValidator:
    """Refuse a value that fails the test; None always passes."""

    def check(value: T | None) -> T | None:
        if value is not None and not test(value):
            raise ValueError(repr(value))  # pydantic cannot take half a character
        return value

    return AfterValidator(check)


def _matches(pattern: str) -> AfterValidator:
    def matches(text: str) -> bool:
        # "none" is how TOML, which has no null, writes None.
        return text != "none" and re.fullmatch(pattern, text) is not None

    return _holds(matches)


def _names_among(known: Collection[str]) -> AfterValidator:
    def are_known(table: dict[str, float]) -> bool:
        return set(table) <= set(known)

    return _holds(are_known)


def _one_of(choices: tuple[object, ...]) -> Expected:
    return Expected(f"one of {', '.join(str(choice) for choice in choices)}, or None")


MOST_HOSTS = 100_000
"""Hosts that may grow side by side: more are a slip, and would fill any memory."""
_BELOW = 2**63  # what numbers in files and tensors are held in

Count = Annotated[int, Field(ge=1, lt=_BELOW), Expected("a whole number >= 1")]
HostCount = Annotated[int, Field(ge=1, le=MOST_HOSTS), Expected(f"a whole number >= 1 and <= {MOST_HOSTS:,}")]
CountOrNone = Annotated[int | None, Field(ge=1, lt=_BELOW), Expected("a whole number >= 1, or None")]
CountOrZero = Annotated[int, Field(ge=0, lt=_BELOW), Expected("a whole number >= 0")]
CountOrZeroOrNone = Annotated[int | None, Field(ge=0, lt=_BELOW), Expected("a whole number >= 0, or None")]
Positive = Annotated[float, Field(gt=0), Expected("a number > 0")]
PositiveOrNone = Annotated[float | None, Field(gt=0), Expected("a number > 0, or None")]
NotNegative = Annotated[float, Field(ge=0), Expected("a number >= 0")]
NotNegativeOrNone = Annotated[float | None, Field(ge=0), Expected("a number >= 0, or None")]
AtLeastOne = Annotated[float, Field(ge=1), Expected("a number >= 1")]
AtMostOne = Annotated[float, Field(le=1), Expected("a number <= 1")]
OverOne = Annotated[float, Field(gt=1), Expected("a number > 1")]
UpToOne = Annotated[float, Field(gt=0, le=1), Expected("a number in (0, 1]")]
Expectile = Annotated[float, Field(ge=0.5, lt=1), Expected("a number in [0.5, 1)")]
UnderOne = Annotated[float, Field(ge=0, lt=1), Expected("a number in [0, 1)")]
Share = Annotated[float, Field(ge=0, le=1), Expected("a number in [0, 1]")]
Flag = Annotated[bool, Expected("True or False")]

Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$"), Expected("'cpu', 'cuda' or 'cuda:<number>'")]
CaseText = Annotated[
    str,
    Field(pattern=r"^\w+(:.+)?$"),
    Expected("a suite or a task instance, such as 'cpu' or 'mnist1d:noise=0.2'"),
]
Cluster = Annotated[
    str | None,
    _matches(r"local|auto|[^\s/]+:\d{1,5}"),
    Expected("'local', 'auto', HOST:PORT of a head node, or None"),
]
RunName = Annotated[
    str | None,
    _matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"),
    Expected("up to 100 letters, digits, '.', '_' and '-' that begin with a letter or digit, or None"),
]
WarmStart = Annotated[
    str | None,
    _matches(r"[\w-]+|.*/.*|.+\.safetensors"),
    Expected("the name of a rule or controller, a controller's folder, a .safetensors file, or None"),
]
Datasets = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(strict=False),  # files and flags give a list
    Expected("paths of data sets, runs or folders"),
]
Menu = Annotated[
    str | None,
    _matches(r"[\w-]+(,[\w-]+)*"),
    Expected("names of blueprints with commas between them, such as 'mixer,depthwise', or None"),
]
Directory = Annotated[Path, Field(strict=False), Expected("a path")]  # files and flags give a text

Coefficients = Annotated[dict[str, NotNegative], Expected("name -> a number >= 0")]
HeadCoefficients = Annotated[
    dict[str, NotNegative],
    _names_among(HEAD_NAMES),
    Expected(f"head -> a number >= 0, with heads among {', '.join(HEAD_NAMES)}"),
]
OpLogits = Annotated[
    dict[str, float],
    _names_among(LifecycleOp.__members__),
    Expected(f"operation -> a number, with operations among {', '.join(LifecycleOp.__members__)}"),
]
StyleOrNone = Annotated[Style | None, Field(strict=False), _one_of(tuple(Style))]
CurveOrNone = Annotated[Curve | None, Field(strict=False), _one_of(tuple(Curve))]
TempoOrNone = Annotated[int | None, _holds(TEMPOS.__contains__), _one_of(TEMPOS)]
AlphaTargetOrNone = Annotated[float | None, _holds(ALPHA_TARGETS.__contains__), _one_of(ALPHA_TARGETS)]
AlphaSpeedOrNone = Annotated[int | None, _holds(ALPHA_SPEEDS.__contains__), _one_of(ALPHA_SPEEDS)]

CHECKED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
"""How pydantic checks a dataclass of settings: no conversions, no unknown names. Docstrings are the flags' help."""


class ConfigError(EsperError, ValueError):
    """A setting that cannot be, or does not go with another."""


FEW = 20
"""Settings that an error lists."""


def unknown_setting(name: object, known: Iterable[str]) -> str:
    """The message for a setting that does not exist."""
    known = list(known)
    listed = f"; there are {', '.join(known)}" if len(known) <= FEW else "; `esper train --help` lists them"
    return f"there is no setting {name!r}{nearest(name, known) or listed}"


def explained(cls: type[T]) -> type[T]:
    """Make a pydantic dataclass raise `ConfigError` with one line, where pydantic's own error has several."""
    validate: Callable[..., None] = cls.__init__

    @wraps(validate)
    def initialise(self: T, *args: object, **settings: object) -> None:
        try:
            validate(self, *args, **settings)
        except ValidationError as error:
            fields: Mapping[str, FieldInfo] = cls.__pydantic_fields__  # type: ignore[attr-defined]
            raise ConfigError(_explain(error, fields)) from None

    cls.__init__ = initialise  # type: ignore[method-assign, assignment]
    # A class's own settings are listed before those it inherits, in files and in `esper train --help`.
    listed: dict[str, object] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    cls.__dataclass_fields__ = {name: listed[name] for name in {**cls.__annotations__, **listed}}  # type: ignore[attr-defined]
    return cls


def _explain(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """Every finding, separated by semicolons."""
    findings = []
    for finding in error.errors(include_url=False):
        place, given = finding["loc"], finding["input"]
        if finding["type"] == "unexpected_positional_argument":
            findings.append(f"{given!r} has no name; expected settings by name, such as suite={given!r}")
        elif not place:  # a combination of settings, explained where it is checked
            findings.append(str(finding["ctx"]["error"]))
        elif finding["type"] == "unexpected_keyword_argument":
            findings.append(unknown_setting(str(place[0]), fields))
        else:
            name = str(place[0]) + "".join(f"[{part!r}]" for part in place[1:])
            findings.append(f"{name} is {given!r}; expected {expected(fields[str(place[0])])}")
    return "; ".join(findings)


def expected(field: FieldInfo) -> str:
    """What a field may be, in words."""
    for note in field.metadata:
        if isinstance(note, Expected):
            return note.text
    if get_origin(field.annotation) is Literal:
        return f"one of {', '.join(repr(choice) for choice in get_args(field.annotation))}"
    return f"a value of type {field.annotation}"
