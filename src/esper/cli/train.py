"""`esper train`: train a controller and record the run, each setting a flag; `esper resume`: go on."""

import contextlib
import sys
from argparse import SUPPRESS, BooleanOptionalAction, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, get_args, get_origin

from esper.cli.common import (
    INTERRUPTED,
    BadInput,
    VerbParser,
    as_json,
    as_typed,
    find_run,
    note,
    stopped_by,
    table,
)
from esper.simic.config.checks import ConfigError
from esper.simic.config.files import read_settings
from esper.simic.config.presets import PRESETS, preset_settings
from esper.simic.config.training_config import MAY_CHANGE, TrainingConfig

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from esper.simic.reports import Progress
    from esper.simic.trainer import TrainingResult

GAVE_UP = 1
_SETTINGS: "dict[str, FieldInfo]" = TrainingConfig.__pydantic_fields__  # type: ignore[attr-defined]
_MEANINGS = {
    name: field.description
    for base in TrainingConfig.__mro__
    for name, field in vars(base).get("__pydantic_fields__", {}).items()
    if field.description  # pydantic keeps an inherited field's docstring in the class it is written in
}
_METAVARS = {int: "N", float: "X", Path: "FOLDER"}
_EXAMPLES = """esper train --preset demo
  esper train --preset cpu --rounds 200 --anomaly-max-ratio-threshold 4 --run-name first
  esper train --preset cpu --offline runs/first random.safetensors --rounds 50
  esper train --config my.toml --suite mnist1d:noise=0.2 --entropy-coef-per-head op 0.1 slot 0.05"""


def run_train(arguments: list[str]) -> int:
    """Train a new run; returns the exit code."""
    with as_typed(_typed(arguments)):
        config, chosen = parse(arguments)
        from esper.runs.train import with_name

        return train_recorded(
            with_name(config), quiet=chosen.quiet, json=chosen.json, hint=_hint(chosen, config)
        )


