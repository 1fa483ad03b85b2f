"""A run of any length that nobody trained: every kind of line a watcher meets, as our writer puts them."""

import random
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from esper.leyline import (
    AnomalyRaised,
    DecisionTaken,
    EpisodeFinished,
    EvaluationFinished,
    Event,
    LifecycleOp,
    Place,
    RoundFinished,
    RunFinished,
    RunStarted,
    Style,
)
from esper.nissa.event_file import Record, encode, place_of
from event_examples import EXAMPLES

BEGAN = 1_750_000_000.0
SLOTS = ("blocks.0", "blocks.1", "blocks.2")
BLUEPRINTS = ("mixer", "conv_small", "norm", "attention")
_ACTS = ("GERMINATE", "ADVANCE", "WAIT", "WAIT", "PRUNE", "WAIT", "GERMINATE", "ADVANCE", "WAIT", "FOSSILIZE")
"""What is done in an episode, from its first epoch on; the rest of it waits."""


Kind = TypeVar("Kind", bound=Event)


def _example(kind: type[Kind]) -> Kind:
    event = EXAMPLES[kind.kind].event
    assert isinstance(event, kind)
    return event


_EPISODE, _ROUND, _DECISION = _example(EpisodeFinished), _example(RoundFinished), _example(DecisionTaken)
_ANOMALY, _JUDGED = _example(AnomalyRaised), _example(EvaluationFinished)


def write_synthetic_run(
    path: Path, *, rounds: int, envs: int = 8, epochs: int = 20, finished: bool = True, seed: int = 0
) -> int:
    """Make a run directory; returns how many events it holds."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(f'{{"rounds": {rounds}, "target_kl": 0.03, "suite": "cpu"}}')
    rng = random.Random(seed)
    with (path / "events.jsonl").open("wb") as file:
        file.write(line_of(RunStarted(name=path.name, esper="0.1.0"), BEGAN))
        written = 1
        for number in range(1, rounds + 1):
            lines = round_lines(number, rounds, envs, epochs, rng)
            file.write(b"".join(lines))
            written += len(lines)
        if finished:
            steps = rounds * envs * epochs
            file.write(line_of(RunFinished("finished", None, rounds, steps, float(rounds)), BEGAN + rounds))
            written += 1
    return written


def round_lines(number: int, rounds: int, envs: int, epochs: int, rng: random.Random) -> list[bytes]:
    """One round: its decisions, the ends of its episodes, itself, and now and then something else."""
    time, learned = BEGAN + number, 0.08 * number / (rounds + 1)
    lines = _decisions(number, envs, epochs, time)
    for env in range(envs):
        gain = learned + rng.gauss(0.0, 0.03)
        control = rng.gauss(0.7, 0.05)
        lines.append(
            line_of(
                replace(
                    _EPISODE,
                    round=number,
                    env=env,
                    episode=number - 1,
                    epochs=epochs,
                    utility=control + gain - 0.01,
                    gain=gain,
                    validation_accuracy=control + gain,
                    control_accuracy=control,
                ),
                time,
            )
        )
    lines.append(line_of(_round(number, envs, epochs, learned, rng), time))
    if number % 50 == 7:
        lines.append(line_of(replace(_ANOMALY, round=number), time))
    if number % 10 == 0:
        judged = replace(
            _JUDGED, round=number, mean_gain=learned, gain_low=learned - 0.01, gain_high=learned + 0.01
        )
        lines.append(line_of(judged, time))
    return lines


def line_of(event: Event, time: float) -> bytes:
    return encode(Record(time, place_of(event, Place()), event))


def _round(number: int, envs: int, epochs: int, learned: float, rng: random.Random) -> RoundFinished:
    return replace(
        _ROUND,
        round=number,
        env_steps=number * envs * epochs,
        seconds=rng.uniform(0.9, 1.1),
        env_epochs_per_second=rng.uniform(90.0, 110.0),
        mean_gain=learned,
        approx_kl=rng.uniform(0.002, 0.02),
        explained_variance=min(0.9, 0.1 + number / 100),
        grad_norm=rng.uniform(0.2, 2.0),
    )


def _decisions(number: int, envs: int, epochs: int, time: float) -> list[bytes]:
    """Step by step, all envs of a step together, as the trainer tells them."""
    lines = []
    for epoch in range(1, epochs + 1):
        op = _ACTS[epoch - 1] if epoch <= len(_ACTS) else "WAIT"
        for env in range(envs):
            template = _TEMPLATES[op, (number + env) % len(SLOTS)]
            lines.append(template % (time, number, env, number - 1, epoch))
    return lines


def _template(op: str, which: int) -> bytes:
    """A decision with places for time, round, env, episode and epoch; encoding each anew would take a minute."""
    slot, blueprint = SLOTS[which], BLUEPRINTS[which]
    germinates = op == "GERMINATE"
    event = replace(
        _DECISION,
        round=1111,
        env=2222,
        episode=3333,
        epoch=4444,
        op=LifecycleOp[op],
        slot=None if op == "WAIT" else slot,
        blueprint=blueprint if germinates else None,
        style=Style.LINEAR_ADD if germinates else None,
        tempo=3 if germinates else None,
        alpha_target=1.0 if germinates else None,
        alpha_speed=0 if op == "PRUNE" else None,
        alpha_curve=None,
        contribution=0.0125 if op in ("PRUNE", "FOSSILIZE") else None,
        stages={**dict.fromkeys(SLOTS, "DORMANT"), slot: "DORMANT" if germinates else "HOLDING"},
        alphas={} if germinates else {slot: 1.0},
        contributions={} if germinates else {slot: 0.0125},
        probabilities={"op": {"WAIT": 0.25, op: 0.75}},
        observation=None,
    )
    line = line_of(event, 5555.25).replace(b"%", b"%%")
    for written, place in (
        (b'"time":5555.25', b'"time":%.6f'),
        (b'"round":1111', b'"round":%d'),
        (b'"env":2222', b'"env":%d'),
        (b'"episode":3333', b'"episode":%d'),
        (b'"epoch":4444', b'"epoch":%d'),
    ):
        line = line.replace(written, place)
    return line


_TEMPLATES = {(op, which): _template(op, which) for op in set(_ACTS) for which in range(len(SLOTS))}
