"""Settings in a file: JSON, TOML or YAML by its extension, strictly."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from esper.simic.config.checks import ConfigError

if TYPE_CHECKING:
    from yaml import Node

_EXTENSIONS = (".json", ".toml", ".yaml", ".yml")
_NONE = "none"  # TOML has no null
_DEEPEST = 4  # settings are flat but for a table or two; an alias to itself has no bottom


def read_settings(path: Path) -> dict[str, object]:
    """What a file says, checked for its own grammar only; a key given twice is refused."""
    _require_known_extension(path)
    try:
        settings = _parse(path.read_text("utf-8"), path.suffix)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid {path.suffix[1:]}: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"holds {settings!r}; expected settings by name")
    return settings


def write_settings(path: Path, settings: Mapping[str, JsonValue]) -> None:
    """Write settings in the format of the path's extension; `read_settings` reads them back equal."""
    _require_known_extension(path, f"{path} ")
    if not path.parent.is_dir():
        raise ConfigError(f"path is {str(path)!r}; there is no folder {str(path.parent)!r}")
    if path.suffix == ".json":
        text = json.dumps(dict(settings), indent=2, allow_nan=False) + "\n"
    elif path.suffix == ".toml":
        text = f'# "{_NONE}" stands for None\n' + _lines(settings, " = ", none=f'"{_NONE}"')
    else:
        text = _lines(settings, ": ", none="null")
    path.write_text(text, "utf-8")


def _require_known_extension(path: Path, named: str = "") -> None:
    if path.suffix not in _EXTENSIONS:
        raise ConfigError(f"{named}ends in {path.suffix!r}; expected one of {', '.join(_EXTENSIONS)}")


def _lines(settings: Mapping[str, JsonValue], equals: str, *, none: str) -> str:
    """One line a setting, as TOML or YAML reads it: `equals` is between name and value."""

    def text(value: JsonValue) -> str:
        if value is None:
            return none
        if isinstance(value, dict):
            return "{" + ", ".join(f"{text(name)}{equals}{text(each)}" for name, each in value.items()) + "}"
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # Both formats read a quoted text as JSON does, but for characters that cannot be seen.
        return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in written)

    return "".join(f"{name}{equals}{text(value)}\n" for name, value in settings.items())


def _parse(text: str, extension: str) -> object:
    if extension == ".json":
        return json.loads(text, object_pairs_hook=_unique)
    if extension == ".toml":
        return {name: None if value == _NONE else value for name, value in tomllib.loads(text).items()}
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    return {} if root is None else _yaml_value(root, 0)


def _unique(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, value in pairs:
        if name in settings:
            raise ValueError(f"{name!r} is given twice")
        settings[name] = value
    return settings


def _yaml_value(node: "Node", depth: int) -> object:
    """By the rules of YAML 1.2: `off` is a text and 3e-4 a number, which PyYAML's own reading turns around."""
    import yaml

    if depth > _DEEPEST:
        raise ValueError("it is nested too deep for settings")
    if not re.fullmatch(r"tag:yaml\.org,2002:[a-z]+", node.tag):
        raise ValueError(f"the tag {node.tag!r} is not allowed in settings")
    if isinstance(node, yaml.MappingNode):
        return _unique((str(key.value), _yaml_value(value, depth + 1)) for key, value in node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_yaml_value(each, depth + 1) for each in node.value]
    text: str = node.value
    if node.style is not None:  # quoted
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return float(text)
    return text
