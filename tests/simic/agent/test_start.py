"""Starting PPO from what was learned before: the critic first, then held to the start by a KL that fades."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import esper
from esper.nissa import Checkpoints
from esper.simic.agent import PPOAgent
from esper.simic.agent.checkpoint import CheckpointError, read_checkpoint
from esper.simic.agent.losses import head_kl
from esper.simic.building import build
from esper.simic.cloning import require_warm_start, warm_start
from esper.simic.config.checks import ConfigError
from esper.simic.config.ppo import PPOConfig
from esper.simic.config.training_config import TrainingConfig
from esper.simic.timing import StopRequest
from esper.simic.trainer import VectorizedPPOTrainer, train_ppo_vectorized
from esper.tamiyo import ActorCritic, discrete_layout

pytestmark = pytest.mark.filterwarnings("ignore:advantage std:RuntimeWarning")


@pytest.fixture(scope="module")
def giver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to start from."""
    folder = tmp_path_factory.mktemp("giver")
    esper.train(config(run_directory=folder, run_name="giver", rounds=2))
    return folder / "giver"


def config(**changes: object) -> TrainingConfig:
    small: dict[str, object] = {
        "num_envs": 7,
        "horizon": 9,
        "num_minibatches": 2,
        "hidden_size": 16,
        "rounds": 4,
        "eval_every": 0,
        "pool_cases": 50,
        "run_tensorboard": False,
        "run_telemetry": "rounds",
    }
    return TrainingConfig.preset("toy", **{**small, **changes})


def started(chosen: TrainingConfig) -> VectorizedPPOTrainer:
    training = build(chosen)
    trainer = VectorizedPPOTrainer(chosen, training)
    warm_start(training, chosen)
    trainer.begin()
    return trainer


