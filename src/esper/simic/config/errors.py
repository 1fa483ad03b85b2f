"""What is wrong with a setting, in one line: the field, its value, and what was expected."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Literal, TypeVar, get_args, get_origin

from pydantic import ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from esper.leyline.errors import EsperError
from esper.simic.config.ranges import Expected

T = TypeVar("T")

CHECKED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
"""How pydantic checks a dataclass of settings: no conversions, no unknown names. Docstrings are the flags' help."""


class ConfigError(EsperError, ValueError):
    """A setting that cannot be, or does not go with another."""


def nearest(name: object, known: Iterable[str]) -> str:
    """ "; did you mean 'gamma'?" if something known is spelled like it, else nothing."""
    close = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_setting(name: object, known: Iterable[str]) -> str:
    """The message for a setting that does not exist."""
    return f"there is no setting {name!r}{nearest(name, known) or '; `esper train --help` lists them'}"


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