def _typed(arguments: Sequence[str]) -> dict[str, str]:
    """Setting -> the option that was typed for it."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    return {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}


def parse(arguments: Sequence[str]) -> tuple[TrainingConfig, Namespace]:
    """The settings, and the options that are no settings. Flags win over a file, a file over a preset."""
    chosen = _parser().parse([_dashed(argument) for argument in arguments])
    settings = {} if chosen.preset is None else dict(preset_settings(chosen.preset))
    if chosen.config is not None:
        if chosen.config.is_dir():
            raise BadInput(
                f"--config is {str(chosen.config)!r}, which is a folder; expected a .json, .toml or .yaml file"
            )
        try:
            settings |= read_settings(chosen.config)
            TrainingConfig.of(settings)
        except ConfigError as error:
            raise ConfigError(f"{chosen.config}: {error}") from None
    flags = {
        name: _pairs(name, value) if isinstance(value, list) and _origin(name) is dict else value
        for name, value in vars(chosen).items()
        if name in _SETTINGS
    }
    return TrainingConfig.of({**settings, **flags}), chosen


def _hint(chosen: Namespace, config: TrainingConfig) -> str:
    """What to know of a run as long as by default, on a suite where hosts train."""
    usual = TrainingConfig()
    shorter = config.rounds < usual.rounds or config.num_envs < usual.num_envs
    quick = shorter or bool(config.offline) or config.suite.startswith("toy")
    if quick or chosen.preset is not None or chosen.config is not None:
        return ""
    return "; at the defaults that can take hours, `--preset toy` takes two minutes"


class _TrainParser(VerbParser):
    def hint(self, flag: str, otherwise: str) -> str:
        """A word that others use for an option, before what is spelled alike."""
        return f"did you mean {_SYNONYMS[flag]}?" if flag in _SYNONYMS else super().hint(flag, otherwise)

    def use_of(self, argument: str, otherwise: str) -> str:
        """A preset needs its option."""
        return f"did you mean --preset {argument}?" if argument in PRESETS else otherwise


def _parser() -> VerbParser:
    width = max(map(len, PRESETS))
    presets = "\n".join(f"  {name:{width}}  {preset.purpose}" for name, preset in PRESETS.items())
    summary = f"Train a controller. Flags win over a file, a file over a preset.\n\npresets:\n{presets}"
    parser = _TrainParser("train", summary, _EXAMPLES, "quiet", "json")
    parser.usage = "esper train [--preset NAME] [--config FILE] [--SETTING VALUE ...] [--quiet] [--json]"
    parser.add_argument("--preset", metavar="NAME", help="start from a preset's settings")
    config = "start from the settings in a .json, .toml or .yaml file"
    parser.add_argument("--config", type=Path, metavar="FILE", help=config)
    for name, field in _SETTINGS.items():
        _add_setting(parser, name, f"{_MEANINGS[name]} ({field.get_default(call_default_factory=True)})")
    return parser


def _add_setting(parser: VerbParser, name: str, meaning: str) -> None:
    """A flag for one field. Its value is checked by `TrainingConfig`, so that there is one message for a mistake."""
    field, help_text = _SETTINGS[name], meaning.replace("%", "%%")
    flag, kinds = f"--{name.replace('_', '-')}", get_args(field.annotation) or (field.annotation,)
    if bool in kinds:
        parser.add_argument(flag, action=BooleanOptionalAction, default=SUPPRESS, help=help_text)
    elif _origin(name) is tuple:
        parser.add_argument(flag, nargs="+", default=SUPPRESS, metavar="DATASET", help=help_text)
    elif _origin(name) is dict:
        parser.add_argument(flag, nargs="*", default=SUPPRESS, metavar="NAME NUMBER", help=help_text)
    else:
        choices = list(kinds[0]) if isinstance(kinds[0], type) and issubclass(kinds[0], Enum) else kinds
        named = "{" + ",".join(map(str, choices)) + "}" if isinstance(choices[0], str) else "TEXT"
        parser.add_argument(
            flag,
            type=partial(_value, kinds),
            default=SUPPRESS,
            metavar=_METAVARS.get(kinds[0], named),
            help=help_text,
        )


def _origin(name: str) -> object:
    """What a setting holds several of: a dict, a tuple, or None where it is one value."""
    return get_origin(_SETTINGS[name].annotation)


def _value(kinds: Sequence[object], text: str) -> object:
    """A text as the kind of value that a setting has; left as it is where it is none, for the config to refuse."""
    if NoneType in kinds and text == "None":
        return None
    for kind in (int, float):
        if kind in kinds:
            with contextlib.suppress(ValueError):
                return kind(text)
    return text


def _pairs(name: str, words: list[str]) -> dict[str, object]:
    """Names and numbers in turn make a table: `op 0.1 slot 0.05`."""
    if len(words) % 2:
        raise BadInput(
            f"--{name.replace('_', '-')}: {words[-1]!r} is one too many; expected names and numbers in turn"
        )
    return {name: _value((float,), number) for name, number in zip(words[::2], words[1::2], strict=True)}


def _dashed(argument: str) -> str:
    """--run_name=my_run is --run-name=my_run."""
    flag, equals, value = argument.partition("=")
    return f"{flag.replace('_', '-')}{equals}{value}" if flag.startswith("--") else argument


# What `esper train` and `esper resume` share


def train_recorded(
    config: TrainingConfig, *, quiet: bool, json: bool, resume: bool = False, hint: str = ""
) -> int:
    """Train a run that has its name, showing how far it is; returns the exit code.

    hint  what else to say of the run where it begins
    """
    from esper.runs.train import require_trainable, train
    from esper.simic.agent import NonFiniteUpdateError

    assert config.run_name is not None
    run = config.run_directory / config.run_name
    silent = quiet or json
    try:
        require_trainable(config, resume=resume)
        with _following(config, hint, silent=silent) as progress:
            result = train(config, resume=resume, progress=progress)
    except KeyboardInterrupt as interrupt:
        if not run.is_dir():
            raise
        note(f"stopped by {stopped_by(interrupt)}; `esper resume {run}` goes on")
        return INTERRUPTED
    except NonFiniteUpdateError as error:
        note(str(error))
        return GAVE_UP
    if json:
        print(as_json(result))
    elif not quiet:
        print(table(("result", ""), list(_told(result, config).items())))
    if result.interrupted is not None:
        begun = "goes on" if result.last_checkpoint else "goes on with the first round"
        note(f"stopped by {result.interrupted}; `esper resume {run}` {begun}")
        return INTERRUPTED
    return 0


def _told(result: "TrainingResult", config: "TrainingConfig") -> dict[str, object]:
    """A result for people: the gain by which the best checkpoint was chosen is in points, a utility is one."""
    from esper.karn.drawing import in_points

    best: str | None = None
    if result.best_score is not None:
        gains = config.reward_control_variate
        best = in_points(result.best_score) if gains else f"utility {result.best_score:.4f}"
    return {**asdict(result), "best_score": best}


@contextlib.contextmanager
def _following(config: TrainingConfig, hint: str, *, silent: bool) -> "Iterator[Progress]":
    """A live picture at a terminal, lines elsewhere. What is trained is said with the first news: before it, the run
    may yet be refused."""
    from esper.karn.console import LineConsole, LiveConsole

    if silent:
        yield lambda _: None
        return
    rounds = "1 round" if config.rounds == 1 else f"{config.rounds:,} rounds"
    announcement = f"run {config.run_directory / str(config.run_name)}: {rounds} on {config.suite}{hint}"
    if not sys.stdout.isatty():
        yield LineConsole(config.rounds, announcement=announcement).show
    else:
        with LiveConsole(config.rounds, announcement=announcement) as console:
            yield console.show


_RESUME_SUMMARY = """Go on with a run from its newest sound checkpoint, as if it had not stopped.

