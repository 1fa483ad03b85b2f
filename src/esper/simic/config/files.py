"""Settings in a file: JSON, TOML or YAML by its extension, strictly."""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import JsonValue

from esper.simic.config.errors import ConfigError

if TYPE_CHECKING:
    from yaml import Node

T = TypeVar("T")

_NONE = "none"  # TOML has no null
_DEEPEST = 4  # settings are flat but for a table or two; an alias to itself has no bottom


def read_settings(path: Path) -> dict[str, object]:
    """What a file says, checked for its own grammar only; a key given twice is refused."""
    parse = _for_extension(path, _PARSERS)
    try:
        settings = parse(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid {path.suffix[1:]}: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"holds {settings!r}; expected settings by name")
    return settings


def write_settings(path: Path, settings: Mapping[str, JsonValue]) -> None:
    path.write_text(_for_extension(path, _WRITERS)(settings), "utf-8")


def _for_extension(path: Path, grammars: Mapping[str, T]) -> T:
    if path.suffix not in grammars:
        raise ConfigError(f"{path} ends in {path.suffix!r}; expected one of {', '.join(grammars)}")
    return grammars[path.suffix]


def _unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, value in pairs:
        if name in settings:
            raise ValueError(f"{name!r} is given twice")
        settings[name] = value
    return settings


def _text(value: str) -> str:
    """In double quotes, as TOML and YAML both read it: what cannot be seen is escaped."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


# JSON


def _parse_json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_unique)


def _write_json(settings: Mapping[str, JsonValue]) -> str:
    return json.dumps(dict(settings), indent=2, allow_nan=False) + "\n"


# TOML


def _parse_toml(text: str) -> dict[str, object]:
    return {name: None if value == _NONE else value for name, value in tomllib.loads(text).items()}


def _write_toml(settings: Mapping[str, JsonValue]) -> str:
    lines = (f"{name} = {_toml_value(value)}\n" for name, value in settings.items())
    return f'# "{_NONE}" stands for None\n' + "".join(lines)


def _toml_value(value: JsonValue) -> str:
    if value is None:
        return _text(_NONE)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(name)} = {_toml_value(each)}" for name, each in value.items()) + "}"
    return _text(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)


# YAML, by the rules of 1.2: `off` is a text and 3e-4 a number, which PyYAML's own reading turns around


def _parse_yaml(text: str) -> object:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    return {} if root is None else _yaml_value(root, 0)


def _yaml_value(node: "Node", depth: int) -> object:
    import yaml

    if depth > _DEEPEST:
        raise ValueError("it is nested too deep for settings")
    if not re.fullmatch(r"tag:yaml\.org,2002:[a-z]+", node.tag):
        raise ValueError(f"the tag {node.tag!r} is not allowed in settings")
    if isinstance(node, yaml.MappingNode):
        return _unique((str(key.value), _yaml_value(value, depth + 1)) for key, value in node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_yaml_value(each, depth + 1) for each in node.value]
    return _yaml_scalar(node.value) if node.style is None else node.value


def _yaml_scalar(text: str) -> bool | int | float | str | None:
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return float(text)
    return text


def _write_yaml(settings: Mapping[str, JsonValue]) -> str:
    # Every JSON value is a YAML one, and quoted texts cannot be taken for anything else.
    return "".join(
        f"{name}: {_text(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)}\n"
        for name, value in settings.items()
    )


_PARSERS: Mapping[str, Callable[[str], object]] = {
    ".json": _parse_json,
    ".toml": _parse_toml,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
}
_WRITERS: Mapping[str, Callable[[Mapping[str, JsonValue]], str]] = {
    ".json": _write_json,
    ".toml": _write_toml,
    ".yaml": _write_yaml,
    ".yml": _write_yaml,
}
