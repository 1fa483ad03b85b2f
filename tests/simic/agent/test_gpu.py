"""What must hold on a CUDA device. No hypothesis, no Gymnasium here: the GPU machine has neither."""

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from cuda_waits import waits
from esper.simic.agent import PPOAgent, PPOConfig, PPOUpdateMetrics
from esper.simic.agent.rollout_buffer import Rollout, minibatches
from esper.simic.agent.update import LossConstants, compute_loss, run_update
from esper.tamiyo import MaskedCategorical, PolicyInputs
from synthetic_growth import SyntheticGrowth, growth_policy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

ENVS, STEPS = 8, 24


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """TF32 is a choice of speed over agreement; here agreement is asked for."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.fp32_precision, cudnn.fp32_precision
    matmul.fp32_precision = cudnn.fp32_precision = "ieee"
    yield
    matmul.fp32_precision, cudnn.fp32_precision = before


def filled_agent(
    device: str, config: PPOConfig, envs: int = ENVS, steps: int = STEPS
) -> tuple[PPOAgent, Rollout]:
    policy = growth_policy(3, 5, torch.Generator().manual_seed(0)).to(device)
    agent = PPOAgent(policy, config, num_envs=envs, num_steps=steps, seed=0)
    source = SyntheticGrowth(
        policy, envs, torch.Generator().manual_seed(1), end_probability=0.05, device=device
    )
    return agent, agent._finish(source.fill(agent))


def move(rollout: Rollout, device: str) -> Rollout:
    """The same rollout on another device."""
    inputs = rollout.inputs
    return replace(
        rollout,
        inputs=PolicyInputs(
            inputs.observation.to(device),
            inputs.previous_action.to(device),
            inputs.previous_reward.to(device),
        ),
        mask=rollout.mask.to(device),
        action=rollout.action.to(device),
        log_prob=rollout.log_prob.to(device),
        forced=rollout.forced.to(device),
        value=rollout.value.to(device),
        advantage=rollout.advantage.to(device),
        returns=rollout.returns.to(device),
        initial_hidden=rollout.initial_hidden.to(device),
    )


def update(agent: PPOAgent, rollout: Rollout, epochs: int = 2) -> PPOUpdateMetrics:
    return run_update(
        agent.policy,
        agent.optimizer,
        rollout,
        agent.config,
        n_epochs=epochs,
        updates=0,
        generator=agent.shuffle_generator,
    )


def test_cpu_and_gpu_updates_agree() -> None:
    config = PPOConfig(target_kl=None)
    on_cpu, rollout = filled_agent("cpu", config)
    on_gpu, _ = filled_agent("cuda", config)
    on_gpu.policy.load_state_dict(on_cpu.policy.state_dict())
    one, two = update(on_cpu, rollout), update(on_gpu, move(rollout, "cuda"))
    assert one.policy_loss == pytest.approx(two.policy_loss, abs=1e-4)
    assert one.value_loss == pytest.approx(two.value_loss, rel=1e-4)
    for name, parameter in on_cpu.policy.named_parameters():
        other = dict(on_gpu.policy.named_parameters())[name]
        torch.testing.assert_close(parameter, other.cpu(), atol=1e-4, rtol=1e-4, msg=name)


def test_ratios_start_at_one_on_the_gpu() -> None:
    agent, rollout = filled_agent("cuda", PPOConfig(debug=True))
    update(agent, rollout, epochs=1)


def test_bf16_gives_every_head_a_finite_gradient() -> None:
    config = PPOConfig(precision="bf16", target_kl=None, num_minibatches=1)
    # A forward without gradients inside an outer autocast fills the cast cache: the update must not see it.
    with torch.autocast("cuda", dtype=torch.bfloat16):
        agent, rollout = filled_agent("cuda", config)
        metrics = update(agent, rollout)
    assert metrics.minibatches_skipped == 0
    assert metrics.minibatches_applied == 2
    for head, norm in metrics.head_grad_norms.items():
        assert norm is not None, head
        assert 0.0 < norm < float("inf"), head


def test_the_gate_skips_a_poisoned_update_without_asking_the_host() -> None:
    agent, rollout = filled_agent("cuda", PPOConfig(target_kl=None, num_minibatches=1))
    update(agent, rollout, epochs=1)  # the optimiser's state exists now
    before = {name: p.clone() for name, p in agent.policy.named_parameters()}
    steps = deepcopy([state["step"].item() for state in agent.optimizer.state.values()])
    poisoned = rollout.returns.clone()
    poisoned[0] = torch.nan
    metrics = update(agent, replace(rollout, returns=poisoned), epochs=1)
    assert (metrics.minibatches_applied, metrics.minibatches_skipped) == (0, 1)
    assert all(torch.equal(before[name], p) for name, p in agent.policy.named_parameters())
    assert steps == [state["step"].item() for state in agent.optimizer.state.values()]


def test_kl_stops_the_gpu_update_too() -> None:
    config = PPOConfig(lr=0.05, target_kl=0.01, num_minibatches=8)
    agent, rollout = filled_agent("cuda", config)
    metrics = update(agent, rollout, epochs=1)
    assert metrics.kl_stopped
    assert 1 <= metrics.minibatches_applied < 8


def count_syncs(agent: PPOAgent, rollout: Rollout, epochs: int) -> int:
    with waits("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        update(agent, rollout, epochs)
    return sum("synchronizing" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("epochs", [1, 2])
def test_at_most_one_sync_per_epoch(epochs: int) -> None:
    agent, rollout = filled_agent("cuda", PPOConfig(target_kl=None))
    update(agent, rollout, epochs)
    assert count_syncs(agent, rollout, epochs) <= epochs


def test_a_loss_can_be_computed_without_any_sync() -> None:
    agent, rollout = filled_agent("cuda", PPOConfig())
    constants = LossConstants.of(agent.policy, agent.config, agent.device)
    batches = list(minibatches(rollout, 2, recurrent=True, generator=agent.shuffle_generator))
    compute_loss(agent.policy, batches[0], agent.config, constants, 0)
    with waits("error"):
        compute_loss(agent.policy, batches[1], agent.config, constants, 0).loss.backward()


def test_the_optimiser_is_fused() -> None:
    agent, _ = filled_agent("cuda", PPOConfig())
    assert agent.optimizer.defaults["fused"]


def test_samples_on_the_gpu_are_legal() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    mask = torch.rand(997, 13, generator=generator, device="cuda") < 0.3
    mask[:, 5] |= ~mask.any(-1)
    drawn = MaskedCategorical(torch.zeros(997, 13, device="cuda"), mask).sample(generator)
    assert mask.gather(1, drawn.unsqueeze(1)).all()


def test_a_checkpoint_moves_between_devices(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("gpu") / "agent.pt"
    config = PPOConfig(normalize_rewards=True, normalize_observations=True)
    policy = growth_policy(3, 5, torch.Generator().manual_seed(0)).to("cuda")
    agent = PPOAgent(policy, config, num_envs=ENVS, num_steps=STEPS, seed=0)
    source = SyntheticGrowth(policy, ENVS, torch.Generator().manual_seed(1), device="cuda")
    agent.update(source.fill(agent))
    agent.save(path)
    again = PPOAgent(
        growth_policy(3, 5, torch.Generator().manual_seed(7)).to("cuda"),
        config,
        num_envs=ENVS,
        num_steps=STEPS,
        seed=9,
    )
    again.load(path)
    assert again.reward_normalizer.mean.is_cuda
    assert again.observation_stats.mean.is_cuda
    assert all(
        torch.equal(one, two)
        for one, two in zip(agent.policy.parameters(), again.policy.parameters(), strict=True)
    )


def test_a_cpu_checkpoint_continues_on_the_gpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The optimiser keeps the flags of the device it runs on: the gate needs a fused one."""
    path = tmp_path_factory.mktemp("cpu") / "agent.pt"
    agents = []
    for device in ("cpu", "cuda"):
        policy = growth_policy(3, 5, torch.Generator().manual_seed(0)).to(device)
        agent = PPOAgent(policy, PPOConfig(target_kl=None), num_envs=ENVS, num_steps=STEPS, seed=0)
        agents.append((agent, SyntheticGrowth(policy, ENVS, torch.Generator().manual_seed(1), device=device)))
    (on_cpu, source), (on_gpu, other) = agents
    on_cpu.update(source.fill(on_cpu))
    on_cpu.save(path)
    on_gpu.load(path)
    assert on_gpu.update(other.fill(on_gpu)).minibatches_applied > 0
