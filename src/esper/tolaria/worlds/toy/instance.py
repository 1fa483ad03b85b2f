"""Drawn instances of the toy: what would help where, by how much and how fast, written down as numbers.

A case is text, `toy:draw=17` or `toy:change=8,draw=17,noise=0.0,slots=2`. The draw decides everything else.
Two hidden traits make instances differ: `structure` (at 1 the positions of the inputs are shuffled: mixers
help and convolutions harm, at 0 the other way round) and the size of the training set (with few samples
growth harms). Both can be read from the reports, so a controller can know what to do without trying it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from esper.kasmina.blueprints import Site, all_blueprints
from esper.leyline import BlueprintCard, Layout, SlotConfig
from esper.tolaria.tasks.task import ParameterSpec, complete, parse_parameters

BLUEPRINTS = ("norm", "attention", "conv_small", "mixer")
EPOCHS_TO_LEARN = (1.5, 2.5, 3.0, 4.0)
"""Time constants of the blueprints, before each draw moves them a little."""
WIDTHS, POSITIONS = (8, 16, 16, 16), (40, 20, 10, 10)
"""Channels and length at each slot, as in a small convolutional host: they decide what a seed costs."""
HOST_PARAMETERS = 1426
CHANCE = 0.1
MAX_SLOTS = len(WIDTHS)
MAX_DRAW = 2**31
DEFAULT_NOISE = 0.01
_PARAMETERS = {
    "change": ParameterSpec(kind="int", default=0, low=0, high=10_000, doc="epoch of the change; 0 is none"),
    "draw": ParameterSpec(kind="int", low=0, high=MAX_DRAW - 1, doc="number that decides everything else"),
    "noise": ParameterSpec(
        kind="float", default=DEFAULT_NOISE, low=0.0, high=1.0, doc="standard deviation of an accuracy"
    ),
    "slots": ParameterSpec(kind="int", default=3, low=1, high=MAX_SLOTS, doc="slots of the host"),
}
_ENTROPY = 0xE59E2
"""So that the toy's draws share no stream with another generator of the same seed."""


@dataclass(frozen=True, slots=True)
class ToyPhase:
    """What holds from an epoch on."""

    start_epoch: int
    structure: float
    plateau: float
    """Accuracy the bare host approaches."""
    gains: tuple[tuple[float, ...], ...]
    """(slot, blueprint): accuracy a grown-up seed adds at alpha 1; negative where it harms."""


@dataclass(frozen=True, slots=True)
class ToyInstance:
    """One task instance of the toy."""

    case: str
    draw: int
    slots: int
    noise: float
    """Standard deviation of a measured accuracy."""
    training_samples: int
    host_epochs: float
    """Time constant of the bare host."""
    epochs_to_learn: tuple[float, ...]
    """Time constant of each blueprint."""
    phases: tuple[ToyPhase, ...]

    @property
    def slot_config(self) -> SlotConfig:
        """The names of its slots."""
        return SlotConfig(tuple(f"blocks.{index}" for index in range(self.slots)))

    def phase_at(self, epoch: int) -> ToyPhase:
        """What held in the last of the first `epoch` epochs."""
        return next(p for p in reversed(self.phases) if p.start_epoch < max(epoch, 1))


def toy_case(draw: int, *, slots: int = 3, change: int = 0, noise: float = DEFAULT_NOISE) -> str:
    """The text of a case; what has its default is left out. `change` 0 is no change point."""
    options = {"change": change, "draw": draw, "noise": noise, "slots": slots}
    chosen = (f"{name}={value}" for name, value in options.items() if value != _PARAMETERS[name].default)
    return "toy:" + ",".join(chosen)


