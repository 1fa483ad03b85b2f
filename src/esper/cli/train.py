"""`esper train`: train a controller, and record it."""

import contextlib
import io
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from esper.cli import train as train_options
from esper.cli.common import BadInput, VerbParser, did_you_mean
from esper.simic.config.errors import ConfigError
from esper.simic.config.files import read_settings
from esper.simic.config.presets import PRESETS, preset_settings
from esper.simic.config.training_config import TrainingConfig

# The options of `esper train`: every setting is a flag. Flags win over a file, a file over a preset.


_DESCRIPTION = """Train a controller. Flags win over a file, a file over a preset.

presets:
{presets}

examples:
  esper train --preset demo
  esper train --preset cpu --rounds 200 --anomaly-max-ratio-threshold 4 --run-name first
  esper train --config my.toml --suite mnist1d:noise=0.2 --entropy-coef-per-head op 0.1 slot 0.05
"""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Start from a preset's settings."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Start from the settings in a .json, .toml or .yaml file."""
    quiet: bool = False
    """Say nothing unless something is wrong."""
    json: bool = False
    """Print the result as JSON, for programs, and nothing else."""
    settings: tyro.conf.OmitArgPrefixes[TrainingConfig] = field(default_factory=TrainingConfig)
    """Every setting of the run."""


def parse(arguments: list[str]) -> TrainOptions:
    _require_known(arguments)
    try:
        start = TrainOptions(settings=TrainingConfig.of(_base(arguments)))
    except ConfigError as error:
        raise BadInput(str(error)) from None
    if {"-h", "--help"} & set(arguments):
        return _read(["--help"], start)
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            return _read(arguments, start)
    except SystemExit:
        raise BadInput(f"{_finding(told.getvalue())}; see `esper train --help`") from None


def _read(arguments: list[str], start: TrainOptions) -> TrainOptions:
    return tyro.cli(
        TrainOptions,
        prog="esper train",
        description=_description(),
        args=arguments,
        default=start,
        config=(tyro.conf.EnumChoicesFromValues,),
        registry=_REGISTRY,
    )


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _pairs(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, float]] | None:
    """A table is one flag with names and numbers in turn; by itself tyro makes a flag of each name in a preset's."""
    if get_origin(info.type) is not dict or get_args(info.type)[0] is not str:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME NUMBER [...]]",
        instance_from_str=_table,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda table: [word for pair in table.items() for word in map(str, pair)],
    )


def _table(words: list[str]) -> dict[str, float]:
    if len(words) % 2:
        raise ValueError(f"{words[-1]!r} is one too many; expected names and numbers in turn")
    return {name: float(number) for name, number in zip(words[::2], words[1::2], strict=True)}


def _base(arguments: list[str]) -> dict[str, object]:
    """The settings that flags are put on top of."""
    peek = VerbParser("train", "", "", add_help=False)
    peek.add_argument("--preset")
    peek.add_argument("--config", type=Path)
    chosen, _ = peek.parse_known_args(arguments)
    settings = {} if chosen.preset is None else dict(preset_settings(chosen.preset))
    if chosen.config is not None:
        try:
            settings |= read_settings(chosen.config)
            TrainingConfig.of(settings)
        except ConfigError as error:
            raise ConfigError(f"{chosen.config}: {error}") from None
    return settings


def _require_known(arguments: list[str]) -> None:
    """Name an option that there is not, and the nearest that there is."""
    known = {each.name for kind in (TrainOptions, TrainingConfig) for each in fields(kind)} - {"settings"}
    flags = {f"--{name.replace('_', '-')}" for name in known | {"help"}}
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in flags and flag.replace("--no-", "--", 1) not in flags:
            raise BadInput(
                f"there is no option {flag}; {did_you_mean(flag, flags, 'see `esper train --help`')}"
            )


def _finding(told: str) -> str:
    """What is wrong, out of what tyro says where there is no terminal: a title, a rule, the finding, a rule, help."""
    sections: list[list[str]] = [[]]
    for line in told.splitlines():
        if line.strip(" -"):
            sections[-1].append(line.strip())
        elif line.strip():
            sections.append([])
    return " ".join(sections[1]).removeprefix("Error parsing settings: ").rstrip(".")


def _description() -> str:
    width = max(map(len, PRESETS))
    return _DESCRIPTION.format(
        presets="\n".join(f"  {name:{width}}  {preset.purpose}" for name, preset in PRESETS.items())
    )


def run(arguments: list[str]) -> int:
    options = train_options.parse(arguments)
    from esper.cli.training import Report, train_recorded
    from esper.runs.train import with_name

    return train_recorded(with_name(options.settings), Report(quiet=options.quiet, json=options.json))