With --rounds it goes on beyond the rounds first asked for. Annealing of lr and entropy_coef that follows the rounds
keeps the length it had: further rounds are trained at its end.

A run keeps its settings. Those that are options here may change, as none changes what a round computes, but for a
deadline that closes it early; by default they are as they were."""
_SYNONYMS = {
    "--learning-rate": "--lr",
    "--epochs": "--rounds",
    "--episodes": "--rounds",
    "--envs": "--num-envs",
    "--resume": "`esper resume RUN`",
}
"""What is typed for an option -> the option."""
_RESUMED = tuple(name for name in _SETTINGS if name in MAY_CHANGE - {"rounds", "run_name", "run_directory"})
"""Settings that are options of `esper resume`; a run's name and folder are where it is found."""


class _ResumeParser(VerbParser):
    def hint(self, flag: str, otherwise: str) -> str:
        """A setting is no option here, however much it is spelled like one."""
        if flag.removeprefix("--").replace("-", "_") in TrainingConfig.__dataclass_fields__:
            return "a run keeps its settings; `esper resume --help` lists those that may change"
        return super().hint(flag, otherwise)


def run_resume(arguments: list[str]) -> int:
    """Resume a run; returns the exit code."""
    example = "esper resume my-run --rounds 200 --workers 2"
    parser = _ResumeParser("resume", _RESUME_SUMMARY, example, "run", "quiet", "json")
    parser.add_count("--rounds", "rounds in all; by default as many as the run was asked for")
    for name in _RESUMED:
        _add_setting(parser, name, _MEANINGS[name])
    chosen = parser.parse([_dashed(argument) for argument in arguments])
    path = find_run(chosen.run, chosen.directory)
    if path.name in ("", ".."):  # `esper resume .`: a run's name is that of its folder
        path = path.resolve()
    config = TrainingConfig.load(path / "config.json")
    changed = {name: getattr(chosen, name) for name in _RESUMED if hasattr(chosen, name)}
    if chosen.rounds is not None:
        changed["rounds"] = chosen.rounds
    with as_typed(_typed(arguments)):
        config = replace(config, run_directory=path.parent, run_name=path.name, **changed)
        return train_recorded(config, quiet=chosen.quiet, json=chosen.json, resume=True)
