"""What Python callers ask for: benchmarks, decisions, environments."""

from dataclasses import asdict, fields
from pathlib import Path
from random import Random

from esper.benchmark import BenchRequest, plan_bench
from esper.leyline import DecisionSettings
from esper.simic.env.making import make_env
from fuzz.door import Door
from fuzz.mutations import spoil_tree

_REQUEST = {"suite": "toy", "arms": ("wait", "plateau"), "seeds": 2, "instances": 2, "device": "cpu"}
_DECISIONS = asdict(DecisionSettings(frozen_heads={"tempo": 3, "style": "gate"}, menu=("mixer",)))
_ENV = {"suite": "toy", "num_envs": 2, "device": "cpu", "workers": 0, "horizon": 12}


def _known(spoiled: object, names: set[str]) -> dict[str, object]:
    """The arguments that exist: a name that does not is Python's own TypeError."""
    given = spoiled if isinstance(spoiled, dict) else {}
    return {name: value for name, value in given.items() if name in names}


def _bench(rng: Random, folder: Path) -> object:
    request = {**_REQUEST, "controllers": {"learned": [str(folder / "none")]} if rng.random() < 0.1 else {}}
    names = {each.name for each in fields(BenchRequest)}
    return plan_bench(BenchRequest(**_known(spoil_tree(request, rng), names)))  # type: ignore[arg-type]


def _decisions(rng: Random, _: Path) -> object:
    settings = DecisionSettings(**_known(spoil_tree(_DECISIONS, rng), set(_DECISIONS)))  # type: ignore[arg-type]
    return settings.frozen_choices


def _env(rng: Random, _: Path) -> object:
    settings = _known(spoil_tree(_ENV, rng), set(_ENV))
    settings.setdefault("suite", "toy")
    if settings.get("workers") in (1, 2):  # processes take longer than all the rest
        settings["workers"] = 0
    env = make_env(**settings)  # type: ignore[arg-type]
    if env.num_envs < 9 and env.episodes.horizon < 99:  # more is allowed, and takes its time
        env.reset(seed=0)
    env.close()
    return env


DOORS = (
    Door("request of a benchmark", _bench, 500, (ValueError,)),
    Door("settings of decisions", _decisions, 4_200, (ValueError, TypeError)),
    Door("environment", _env, 300, (ValueError, TypeError)),
)
