"""C8 and D5: exact resume across processes, and what is refused."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from copies import run_in_a_copy
from esper.simic.agent import CheckpointError, DamagedCheckpoint, PPOAgent, PPOConfig
from esper.simic.agent.checkpoint import CHECKPOINT_VERSION, read_checkpoint
from esper.tamiyo import RecurrentActorCritic
from probes import DelayedMemory, iterate
from synthetic_growth import growth_policy

CONFIG = PPOConfig(
    target_kl=None,
    normalize_observations=True,
    normalize_rewards=True,
    weight_decay=0.01,
    entropy_anneal_steps=10,
    num_minibatches=3,
)


def make(seed: int) -> tuple[PPOAgent, DelayedMemory]:
    policy = RecurrentActorCritic(
        2,
        DelayedMemory.layout,
        hidden_size=8,
        num_lstm_layers=2,
        uses_previous=True,
        generator=torch.Generator().manual_seed(seed),
    )
    # 8 steps do not divide into episodes of 3: the rollout ends in the middle of one.
    agent = PPOAgent(policy, CONFIG, num_envs=5, num_steps=8, seed=seed)
    return agent, DelayedMemory(5, torch.Generator().manual_seed(seed + 1))


def resume_and_finish(source: Path, updates: int, target: Path) -> None:
    """What the second process does."""
    agent, probe = make(seed=999)  # nothing of this seed may survive the load
    extra = agent.load(source)
    env, observation, mask = extra["env"], extra["observation"], extra["mask"]
    assert isinstance(env, dict)
    assert isinstance(observation, torch.Tensor)
    assert isinstance(mask, torch.Tensor)
    probe.load_state_dict(env)  # type: ignore[arg-type]
    iterate(agent, probe, observation, mask, updates)
    agent.save(target)


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    agent, probe = make(seed=3)
    observation, mask = probe.reset()
    _, observation, mask = iterate(agent, probe, observation, mask, 2)[-1]
    agent.save(
        tmp_path / "middle.pt",
        extra={"env": dict(probe.state_dict()), "observation": observation, "mask": mask},
    )
    iterate(agent, probe, observation, mask, 3)
    agent.save(tmp_path / "straight.pt")
    code = (
        "import importlib.util, sys; from pathlib import Path;"
        "spec = importlib.util.spec_from_file_location('case', sys.argv[1]);"
        "case = importlib.util.module_from_spec(spec); spec.loader.exec_module(case);"
        "case.resume_and_finish(Path(sys.argv[2]), 3, Path(sys.argv[3]))"
    )
    run_in_a_copy(code, __file__, str(tmp_path / "middle.pt"), str(tmp_path / "resumed.pt"))
    straight, resumed = read_checkpoint(tmp_path / "straight.pt"), read_checkpoint(tmp_path / "resumed.pt")
    assert straight.pop("extra") == resumed.pop("extra") == {}
    assert_identical(straight, resumed)
    assert straight["counters"] == {"updates": 5, "env_steps": 200, "non_finite_in_a_row": 0}


def assert_identical(one: object, two: object, path: str = "") -> None:
    assert type(one) is type(two), path
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        assert torch.equal(one, two), path
    elif isinstance(one, dict) and isinstance(two, dict):
        assert one.keys() == two.keys(), path
        for key in one:
            assert_identical(one[key], two[key], f"{path}/{key}")
    elif isinstance(one, list | tuple) and isinstance(two, list | tuple):
        assert len(one) == len(two), path
        for number, (first, second) in enumerate(zip(one, two, strict=True)):
            assert_identical(first, second, f"{path}/{number}")
    else:
        assert one == two, path


class Bomb:
    """An object whose unpickling would run a command."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, (f"touch {self.flag}",))


def test_a_checkpoint_with_a_pickled_object_is_refused_and_not_run(tmp_path: Path) -> None:
    path, flag = tmp_path / "bomb.pt", tmp_path / "exploded"
    torch.save({"version": CHECKPOINT_VERSION, "extra": Bomb(flag)}, path)
    with pytest.raises(CheckpointError, match="something else than tensors and plain data"):
        make(0)[0].load(path)
    assert not flag.exists()


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "cut.pt"
    agent, _ = make(0)
    agent.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep if keep > 1 else keep * len(content))])
    with pytest.raises(DamagedCheckpoint, match=r"cut\.pt: damaged or cut short"):
        agent.load(path)


