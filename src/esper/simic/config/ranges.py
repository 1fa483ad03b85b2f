"""The ranges a setting may have, each with the words an error says it in."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from esper.leyline import ALPHA_SPEEDS, ALPHA_TARGETS, HEAD_NAMES, TEMPOS, Curve, LifecycleOp, Style


@dataclass(frozen=True, slots=True)
class Expected:
    """What an error says was expected."""

    text: str


Count = Annotated[int, Field(ge=1), Expected("a whole number >= 1")]
CountOrNone = Annotated[int | None, Field(ge=1), Expected("a whole number >= 1, or None")]
CountOrZero = Annotated[int, Field(ge=0), Expected("a whole number >= 0")]
CountOrZeroOrNone = Annotated[int | None, Field(ge=0), Expected("a whole number >= 0, or None")]
Positive = Annotated[float, Field(gt=0), Expected("a number > 0")]
PositiveOrNone = Annotated[float | None, Field(gt=0), Expected("a number > 0, or None")]
NotNegative = Annotated[float, Field(ge=0), Expected("a number >= 0")]
NotNegativeOrNone = Annotated[float | None, Field(ge=0), Expected("a number >= 0, or None")]
AtLeastOne = Annotated[float, Field(ge=1), Expected("a number >= 1")]
AtMostOne = Annotated[float, Field(le=1), Expected("a number <= 1")]
OverOne = Annotated[float, Field(gt=1), Expected("a number > 1")]
UpToOne = Annotated[float, Field(gt=0, le=1), Expected("a number in (0, 1]")]
UnderOne = Annotated[float, Field(ge=0, lt=1), Expected("a number in [0, 1)")]
Flag = Annotated[bool, Expected("True or False")]

Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$"), Expected("'cpu', 'cuda' or 'cuda:<number>'")]
CaseText = Annotated[
    str,
    Field(pattern=r"^\w+(:.+)?$"),
    Expected("a suite or a task instance, such as 'cpu' or 'mnist1d:noise=0.2'"),
]


def _run_name(name: str | None) -> str | None:
    # "none" is how TOML, which has no null, writes None.
    if name is not None and (name == "none" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)):
        raise ValueError(name)
    return name


RunName = Annotated[
    str | None,
    AfterValidator(_run_name),
    Expected("up to 100 letters, digits, '.', '_' and '-' that begin with a letter or digit, or None"),
]


def _warm_start(text: str | None) -> str | None:
    if text is not None and (text == "none" or not re.fullmatch(r"[\w-]+|.*/.*|.+\.safetensors", text)):
        raise ValueError(text)
    return text


WarmStart = Annotated[
    str | None,
    AfterValidator(_warm_start),
    Expected("the name of a rule or controller, a controller's folder, a .safetensors file, or None"),
]
Directory = Annotated[Path, Field(strict=False), Expected("a path")]  # files and flags give a text


def _menu(text: str | None) -> str | None:
    if text is not None and (text == "none" or not re.fullmatch(r"[\w-]+(,[\w-]+)*", text)):
        raise ValueError(text)
    return text


Menu = Annotated[
    str | None,
    AfterValidator(_menu),
    Expected("names of blueprints with commas between them, such as 'mixer,depthwise', or None"),
]


def _known_heads(coefficients: dict[str, float]) -> dict[str, float]:
    unknown = [head for head in coefficients if head not in HEAD_NAMES]
    if unknown:
        raise ValueError(unknown)
    return coefficients


HeadCoefficients = Annotated[
    dict[str, NotNegative],
    AfterValidator(_known_heads),
    Expected(f"head -> a number >= 0, with heads among {', '.join(HEAD_NAMES)}"),
]


def _known_ops(logits: dict[str, float]) -> dict[str, float]:
    unknown = [op for op in logits if op not in LifecycleOp.__members__]
    if unknown:
        raise ValueError(unknown)
    return logits


OpLogits = Annotated[
    dict[str, Annotated[float, Expected("a number")]],
    AfterValidator(_known_ops),
    Expected(f"operation -> a number, with operations among {', '.join(LifecycleOp.__members__)}"),
]


def _among(choices: tuple[float, ...]) -> AfterValidator:
    def check(value: float | None) -> float | None:
        if value is not None and value not in choices:
            raise ValueError(value)
        return value

    return AfterValidator(check)


def _one_of(choices: tuple[object, ...]) -> Expected:
    return Expected(f"one of {', '.join(str(choice) for choice in choices)}, or None")


StyleOrNone = Annotated[Style | None, Field(strict=False), _one_of(tuple(Style))]
CurveOrNone = Annotated[Curve | None, Field(strict=False), _one_of(tuple(Curve))]
TempoOrNone = Annotated[int | None, _among(TEMPOS), _one_of(TEMPOS)]
AlphaTargetOrNone = Annotated[float | None, _among(ALPHA_TARGETS), _one_of(ALPHA_TARGETS)]
AlphaSpeedOrNone = Annotated[int | None, _among(ALPHA_SPEEDS), _one_of(ALPHA_SPEEDS)]
