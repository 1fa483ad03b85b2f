"""`PPOAgent`: acting, observing and updating, and its checkpoints."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import SlotConfig
from esper.leyline.files import write_atomically
from esper.simic.agent.anomaly import AnomalyDetector
from esper.simic.agent.checkpoint import (
    CheckpointError,
    Plain,
    generator_from,
    optimizer_state,
    read_fitting_checkpoint,
    require_same_form,
    write_checkpoint,
)
from esper.simic.agent.losses import entropy_coefficient, entropy_floor, legal_counts
from esper.simic.agent.normalization import RewardNormalizer, RunningMeanStd
from esper.simic.agent.rollout_buffer import Decision, Outcome, Rollout, TamiyoRolloutBuffer, autocast
from esper.simic.agent.types import PPOUpdateMetrics
from esper.simic.agent.update import StartPolicy, build_optimizer, recurrent_epochs, run_update
from esper.simic.config.ppo import PPOConfig
from esper.tamiyo import Actor, ActorState, Policy, PolicyInputs, unwrap

LOW_ADVANTAGE_STD = 0.1
NON_FINITE_LIMIT = 3
"""Updates in a row that may not be finite before the run is stopped."""


class NonFiniteUpdateError(RuntimeError):
    """Three updates in a row were not finite."""


class PPOAgent:
    """Masked, factored PPO over `num_envs` environments, with memory or without.

    The whole loop:

    >>> agent = PPOAgent(policy, PPOConfig(gamma=0.99), num_envs=8, num_steps=128, seed=1)
    >>> while training:
    ...     actions = agent.act(observation, mask)                 # (env, head); no mask: all is legal
    ...     observation, reward, terminated, truncated = env.step(actions)
    ...     agent.observe(reward, terminated, truncated, final_observation=final)  # final: where truncated
    ...     if agent.ready:
    ...         metrics = agent.update(observation)

    `observation` (env, feature) is always the one to act on next: after an end, that of the new episode. What
    a truncated episode was stopped in goes to `final_observation`, and is bootstrapped from with its own
    recurrent state. The agent owns the recurrent state, the previous action and reward, the rollout, the
    optimiser, the normalisers and the random generators; `save` and `load` carry all of them, so that a
    resumed run on CPU repeats an uninterrupted one bit for bit. `actor` gives the trained policy for use.

    policy: an `ActorCritic`, `RecurrentActorCritic`, `GrowthPolicy` or your own `Policy`; it may be compiled.
    config: see `PPOConfig`.
    num_steps: steps per env between updates.
    seed: of the generators that sample actions and shuffle minibatches.
    slot_config: the environment's slots, compared with the policy's by name and order.
    failure_checkpoint: where to save when three updates in a row were not finite, before the error is raised.
    """

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig,
        *,
        num_envs: int,
        num_steps: int,
        seed: int,
        slot_config: SlotConfig | None = None,
        detector: AnomalyDetector | None = None,
        failure_checkpoint: Path | None = None,
    ) -> None:
        plain = unwrap(policy)
        unknown = set(config.entropy_coef_per_head) - set(plain.layout.names)
        if unknown:
            raise ValueError(
                f"entropy_coef_per_head names {sorted(unknown)}; the policy's heads are {plain.layout.names}"
            )
        self.policy = policy
        self.config = config
        self.n_epochs = recurrent_epochs(config) if plain.recurrent else config.n_epochs
        self.device = plain.device
        self.detector = AnomalyDetector() if detector is None else detector
        self.failure_checkpoint = failure_checkpoint
        self.optimizer = build_optimizer(plain, config)
        self.buffer = TamiyoRolloutBuffer(
            plain.layout,
            num_envs=num_envs,
            num_steps=num_steps,
            observation_size=plain.observation_size,
            hidden_size=plain.hidden_size,
            num_lstm_layers=plain.num_lstm_layers,
            stores_previous=plain.uses_previous,
            device=self.device,
        )
        self.require_layout(self.buffer)
        if slot_config is not None:
            self.require_slots(slot_config)
        self.state = ActorState.initial(plain, num_envs, self.device)
        self.reward_normalizer = RewardNormalizer(device=self.device)
        size = (plain.observation_size,)
        self.observation_stats = RunningMeanStd(size, self.device, fixed=plain.fixed_scales())
        normalizes = config.normalize_observations
        self._raw_observations = torch.zeros_like(self.buffer.observation) if normalizes else None
        self.action_generator = torch.Generator(self.device).manual_seed(seed)
        self.shuffle_generator = torch.Generator().manual_seed(seed + 1)
        self.updates = 0
        """Updates done."""
        self.env_steps = 0
        """Steps taken, over all envs."""
        self.non_finite_in_a_row = 0
        self.start: StartPolicy | None = None
        """What `start_kl` holds it to, from `hold_to_start` on."""
        self._begins = np.ones(num_envs, dtype=np.bool_)
        self._pending: tuple[ActorState, Decision] | None = None
        self._all_legal = plain.layout.all_legal(num_envs, self.device)

    @property
    def num_envs(self) -> int:
        """Environments that are stepped together."""
        return self.buffer.num_envs

    @property
    def ready(self) -> bool:
        """The rollout is full: call `update`."""
        return self.buffer.full

    def require_slots(self, slot_config: SlotConfig) -> None:
        """Raise unless these are the policy's slots, in its order."""
        ours = unwrap(self.policy).layout.slot_config
        if ours is None:
            raise ValueError("the policy points at no slots, the environment has some")
        ours.require_same(slot_config, ours="the policy", theirs="the environment")

    def require_layout(self, buffer: TamiyoRolloutBuffer) -> None:
        """Raise unless the buffer was made for this policy's heads and slots."""
        unwrap(self.policy).layout.require_same(buffer.layout, ours="the policy", theirs="the buffer")

    @torch.inference_mode()
    def act(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        """Choose in every env: observation (env, feature), mask (env, width) -> actions (env, head)."""
        if self._pending is not None:
            raise RuntimeError("act() was called twice: give the agent the outcome with observe() first")
        if self.buffer.full:
            raise RuntimeError("the rollout is full: call update() before the next act()")
        mask = self._all_legal if mask is None else mask.to(self.device, copy=True)
        raw, observation = observation, self._see(observation)
        plain = unwrap(self.policy)
        with autocast(self.config, self.device, cache=False):
            action, output, hidden = plain.choose(observation, mask, self.state, self.action_generator)
            if self.start is not None:
                self.start.look(raw.to(self.device, torch.float32), self.state, self.buffer.step)
        decision = Decision(observation, mask, action, output.logits, output.value, self._begins)
        self._pending = (self.state, decision)
        self.state = ActorState(hidden.float(), action, self.state.previous_reward)
        return action

    @torch.inference_mode()
    def decided_log_prob(self) -> NDArray[np.float64]:
        """(env,): log-probability of the whole action that `act` has just chosen, before its outcome is observed."""
        if self._pending is None:
            raise RuntimeError("decided_log_prob() without act(): there is no decision")
        _, decision = self._pending
        distribution = unwrap(self.policy).distribution(decision.logits, decision.mask)
        joint: NDArray[np.float64] = (
            distribution.evaluate(decision.action).log_prob.sum(-1).double().cpu().numpy()
        )
        return joint

    @torch.inference_mode()
    def observe(
        self,
        reward: Tensor,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        *,
        final_observation: Tensor | None = None,
        valid: NDArray[np.bool_] | None = None,
        shown_reward: Tensor | None = None,
    ) -> None:
        """What came of the last actions, in every env: reward (env,), and the two kinds of end.

        final_observation (env, feature) is read in truncated envs only. `valid` False marks a step to forget:
        neither the rollout nor the memory keeps it. If it ended its episode, in whatever way, the steps before it
        bootstrap from the state it was decided in. `shown_reward` (env,) is what a policy that sees its last
        reward is shown instead of it, where in use the reward is unknown.
        """
        if self._pending is None:
            raise RuntimeError("observe() without act(): there is no decision it belongs to")
        before, decision = self._pending
        reward = reward.to(self.device, torch.float32, copy=True)
        if reward.shape != (self.num_envs,):
            raise ValueError(f"reward has shape {tuple(reward.shape)}; expected ({self.num_envs},)")
        valid = np.ones(self.num_envs, dtype=np.bool_) if valid is None else valid
        stopped = bool((truncated & valid).any())
        if final_observation is None and stopped:
            raise ValueError("final_observation is missing: truncated envs are bootstrapped from it")
        # The buffer keeps a NaN, so that the update is skipped; the memory must outlive it.
        shown = reward if shown_reward is None else shown_reward.to(self.device, torch.float32, copy=True)
        self.state.previous_reward = torch.nan_to_num(shown, nan=0.0, posinf=0.0, neginf=0.0)
        lost = None if valid.all() else torch.from_numpy(~valid).to(self.device, non_blocking=True)
        if lost is not None:
            self.state.restore(before, lost)
        truncation_value = None
        if final_observation is not None and stopped:
            truncation_value = self._value_of(final_observation)
        self.buffer.add(before, decision, Outcome(reward, terminated, truncated, valid, truncation_value))
        self._pending = None
        self.env_steps += self.num_envs
        ended = terminated | truncated
        # After an invalid first step the episode has still to begin.
        self._begins = ended | (decision.begins & ~valid)
        if self.start is not None:
            self.start.forget(lost, torch.from_numpy(ended).to(self.device, non_blocking=True))
        if ended.any():
            self.state.reset(torch.from_numpy(ended).to(self.device, non_blocking=True))

    @torch.inference_mode()
    def begin_episodes(self, envs: NDArray[np.bool_] | None = None) -> None:
        """Every env was reset: forget the running episodes, and a rollout that was cut off in their middle.

        envs  (env,) where between two rollouts; None is everywhere, at any time
        """
        if envs is None:
            self._pending = None
            self.buffer.clear()
            envs = np.ones(self.num_envs, dtype=np.bool_)
        elif self._pending is not None or self.buffer.step:
            raise RuntimeError(
                "begin_episodes() of some envs in the middle of a rollout: it would join episodes"
            )
        self._begins = self._begins | envs
        self.state.reset(torch.from_numpy(envs).to(self.device))
        if self.start is not None:
            self.start.forget(None, torch.from_numpy(envs).to(self.device))

    @property
    def holds_to_start(self) -> bool:
        """Whether the KL from the policy it started with still counts."""
        return self.config.start_kl_at(self.updates) > 0.0

    def hold_to_start(self) -> StartPolicy:
        """From here on `start_kl` holds it to the policy as it is now; before the first step of an episode."""
        self.start = self._copied()
        return self.start

    def _copied(self) -> StartPolicy:
        return StartPolicy(
            unwrap(self.policy),
            num_envs=self.num_envs,
            num_steps=self.buffer.num_steps,
            statistics=self.observation_stats if self.config.normalize_observations else None,
        )

    def close_rollout(self) -> None:
        """End the rollout before it is full: `update` learns from the steps so far."""
        if self._pending is not None:
            raise RuntimeError(
                "close_rollout() between act() and observe(): the last decision has no outcome"
            )
        self.buffer.close()

    def update(self, observation: Tensor) -> PPOUpdateMetrics:
        """Learn from the full rollout; `observation` (env, feature) is the one after its last step."""
        self.buffer.require_full()
        if not self.buffer.valid.any():
            self.buffer.clear()
            raise ValueError("the rollout has no valid step to learn from; it is dropped, collect another")
        rollout = self._finish(observation)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr_at(self.updates)
        if self.holds_to_start and self.start is None:
            raise RuntimeError(
                f"start_kl is {self.config.start_kl}, and there is no start: call hold_to_start() before act()"
            )
        metrics = run_update(
            self.policy,
            self.optimizer,
            rollout,
            self.config,
            n_epochs=self.n_epochs,
            updates=self.updates,
            generator=self.shuffle_generator,
        )
        if self._raw_observations is not None:  # statistics move only after the update
            self.observation_stats.update(self._raw_observations.flatten(0, 1), self._valid().flatten())
        self.buffer.clear()
        self.updates += 1
        if not self.holds_to_start:
            self.start = None
        self._warn_on_small_advantages(metrics)
        anomalies = self.detector.check(
            ratio_max=metrics.ratio_max,
            ratio_min=metrics.ratio_min,
            explained_variance=metrics.value.explained_variance,
            has_numerical_issue=metrics.minibatches_skipped > 0,
        )
        self._count_non_finite(metrics.minibatches_skipped > 0)
        return replace(metrics, anomalies=anomalies)

    def actor(self, num_envs: int = 1, *, generator: torch.Generator | None = None) -> Actor:
        """The policy as it is now, for use (greedy without a generator)."""
        normalize = self.observation_stats.normalize if self.config.normalize_observations else None
        return Actor(unwrap(self.policy), num_envs, generator=generator, normalize=normalize)

    def get_entropy_floor(self, mask: Tensor | None = None) -> float | Tensor:
        """The floor of the entropy coefficient under a head's mask; a single mask gives a float."""
        floor = entropy_floor(self.config, *legal_counts(mask))
        return floor if floor.dim() else float(floor)

    def get_entropy_coef(self, mask: Tensor | None = None) -> float | Tensor:
        """The entropy coefficient now, under a head's mask; a single mask gives a float."""
        start = self.config.entropy_coef
        coefficient = entropy_coefficient(self.config, *legal_counts(mask), self.updates, start)
        return coefficient if coefficient.dim() else float(coefficient)

    def save(self, path: Path, *, extra: Mapping[str, Plain] | None = None) -> None:
        """Write everything, atomically. `extra` is for what the agent does not own: every env's state."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda partial: self.write(partial, extra=extra))

    def write(self, path: Path, *, extra: Mapping[str, Plain] | None = None) -> None:
        """Write everything to a file that the caller puts in place, as `Checkpoints.save` does."""
        if self._pending is not None or self.buffer.step:
            raise RuntimeError("save() in the middle of a rollout: save between update() and the next act()")
        write_checkpoint(path, self._parts(), extra)

    def load(self, path: Path) -> dict[str, Plain]:
        """Take up where `save` left off; returns `extra`. What does not fit is refused by name.

        What `start_kl` holds it to comes back too, if it was held to something.
        All is checked before anything is changed. The optimiser keeps its own options.
        """
        checkpoint = read_fitting_checkpoint(path, self._parts(), self.device)
        try:
            AnomalyDetector().load_state_dict(checkpoint["detector"])
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: the checkpoint's detector does not fit: {error}") from error
        optimizer = optimizer_state(path, self.optimizer, checkpoint["optimizer"])
        action_generator = generator_from(path, checkpoint, "action_generator", self.device)
        shuffle_generator = generator_from(path, checkpoint, "shuffle_generator", torch.device("cpu"))
        start = None
        if "start" in checkpoint:
            start = self._copied()
            require_same_form(path, "start", start.state_dict(), checkpoint["start"])
            start.load_state_dict(checkpoint["start"])
        unwrap(self.policy).load_state_dict(checkpoint["policy"])
        self.optimizer.load_state_dict(optimizer)
        self.reward_normalizer.load_state_dict(checkpoint["reward_normalizer"])
        self.observation_stats.load_state_dict(checkpoint["observation_stats"])
        self.detector.load_state_dict(checkpoint["detector"])
        self.state.load_state_dict(checkpoint["actor"])
        self.action_generator, self.shuffle_generator = action_generator, shuffle_generator
        counters = checkpoint["counters"]
        self.updates, self.env_steps = counters["updates"], counters["env_steps"]
        self.non_finite_in_a_row = counters["non_finite_in_a_row"]
        self._begins = checkpoint["begins"].cpu().numpy().copy()
        self._pending, self.start = None, start
        self.buffer.clear()
        return cast("dict[str, Plain]", checkpoint["extra"])

    def _parts(self) -> dict[str, Any]:
        """All of the agent that a checkpoint holds."""
        plain = unwrap(self.policy)
        layout, slots = plain.layout, plain.layout.slot_config
        return {
            "layout": {
                "slot_ids": None if slots is None else list(slots.slot_ids),
                "head_names": list(layout.names),
                "head_sizes": list(layout.sizes),
                "parents": dict(layout.parents),
                "relevance": layout.relevance.tolist(),
                "exploration_floor": plain.exploration_floor,
                "num_envs": self.num_envs,
            },
            "config": asdict(self.config),
            "policy": plain.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "reward_normalizer": self.reward_normalizer.state_dict(),
            "observation_stats": self.observation_stats.state_dict(),
            "detector": self.detector.state_dict(),
            "actor": self.state.state_dict(),
            "begins": torch.from_numpy(self._begins.copy()),
            "action_generator": self.action_generator.get_state(),
            "shuffle_generator": self.shuffle_generator.get_state(),
            "counters": {
                "updates": self.updates,
                "env_steps": self.env_steps,
                "non_finite_in_a_row": self.non_finite_in_a_row,
            },
            **({} if self.start is None else {"start": self.start.state_dict()}),
        }

    def _see(self, observation: Tensor) -> Tensor:
        expected = (self.num_envs, unwrap(self.policy).observation_size)
        if tuple(observation.shape) != expected:
            raise ValueError(f"observation has shape {tuple(observation.shape)}; expected {expected}")
        # A copy: the rollout keeps it, and the caller may reuse its buffer.
        observation = observation.to(self.device, torch.float32, copy=True)
        if self._raw_observations is None:
            return observation
        if not self.buffer.full and self._pending is None:
            self._raw_observations[:, self.buffer.step] = observation
        return self.observation_stats.normalize(observation)

    def _valid(self) -> Tensor:
        """(env, step) bool, on the device."""
        return torch.from_numpy(self.buffer.valid.copy()).to(self.device, non_blocking=True)

    def _value_of(self, observation: Tensor) -> Tensor:
        """V of the states after the last step, with the recurrent state that belongs to them."""
        inputs = PolicyInputs(self._see(observation), self.state.previous_action, self.state.previous_reward)
        with autocast(self.config, self.device, cache=False):
            output, _ = unwrap(self.policy).step(inputs, self.state.hidden)
        return output.value

    def _finish(self, observation: Tensor) -> Rollout:
        with torch.inference_mode():
            last_value = self._value_of(observation)
        reward = self.buffer.reward
        if self.config.normalize_rewards:
            self.reward_normalizer.update(reward, self._valid())
            reward = self.reward_normalizer.normalize(reward)
        return self.buffer.finish(
            last_value,
            unwrap(self.policy),
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
            reward=reward,
            start_logits=None if self.start is None else self.start.logits,
        )

    def _warn_on_small_advantages(self, metrics: PPOUpdateMetrics) -> None:
        std = metrics.value.advantage_std_prenorm
        if self.config.normalize_advantages and std < LOW_ADVANTAGE_STD:
            warnings.warn(
                f"advantage std before normalisation is {std:.3g} (< {LOW_ADVANTAGE_STD}): normalising "
                "amplifies noise; check the reward's scale",
                RuntimeWarning,
                stacklevel=3,
            )

    def _count_non_finite(self, non_finite: bool) -> None:
        self.non_finite_in_a_row = self.non_finite_in_a_row + 1 if non_finite else 0
        if self.non_finite_in_a_row < NON_FINITE_LIMIT:
            return
        where = "no failure_checkpoint was configured"
        if self.failure_checkpoint is not None:
            self.save(self.failure_checkpoint)
            where = f"the agent before them is saved in {self.failure_checkpoint}"
        raise NonFiniteUpdateError(
            f"{self.non_finite_in_a_row} updates in a row had NaN or Inf in ratios, loss or gradient norm "
            f"and were not applied; {where}. Look at observations and rewards first, then lower lr"
        )
