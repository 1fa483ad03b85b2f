"""What happens to hosts reaches the record of a run, in its place, and changes nothing of the run."""

from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from torch import Tensor

import esper
from esper.karn.sql import query
from esper.leyline import (
    DecisionTaken,
    EpisodeFinished,
    HostEvent,
    LifecycleOp,
    RoundFinished,
    SeedGerminated,
)
from esper.nissa import Record, read_run
from esper.tolaria.tasks import forget, register
from tiny_tasks import tiny_task

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")


@pytest.fixture(autouse=True, scope="module")
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("host_record"))
        patch.setenv("ESPER_CACHE", str(Path("cache").resolve()))
        register(tiny_task(epochs=11))
        yield
        forget("tiny")


@pytest.fixture(scope="module")
def whole() -> Path:
    """A run whose rounds are episodes."""
    return trained("whole", rounds=2)


@pytest.fixture(scope="module")
def parts() -> Path:
    """A run whose rounds are parts of episodes."""
    return trained("parts", rounds=4, rollout_steps=7)


def trained(name: str, **changes: object) -> Path:
    settings: dict[str, object] = {
        "suite": "tiny",
        "num_envs": 3,
        "num_minibatches": 1,
        "hidden_size": 16,
        "gamma": 1.0,
        "pool_cases": 1,
        "pool_host_seeds": 2,
        "eval_every": 0,
        "run_tensorboard": False,
    }
    result = esper.train(esper.TrainingConfig.of({**settings, **changes, "run_name": name}))
    assert result.directory is not None
    return result.directory


def weights(run: Path) -> dict[str, Tensor]:
    policy: dict[str, Tensor] = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["policy"]
    return policy


def require_equal_weights(*runs: Path) -> None:
    first, *others = map(weights, runs)
    for other in others:
        assert first.keys() == other.keys()
        assert all(torch.equal(weight, other[name]) for name, weight in first.items())


def hosts_told(run: Path) -> list[Record]:
    return [record for record in read_run(run) if isinstance(record.event, HostEvent)]


@pytest.mark.parametrize("kind", ["whole", "parts"])
def test_every_life_is_told_by_the_host_in_its_place(kind: str, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(kind)
    records = read_run(run)
    decided = [
        (event.round, event.env, event.episode, event.epoch, event.slot, event.blueprint)
        for event in (record.event for record in records)
        if isinstance(event, DecisionTaken) and event.op is LifecycleOp.GERMINATE
    ]
    born = [
        (*astuple(record.place), record.event.slot, record.event.blueprint)
        for record in records
        if isinstance(record.event, SeedGerminated)
    ]
    assert born == decided
    assert len(born) > 5

    # The product has exactly the seeds whose lives did not end, though some were removed only when it was settled.
    asked = "select env, episode, sum(parameters)::int from seeds where fate <> 'pruned' group by all"
    kept = {(env, episode): parameters for env, episode, parameters in query(run, asked).rows}
    ended = [record.event for record in records if isinstance(record.event, EpisodeFinished)]
    assert ended
    for episode in ended:
        assert kept.get((episode.env, episode.episode), 0) == episode.added_parameters
    assert query(run, "select count(*) from seeds where parameters is null").rows == [(0,)]
    removed = "select count(*) from seeds where fate = 'pruned' and pruned = 11"
    assert query(run, removed).rows[0][0] > 0  # type: ignore[operator]


def test_things_are_told_in_the_order_they_happened(parts: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    for record in read_run(parts):
        event = record.event
        if isinstance(event, DecisionTaken | HostEvent):
            assert record.place.round is not None
            assert record.place.episode is not None
            assert record.place.epoch is not None
            seen.append((record.place.round, record.place.episode, record.place.epoch))
        elif isinstance(event, EpisodeFinished):
            assert event.round is not None
            seen.append((event.round, event.episode, event.epochs))
        elif isinstance(event, RoundFinished):
            assert all(place[0] == event.round for place in seen[-7:])
    assert seen == sorted(seen)


def test_telemetry_changes_no_weight_and_what_is_not_wanted_is_not_told() -> None:
    into_the_next_episode: dict[str, object] = {"num_envs": 1, "rounds": 2, "rollout_steps": 6}
    loud, some, quiet = (
        trained(level, run_telemetry=level, **into_the_next_episode) for level in ("full", "rounds", "off")
    )
    assert hosts_told(loud)
    assert not hosts_told(some)
    require_equal_weights(loud, some, quiet)
    assert not (quiet / "events.jsonl").exists()


@pytest.mark.slow
def test_workers_tell_the_same_and_change_nothing() -> None:
    """Tasks of a test are unknown in other processes, so these hosts are real."""
    real: dict[str, object] = {"suite": "mnist1d:size=500", "horizon": 6, "num_envs": 2, "rounds": 2}
    here, there = trained("here", **real), trained("there", **real, workers=2)
    quiet = trained("quiet", **real, workers=2, run_telemetry="off")
    told = [[(record.place, record.event) for record in hosts_told(run)] for run in (here, there)]
    assert told[0] == told[1]
    assert told[0]
    require_equal_weights(here, there, quiet)


def test_the_time_of_hosts_is_part_of_the_rounds(whole: Path) -> None:
    rounds = [record.event for record in read_run(whole, kinds=["round_finished"])]
    for event in rounds:
        if isinstance(event, RoundFinished):
            assert event.host_seconds is not None
            assert 0.3 * event.seconds < event.host_seconds < event.seconds
