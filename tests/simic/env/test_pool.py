"""A pool: finite, repeatable, and as likely as it was drawn."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from esper.simic.building import build, selection_cases
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env import make_world
from esper.simic.env.cases import TRAINING_HOSTS, CaseList, CasePool
from esper.simic.env.making import ReparametrisedCases, SuiteCases
from esper.simic.held_out import held_out_cases
from esper.tolaria.tasks import Instance
from esper.tolaria.tasks.drawn import REPARAMETRISED
from esper.tolaria.worlds.toy.instance import TOY_SUITES


def test_a_pool_is_decided_by_its_seed() -> None:
    source = TOY_SUITES["toy"]
    first, again, other = (CasePool.drawn(source, size=7, host_seeds=2, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.cases != other.cases
    assert (first.name, len(first.cases)) == ("toy", 7)


def test_reparametrised_cases_are_those_that_would_have_been_drawn() -> None:
    """Their data and networks are the same ones, so that runs with and without can be compared."""
    sources = SuiteCases("hosts"), ReparametrisedCases(SuiteCases("hosts"))
    plain, first, again = (
        CasePool.drawn(source, size=24, host_seeds=1, seed=3) for source in (*sources, sources[1])
    )
    assert first == again
    assert first.name == "hosts"
    for before, after in zip(plain.cases, first.cases, strict=True):
        old, new = (Instance.parse(case) for case in (before, after))
        assert (old.task, _kept(old)) == (new.task, _kept(new))
        assert old != new


def _kept(instance: Instance) -> dict[str, object]:
    return {name: value for name, value in instance.parameters if name not in REPARAMETRISED}


def test_what_is_drawn_is_in_it() -> None:
    pool = CasePool(("a", "a", "a", "b"), "some", host_seeds=1)
    rng = np.random.default_rng(0)
    drawn = Counter(pool.draw(rng) for _ in range(4000))
    assert set(drawn) == {"a", "b"}
    assert drawn["a"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_every_pair_once() -> None:
    pool = CasePool(("b", "a", "b"), "some", host_seeds=2)
    assert list(pool.pairs()) == [("b", 0), ("a", 2), ("b", 1), ("a", 3)]


@pytest.mark.parametrize("name", ["demo", "cpu", "cpu_mixers", "shift"])
def test_every_case_of_a_preset_trains_a_host_of_its_own(name: str) -> None:
    config = TrainingConfig.preset(name)
    pool = CasePool.drawn(
        SuiteCases(config.suite), size=config.pool_cases, host_seeds=config.pool_host_seeds, seed=0
    )
    pairs = list(pool.pairs())
    assert len(pairs) == len({host_seed for _, host_seed in pairs}) == config.pool_cases
    samples = {dict(Instance.parse(case).parameters)["data"] for case in pool.cases}
    assert len(samples) == config.pool_cases  # other validation samples, too
    rng = np.random.default_rng(0)
    assert {pool.draw_host(rng) for _ in range(30 * len(pairs))} == set(pairs)


def test_episodes_begin_with_the_hosts_of_the_pool() -> None:
    pool = CasePool.drawn(TOY_SUITES["toy"], size=5, host_seeds=2, seed=0)
    episodes = replace(make_world("toy", 3), cases=pool).episodes()
    for env_idx in range(3):
        episodes.seed(env_idx, env_idx)
    drawn = {(case, seed) for _ in range(40) for _, case, seed in map(episodes.draw, range(3))}
    assert drawn == set(pool.pairs())


def test_hosts_that_select_and_judge_are_never_trained_on() -> None:
    config = TrainingConfig.preset(
        "toy", num_envs=8, pool_cases=1200, pool_host_seeds=1000, eval_episodes=500
    )
    training = build(config)
    trained = {host_seed for _, host_seed in training.pool.pairs()}
    selecting = {host_seed for _, host_seed in selection_cases(training, config.eval_episodes)}
    judging = {host_seed for seed in range(3) for _, host_seed in held_out_cases("toy", 10_000, seed)}
    assert max(trained) == TRAINING_HOSTS - 1  # 1.2 million were asked for
    assert not trained & selecting
    assert not trained & judging
    assert not selecting & judging


@pytest.mark.parametrize(("size", "host_seeds"), [(0, 1), (1, 0), (1, TRAINING_HOSTS + 1)])
def test_an_empty_pool_is_refused(size: int, host_seeds: int) -> None:
    with pytest.raises(ValueError, match=f"not {size} and {host_seeds}"):
        CasePool.drawn(CaseList(("a",)), size=size, host_seeds=host_seeds, seed=0)