def policy_of(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = read_checkpoint(path)["policy"]
    return found


# The KL and its weight


def test_the_kl_from_the_start_by_hand() -> None:
    start = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    now = torch.tensor([[[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]]])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert head_kl(start, now)[0].tolist() == pytest.approx([expected, math.log(2.0)])
    assert head_kl(start, start).abs().max() == 0.0


def test_its_gradient_is_that_of_cloning_and_0_at_the_start() -> None:
    logits = torch.tensor([0.3, -0.2, 1.0], requires_grad=True)
    start = torch.tensor([0.2, 0.3, 0.5])
    head_kl(start, logits.softmax(-1)).backward()
    torch.testing.assert_close(logits.grad, logits.softmax(-1).detach() - start)
    same = torch.tensor([0.2, 0.3, 0.5]).log().requires_grad_()
    head_kl(start, same.softmax(-1)).backward()
    torch.testing.assert_close(same.grad, torch.zeros(3))


def test_its_weight_waits_for_the_critic_and_fades() -> None:
    settings = PPOConfig(start_kl=0.8, start_critic_rounds=2, start_kl_anneal_steps=4)
    assert [settings.start_kl_at(updates) for updates in range(8)] == pytest.approx(
        [0.8, 0.8, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0]
    )
    assert PPOConfig(start_kl=0.8, start_kl_anneal_steps=0).start_kl_at(1000) == 0.8


# In a run


def test_only_the_critic_learns_at_first(giver: Path) -> None:
    chosen = config(warm_start=str(giver), start_critic_rounds=1, rounds=1)
    trainer = started(chosen)
    policy = trainer.agent.policy
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    trainer.train()
    for name, value in policy.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("critic."), name
    trainer.config = replace(chosen, rounds=2)
    trainer.train()
    assert not torch.equal(policy.state_dict()["lstm.weight_hh_l0"], before["lstm.weight_hh_l0"])


def test_the_start_remembers_what_the_other_sees(giver: Path) -> None:
    """While the policy does not move, both say the same at every step, over rounds and the ends of episodes."""
    chosen = config(warm_start=str(giver), start_critic_rounds=9, start_kl=1.0, rollout_steps=13)
    trainer = started(chosen)
    agent = trainer.agent
    for observed in range(39):
        mask = torch.from_numpy(trainer._info["action_mask"].copy())
        action = agent.act(torch.from_numpy(trainer._observation), mask)
        trainer._observation, reward, terminated, truncated, trainer._info = trainer.envs.step(action.numpy())
        valid = np.ones(7, dtype=np.bool_)
        valid[observed % 7] = observed % 5 > 0 or bool(terminated[observed % 7])
        agent.observe(
            torch.from_numpy(reward).float(),
            terminated,
            truncated,
            valid=valid,
            shown_reward=torch.from_numpy(trainer._info["shown_reward"].copy()).float(),
        )
        assert agent.start is not None
        step = agent.buffer.step - 1
        torch.testing.assert_close(agent.start.logits[:, step], agent.buffer.logits[:, step])
        if agent.ready:
            agent.update(torch.from_numpy(trainer._observation))


def test_it_holds_to_the_start_and_then_lets_go(giver: Path) -> None:
    """The distance gone in the weights of the operations, with the same seed."""

    def moved(**changes: object) -> float:
        trainer = started(config(warm_start=str(giver), lr=3e-3, target_kl=None, **changes))
        before = trainer.agent.policy.state_dict()["actor.heads.op.weight"].clone()
        trainer.train()
        after = trainer.agent.policy.state_dict()["actor.heads.op.weight"]
        assert (trainer.agent.start is None) == ("start_kl_anneal_steps" not in changes)
        return float((after - before).norm())

    free = moved()
    assert moved(start_kl=30.0, start_kl_anneal_steps=0) < 0.7 * free
    assert moved(start_kl=1e-9, start_kl_anneal_steps=0) == pytest.approx(free, rel=0.05)


def test_a_run_that_is_held_goes_on_bit_for_bit(giver: Path, tmp_path: Path) -> None:
    whole = config(
        warm_start=str(giver),
        start_critic_rounds=1,
        start_kl=2.0,
        start_kl_anneal_steps=3,
        rollout_steps=13,
        lr_anneal_steps=0,
        entropy_anneal_steps=3,
    )
    one = train_ppo_vectorized(whole, checkpoints=Checkpoints(tmp_path / "whole")).last_checkpoint
    store = Checkpoints(tmp_path / "part")
    part = train_ppo_vectorized(replace(whole, rounds=2), checkpoints=store).last_checkpoint
    assert part is not None
    assert "start" in read_checkpoint(part)
    other = train_ppo_vectorized(whole, checkpoints=store, resume=part).last_checkpoint
    assert one is not None
    assert other is not None
    theirs = policy_of(other)
    assert all(torch.equal(value, theirs[name]) for name, value in policy_of(one).items())
    assert "start" not in read_checkpoint(one), "the KL has faded, nothing is held to"


def test_a_checkpoint_without_its_start_is_refused(giver: Path, tmp_path: Path) -> None:
    chosen = config(warm_start=str(giver), start_kl=2.0, rounds=1, start_kl_anneal_steps=0)
    path = train_ppo_vectorized(chosen, checkpoints=Checkpoints(tmp_path / "c")).last_checkpoint
    assert path is not None
    content = read_checkpoint(path)
    saved = content.pop("start")
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="lacks the policy that start_kl holds to"):
        train_ppo_vectorized(replace(chosen, rounds=2), resume=path)
    torch.save(content | {"start": {**saved, "hidden": saved["hidden"][..., :3]}}, path)
    with pytest.raises(CheckpointError, match="does not fit this agent's start: hidden"):
        train_ppo_vectorized(replace(chosen, rounds=2), resume=path)


def held_agent(**changes: object) -> PPOAgent:
    layout, generator = discrete_layout(3), torch.Generator().manual_seed(0)
    settings = PPOConfig(start_kl=1.0, lr=0.01, head_names=layout.names, **changes)  # type: ignore[arg-type]
    return PPOAgent(ActorCritic(5, layout, generator=generator), settings, num_envs=2, num_steps=7, seed=0)