@lru_cache(maxsize=4096)
def toy_instance(case: str) -> ToyInstance:
    """The instance that a case names."""
    task = case.partition(":")[0]
    if task != "toy":
        raise ValueError(f"instance {case!r} is of task {task!r}; the toy world knows toy:draw=<number>")
    options = complete("toy", _PARAMETERS, dict(parse_parameters(case, _PARAMETERS)))
    draw, slots, change = (int(options[name]) for name in ("draw", "slots", "change"))
    rng = np.random.default_rng((_ENTROPY, draw))
    structure, size, patience, *tempers = rng.random(3 + len(BLUEPRINTS)).tolist()
    quirks = rng.uniform(-0.008, 0.008, (MAX_SLOTS, len(BLUEPRINTS))).tolist()
    phases = [_phase(0, structure, size, slots, quirks)]
    if change:
        phases.append(_phase(change, 1.0 - structure, size, slots, quirks))
    return ToyInstance(
        case=case,
        draw=draw,
        slots=slots,
        noise=float(options["noise"]),
        training_samples=round(500 * 8**size),
        host_epochs=2.0 + 2.0 * patience,
        epochs_to_learn=tuple(t * (0.8 + 0.45 * x) for t, x in zip(EPOCHS_TO_LEARN, tempers, strict=True)),
        phases=tuple(phases),
    )


@lru_cache(maxsize=1)
def toy_cards() -> tuple[tuple[BlueprintCard, ...], ...]:
    """(slot, blueprint): the real blueprints' kinds and costs at such slots."""
    registered = {blueprint.name: blueprint for blueprint in all_blueprints()}
    return tuple(
        tuple(
            BlueprintCard(
                name,
                registered[name].kind,
                registered[name].body_parameters(Site(Layout.SERIES, width, (length,))) + width,
            )
            for name in BLUEPRINTS
        )
        for width, length in zip(WIDTHS, POSITIONS, strict=True)
    )


def _phase(
    start: int, structure: float, size: float, slots: int, quirks: Sequence[Sequence[float]]
) -> ToyPhase:
    tilt = 2.0 * structure - 1.0
    scale = min(0.45 / slots, 0.2)  # all slots together never lift accuracy to 1
    gains = []
    for slot in range(slots):
        depth = slot / max(slots - 1, 1)
        mixer = scale * tilt * (1.0 - 0.4 * depth)  # best where positions are still many
        conv = -scale * tilt * (0.6 + 0.4 * depth)
        raw = (0.004, 0.4 * scale * (1.0 - 2.0 * abs(tilt)), conv, mixer)
        overfit = tuple(0.5 * scale * (1.0 - size) * weight for weight in (0.0, 0.5, 1.0, 1.0))
        gains.append(
            tuple(
                (2.0 * gain if gain < 0.0 else gain) - harm + quirk
                for gain, harm, quirk in zip(raw, overfit, quirks[slot], strict=True)
            )
        )
    plateau = 0.6 - 0.2 * structure - 0.05 * (1.0 - size)
    return ToyPhase(start, structure, plateau, tuple(gains))


TRAINING_DRAWS = 1_000_000
"""Draws below are for training; those from here on are held out."""


@dataclass(frozen=True, slots=True)
class ToySuite:
    """A distribution of cases to train on, and a fixed list of held-out ones to be judged by."""

    name: str
    slots: tuple[int, ...] = (3,)
    """How many slots a host may have."""
    changes: tuple[int, ...] = (0,)
    """Epochs at which the task may change; 0 is never."""

    def draw(self, rng: np.random.Generator) -> str:
        """A case to train on."""
        return self._case(int(rng.integers(TRAINING_DRAWS)), rng)

    def held_out(self, count: int) -> tuple[str, ...]:
        """The first `count` cases that are never drawn for training; always the same."""
        rng = np.random.default_rng(TRAINING_DRAWS)
        return tuple(self._case(TRAINING_DRAWS + index, rng) for index in range(count))

    def _case(self, draw: int, rng: np.random.Generator) -> str:
        return toy_case(draw, slots=int(rng.choice(self.slots)), change=int(rng.choice(self.changes)))


TOY_SUITES: Mapping[str, ToySuite] = {
    suite.name: suite
    for suite in (
        ToySuite("toy"),
        ToySuite("toy_shift", changes=(0, 6, 8, 10)),
        ToySuite("toy_slots", slots=(2, 3, 4)),
    )
}
