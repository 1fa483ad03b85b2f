"""Settings of a training run: as a mapping, as files, and as flags."""

import contextlib
import io
import json
from pathlib import Path
from random import Random

from esper.cli.common import BadInput
from esper.cli.train import parse
from esper.simic.config.presets import PRESETS
from esper.simic.config.training_config import TrainingConfig
from fuzz.door import Door
from fuzz.mutations import bomb_bytes, spoil_bytes, spoil_text, spoil_tree


def _settings(rng: Random) -> dict[str, object]:
    return dict(TrainingConfig.preset(rng.choice(list(PRESETS))).to_dict())


def _use(config: TrainingConfig) -> TrainingConfig:
    """Every consumer takes it, and it is its own copy."""
    assert TrainingConfig.of(config.to_dict()) == config
    config.ppo(), config.decisions, config.governor(), config.reward(task_rent=0.01)
    return config


def _mapping(rng: Random, _: Path) -> object:
    settings = spoil_tree(_settings(rng), rng)
    return _use(TrainingConfig.of(settings if isinstance(settings, dict) else {"suite": settings}))


def _file(rng: Random, folder: Path) -> object:
    path = folder / f"settings.{rng.choice(('json', 'toml', 'yaml'))}"
    TrainingConfig.of(_settings(rng)).save(path)
    content = path.read_bytes()
    way = rng.random()
    if way < 0.3 and path.suffix == ".json":
        content = json.dumps(spoil_tree(json.loads(content), rng)).encode()
    elif way < 0.35:
        content = f'suite: !!python/object/apply:os.mkdir ["{folder / "ran"}"]\n'.encode()
    elif way < 0.4:
        content = bomb_bytes(folder)
    elif way < 0.405:
        content = b"[" * 20_000
    else:
        content = spoil_bytes(content, rng)
    path.write_bytes(content)
    return _use(TrainingConfig.load(path))


def _flags(rng: Random, _: Path) -> object:
    words: list[str] = []
    settings = _settings(rng)
    for name in rng.sample(list(settings), 6):
        words += [f"--{name.replace('_', '-')}", str(settings[name])]
    for _time in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(words))
        words[place] = spoil_text(words[place], rng)
    with contextlib.redirect_stdout(io.StringIO()):
        return _use(parse(words)[0])


DOORS = (
    Door("settings by name", _mapping, 20_000),
    Door("settings in a file", _file, 5_000),
    Door("settings as flags", _flags, 4_000, (BadInput,)),
)