def test_overwritten_bytes_are_found_wherever_they_are(tmp_path: Path) -> None:
    """What torch loads without a word, because it does not look at checksums, and what it takes for code."""
    path = tmp_path / "overwritten.pt"
    agent, _ = make(0)
    agent.save(path)
    content, whole = path.read_bytes(), read_checkpoint(path)
    found = 0
    for place in range(0, len(content), 97):
        changed = bytes(255 - byte for byte in content[place : place + 3])
        path.write_bytes(content[:place] + changed + content[place + 3 :])
        try:
            assert_identical(read_checkpoint(path), whole)  # only padding was hit
        except DamagedCheckpoint as error:
            found += "overwritten.pt: damaged" in str(error)
    assert found > 0.5 * len(content) / 97


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    agent, _ = make(0)
    torch.save({"version": "esper-ppo-0"}, path)
    with pytest.raises(CheckpointError, match="version 'esper-ppo-0'; this code reads 'esper-ppo-2' only"):
        agent.load(path)
    torch.save([1, 2], path)
    with pytest.raises(CheckpointError, match="names no version"):
        agent.load(path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        agent.load(tmp_path / "missing.pt")


def test_another_slot_order_is_refused_by_name(tmp_path: Path) -> None:
    def growth(names: tuple[str, ...]) -> PPOAgent:
        policy = growth_policy(2, 3, torch.Generator().manual_seed(0), hidden_size=8)
        config = policy.layout.slot_config
        assert config is not None
        policy.layout = replace(policy.layout, slot_config=replace(config, slot_ids=names))
        return PPOAgent(policy, PPOConfig(), num_envs=1, num_steps=2, seed=0)

    path = tmp_path / "slots.pt"
    growth(("stem", "body")).save(path)
    growth(("stem", "body")).load(path)
    with pytest.raises(CheckpointError, match=r"slot_ids is \['stem', 'body'\], this agent's is \['body'"):
        growth(("body", "stem")).load(path)


def test_another_network_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "wide.pt"
    agent, _ = make(0)
    agent.save(path)
    policy = RecurrentActorCritic(
        2,
        DelayedMemory.layout,
        hidden_size=16,
        uses_previous=True,
        generator=torch.Generator().manual_seed(0),
    )
    other = PPOAgent(policy, CONFIG, num_envs=5, num_steps=8, seed=0)
    before = {name: p.clone() for name, p in policy.named_parameters()}
    with pytest.raises(CheckpointError, match="does not fit this agent's policy"):
        other.load(path)
    assert all(torch.equal(before[name], p) for name, p in policy.named_parameters())


def test_saving_in_the_middle_of_a_rollout_is_refused(tmp_path: Path) -> None:
    agent, probe = make(0)
    agent.act(*probe.reset())
    with pytest.raises(RuntimeError, match="in the middle of a rollout"):
        agent.save(tmp_path / "early.pt")


Change = Callable[[dict[str, Any]], object]
WRONG: dict[str, Change] = {
    "a part is missing": lambda saved: saved.pop("counters"),
    "a part is unknown": lambda saved: saved.update(more=1),
    "other parents": lambda saved: saved["layout"].update(parents={"action": "op"}),
    "other causal table": lambda saved: saved["layout"].update(relevance=[[False], [True]]),
    "other exploration floor": lambda saved: saved["layout"].update(exploration_floor=0.5),
    "a layout field is missing": lambda saved: saved["layout"].pop("head_sizes"),
    "short statistics": lambda saved: saved["observation_stats"].update(var=torch.ones(1)),
    "scalar statistics": lambda saved: saved["reward_normalizer"].update(m2=torch.ones(3)),
    "narrow memory": lambda saved: saved["actor"].update(hidden=torch.zeros(2, 5, 1)),
    "few begins": lambda saved: saved.update(begins=torch.zeros(2, dtype=torch.bool)),
    "a counter is missing": lambda saved: saved["counters"].pop("non_finite_in_a_row"),
    "a moment is missing": lambda saved: saved["optimizer"]["state"][0].pop("exp_avg"),
    "a moment of another shape": lambda saved: saved["optimizer"]["state"][0].update(exp_avg=torch.ones(1)),
    "other groups": lambda saved: saved["optimizer"]["param_groups"].pop(),
    "a damaged detector": lambda saved: saved.update(detector={}),
    "a damaged generator": lambda saved: saved.update(action_generator=torch.zeros(3)),
    "a short generator": lambda saved: saved.update(shuffle_generator=torch.zeros(3, dtype=torch.uint8)),
    "extra is a list": lambda saved: saved.update(extra=[]),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_a_failed_load_leaves_the_agent_as_it_was(tmp_path: Path, change: Change) -> None:
    agent, probe = make(seed=3)
    iterate(agent, probe, *probe.reset(), 1)
    agent.save(tmp_path / "good.pt")
    saved = read_checkpoint(tmp_path / "good.pt")
    change(saved)
    torch.save(saved, tmp_path / "bad.pt")
    other, _ = make(seed=4)
    other.save(tmp_path / "before.pt")
    with pytest.raises(CheckpointError, match=r"bad\.pt"):
        other.load(tmp_path / "bad.pt")
    other.save(tmp_path / "after.pt")
    assert_identical(read_checkpoint(tmp_path / "before.pt"), read_checkpoint(tmp_path / "after.pt"))


def test_the_optimiser_keeps_its_own_options(tmp_path: Path) -> None:
    agent, probe = make(seed=3)
    iterate(agent, probe, *probe.reset(), 1)
    for group in agent.optimizer.param_groups:  # as another device and config would have them
        group.update(fused=True, foreach=None, capturable=True, eps=0.5, weight_decay=0.25)
    agent.save(tmp_path / "agent.pt")
    other, _ = make(seed=4)
    names = ("fused", "foreach", "capturable", "eps", "weight_decay")
    before = [{name: group[name] for name in names} for group in other.optimizer.param_groups]
    other.load(tmp_path / "agent.pt")
    assert [{name: group[name] for name in names} for group in other.optimizer.param_groups] == before
    iterate(other, probe, *probe.reset(), 1)


def test_the_count_of_non_finite_updates_is_restored(tmp_path: Path) -> None:
    agent, _ = make(seed=3)
    agent.non_finite_in_a_row = 2
    agent.save(tmp_path / "agent.pt")
    other, _ = make(seed=4)
    other.load(tmp_path / "agent.pt")
    assert other.non_finite_in_a_row == 2