def learn(agent: PPOAgent, generator: torch.Generator) -> torch.Tensor:
    """One rollout and update; returns what the start said of the first step, which is always the same one."""
    agent.act(torch.full((2, 5), 3.0))
    assert agent.start is not None
    said = agent.start.logits[:, 0].clone()
    running = np.zeros(2, dtype=np.bool_)
    while True:
        agent.observe(torch.randn(2, generator=generator), running, running)
        observation = 3.0 + 2.0 * torch.randn(2, 5, generator=generator)
        if agent.ready:
            agent.update(observation)
            return said
        agent.act(observation)


def test_an_agent_that_is_held_is_saved_with_what_it_is_held_to(tmp_path: Path) -> None:
    one, other, generator = held_agent(), held_agent(), torch.Generator().manual_seed(5)
    one.hold_to_start()
    for _ in range(3):
        learn(one, generator)
    one.save(tmp_path / "held.pt")
    other.load(tmp_path / "held.pt")
    again = torch.Generator().set_state(generator.get_state())
    learn(one, generator)
    learn(other, again)
    theirs = other.policy.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in one.policy.state_dict().items())


def test_the_start_sees_through_the_statistics_that_it_began_with(tmp_path: Path) -> None:
    agent, generator = held_agent(normalize_observations=True), torch.Generator().manual_seed(5)
    learned = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=learned))
    agent.hold_to_start()
    said = [learn(agent, generator) for _ in range(3)]
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])
    agent.save(tmp_path / "held.pt")
    other = held_agent(normalize_observations=True)
    other.load(tmp_path / "held.pt")
    assert torch.equal(learn(other, generator), said[0])


# What a run gives


def test_a_run_gives_its_critic_and_the_unit_of_its_rewards(giver: Path) -> None:
    chosen = config(warm_start=str(giver), seed=3)
    require_warm_start(chosen)
    training = build(chosen)
    warm_start(training, chosen)
    saved = read_checkpoint(giver / "checkpoints" / "last.pt")
    ours = training.agent.policy.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in saved["policy"].items())
    assert training.agent.reward_normalizer.state_dict() == saved["reward_normalizer"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalize_rewards": False}, "normalize_rewards is False, and was True in the run"),
        ({"privileged_critic": False}, "privileged_critic is False, and was True in the run"),
        ({"hidden_size": 8}, "this run has 8 and 1"),
    ],
)
def test_a_run_of_other_units_is_refused(giver: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_warm_start(config(warm_start=str(giver), **changes))


@pytest.mark.parametrize(("name", "value"), [("start_kl", 0.5), ("start_critic_rounds", 2)])
def test_a_start_is_needed_to_be_held_to(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value} without a warm_start"):
        config(**{name: value})


def test_a_run_on_other_hosts_is_started_from(giver: Path) -> None:
    """Slots and blueprints may differ: no weight depends on how many there are."""
    chosen = config(warm_start=str(giver), suite="toy_slots")
    require_warm_start(chosen)
    training = build(chosen)
    warm_start(training, chosen)
    saved = policy_of(giver / "checkpoints" / "last.pt")
    assert torch.equal(training.agent.policy.state_dict()["lstm_ln.weight"], saved["lstm_ln.weight"])


def test_statistics_of_other_observations_are_refused(tmp_path: Path) -> None:
    esper.train(config(run_directory=tmp_path, run_name="scaled", rounds=1, normalize_observations=True))
    start = {"warm_start": str(tmp_path / "scaled"), "normalize_observations": True}
    require_warm_start(config(**start))
    with pytest.raises(ConfigError, match=r"suite is 'toy_slots', with \d+ numbers observed"):
        require_warm_start(config(**start, suite="toy_slots"))


@pytest.mark.parametrize("start", ["plateau", "cpu-v1"])
def test_what_knows_observations_as_they_are_does_not_start_a_run_that_scales_them(start: str) -> None:
    with pytest.raises(ConfigError, match=f"normalize_observations is True, and warm_start is '{start}'"):
        require_warm_start(config(warm_start=start, normalize_observations=True, hidden_size=64))


def test_an_agent_without_a_start_does_not_pretend_to_be_held(giver: Path) -> None:
    trainer = started(config(warm_start=str(giver), start_kl=0.5))
    trainer.agent.start = None
    with pytest.raises(RuntimeError, match=r"start_kl is 0\.5, and there is no start"):
        trainer._run_round(StopRequest())
