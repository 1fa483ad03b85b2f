"""Task instances as text: `mnist1d:noise=0.2`, and those of the toy."""

from pathlib import Path
from random import Random

from esper.simic.env.making import require_suite
from esper.tolaria.tasks import Instance, suite, suite_names
from esper.tolaria.worlds.toy.instance import toy_case, toy_instance
from fuzz.door import Door
from fuzz.mutations import odd_value, spoil_text

_CASES = [
    *(str(case) for name in suite_names() for case in suite(name).held_out[:5]),
    "mnist1d:noise=0.2,size=1000",
    "tabular:header=no,path=a%2Cb.csv,target=3",
    "text:path=a.txt,context=64",
]


def _spoiled(text: str, rng: Random) -> str:
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = spoil_text(text, rng)
    return text


def _text(rng: Random, _: Path) -> object:
    instance = Instance.parse(_spoiled(rng.choice(_CASES), rng))
    assert Instance.parse(str(instance)) == instance
    return instance


def _parameters(rng: Random, _: Path) -> object:
    names = ["noise", "size", "path", "target", "extra"]
    given = {rng.choice(names): odd_value(rng) for _ in range(rng.randrange(3))}
    instance = Instance.of(rng.choice(["mnist1d", "tabular", "text"]), given)  # type: ignore[arg-type]
    assert Instance.parse(str(instance)) == instance
    return instance


def _toy(rng: Random, _: Path) -> object:
    return toy_instance(_spoiled(toy_case(rng.randrange(100), slots=rng.randrange(1, 5), change=8), rng))


def _suite(rng: Random, _: Path) -> object:
    name = _spoiled(rng.choice([*suite_names(), "toy"]), rng)
    require_suite(name)
    return name


DOORS = (
    Door("instance as text", _text, 20_000, (ValueError,)),
    Door("instance by parameters", _parameters, 6_000, (ValueError,)),
    Door("instance of the toy", _toy, 5_000, (ValueError,)),
    Door("suite", _suite, 4_000),
)
