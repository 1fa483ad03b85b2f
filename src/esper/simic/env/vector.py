"""Many growth episodes as one Gymnasium vector environment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import ActionSpec, EpisodeFinished, Situation, SlotReading
from esper.simic.env.episodes import Episodes, Flags, Observation, StepResult
from esper.simic.env.single import (
    RENDER_MODES,
    Frame,
    Info,
    OverEpisodes,
    render_host,
    require_options,
    require_render_mode,
)
from esper.simic.env.spaces import Actions, action_space, observation_space
from esper.simic.reward import RewardTelemetry


class GrowthVectorEnv(OverEpisodes, VectorEnv[Observation, Actions, NDArray[Any]]):
    """Hosts of one world, grown by one action each per step.

    >>> envs = GrowthVectorEnv(Episodes(world, space, cases, num_envs=8, horizon=20, baselines=baselines))
    >>> observation, info = envs.reset(seed=1)
    >>> observation, reward, terminated, truncated, info = envs.step(actions)  # (env, head), HEAD_NAMES order

    A step applies the operation, ticks, trains one epoch, validates, governs, rewards, observes. The horizon
    terminates, with the settled model; so does a rollback by the governor. An env that ended is begun anew in
    the same step: `info["final_obs"]` and `info["final_info"]` are of the end, whose "summary" is an
    `EpisodeFinished`. `info["action_mask"]` (env, width) is the flat mask to act under next, `info["shown_reward"]`
    (env,) what a policy that sees its last reward is shown: in use there is no baseline, but a forecast.
    An episode whose worker died is truncated with `info["lost"]`: that step is not to be learned from, and the
    episode has no state after it.

    on_close  called by `close`, such as to stop workers that nothing else uses
    """

    metadata = {"render_modes": list(RENDER_MODES), "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        episodes: Episodes,
        *,
        render_mode: str | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.episodes, self.num_envs = episodes, episodes.num_envs
        self.render_mode = require_render_mode(render_mode)
        self._on_close = on_close
        self._last_step: StepResult | None = None
        self.single_observation_space = observation_space(self.space)
        self.single_action_space = action_space(self.space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    # Gymnasium

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Info | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in every env.

        seed     env i gets seed + i, or seeds one by one; without, the generators go on (or are drawn)
        options  "case" and "host_seed", one for all envs or one each, instead of drawn ones
        """
        self._seed(seed)
        given = require_options(options)
        cases = _each(given, "case", self.num_envs)
        host_seeds = _each(given, "host_seed", self.num_envs)
        self.episodes.begin_many(
            [
                self.episodes.draw(env_idx, case=cases[env_idx], host_seed=host_seeds[env_idx])
                for env_idx in range(self.num_envs)
            ]
        )
        return self._observation(), self._info()

    def step(self, actions: Actions) -> tuple[Observation, NDArray[np.float64], Flags, Flags, Info]:
        """One action (env, head) in every env; what ended is begun anew."""
        result = self._last_step = self.episodes.step(np.asarray(actions, dtype=np.int64))
        info = self._begin_anew(result.finished) if result.finished else {}
        for env_idx, outcome in enumerate(result.outcomes):
            if outcome.illegal is not None:
                info = self._add_info(info, {"illegal": outcome.illegal}, env_idx)
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        info |= {"lost": result.lost, "_lost": everywhere}
        info |= {"shown_reward": result.shown_rewards, "_shown_reward": everywhere}
        reward = result.components.total
        return self._observation(), reward, result.terminated, result.lost.copy(), info | self._info()

    def render(self) -> tuple[Frame, ...] | None:
        """A frame of every env in `render_mode`."""
        mode = self.render_mode
        if mode is None:
            return None
        return tuple(render_host(self.episodes.host(env_idx), mode) for env_idx in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  Gymnasium's signature
        """Stop what was started for these environments alone."""
        if self._on_close is not None:
            self._on_close()

    # Beyond Gymnasium

    @property
    def last_step(self) -> StepResult:
        """What came of the last step in every env, before any of them began anew."""
        if self._last_step is None:
            raise RuntimeError("no step has been taken yet")
        return self._last_step

    @property
    def telemetry(self) -> RewardTelemetry:
        """Components of the reward, averaged on demand."""
        return self.episodes.telemetry

    @property
    def flat_observation(self) -> Tensor:
        """(env, feature): the current observation, host | slots | blueprints, in memory that `step` overwrites."""
        return self.episodes.observer.flat

    def slot_readings(self) -> tuple[Mapping[str, SlotReading], ...]:
        """Of every env: slot -> its numbers now."""
        hosts = [self.episodes.host(env_idx) for env_idx in range(self.num_envs)]
        return tuple(dict(zip(host.slot_config.slot_ids, host.readings(), strict=True)) for host in hosts)

    def action_masks(self) -> NDArray[np.bool_]:
        """(env, layout.width), True where legal."""
        return self.episodes.masks().copy()

    def sample_legal(self, rng: np.random.Generator) -> Actions:
        """A random legal action in every env: head after head, uniform over what is legal."""
        return self.episodes.choices.sample(self.episodes.masks(), rng)

    def situations(self) -> tuple[Situation, ...]:
        """Every env in words, for rule-based policies."""
        return tuple(self.episodes.situation(env_idx) for env_idx in range(self.num_envs))

    def encode(self, actions: Sequence[ActionSpec]) -> Actions:
        """What rule-based policies said, one a host, as `step` takes it."""
        return np.stack([self.episodes.encode(env_idx, action) for env_idx, action in enumerate(actions)])

    def replace_lost(self, env_idxs: Sequence[int]) -> tuple[Observation, Info]:
        """Begin anew where hosts were lost between two steps, as `HostsLost` says; returns what `step` would."""
        finished = {env_idx: self.episodes.finished(env_idx, lost=True) for env_idx in env_idxs}
        info = self._begin_anew(finished)
        return self._observation(), info | self._info()

    def load_state_dict(self, state: Mapping[str, object]) -> tuple[Observation, Info]:
        """Go on from a saved state; returns what `reset` or `step` had returned there."""
        self.episodes.load_state_dict(state)
        return self._observation(), self._info()

    # Helpers

    def _seed(self, seed: int | Sequence[int] | None) -> None:
        if seed is None:
            if self.episodes.seeded:
                return
            seed = int(self.np_random.integers(2**31))
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + env_idx for env_idx in range(self.num_envs)]
        seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed has {len(seeds)} entries; expected one for each of {self.num_envs} envs")
        self._np_random_seed = seeds[0]
        self._np_random = np.random.default_rng(seeds[0])
        for env_idx, one in enumerate(seeds):
            self.episodes.seed(env_idx, one)

    def _begin_anew(self, finished: Mapping[int, EpisodeFinished]) -> Info:
        """Begin the next episode of these envs; returns how the last one ended."""
        info: Info = {}
        last = self.episodes.observe()
        for env_idx, summary in finished.items():
            final = {name: part[env_idx].copy() for name, part in last.items()}
            info = self._add_info(info, {"final_obs": final, "final_info": {"summary": summary}}, env_idx)
        self.episodes.begin_many([self.episodes.draw(env_idx) for env_idx in finished])
        return info

    def _observation(self) -> Observation:
        return {name: part.copy() for name, part in self.episodes.observe().items()}

    def _info(self) -> Info:
        return {"action_mask": self.action_masks(), "_action_mask": np.ones(self.num_envs, dtype=np.bool_)}


def _each(options: Info, name: str, num_envs: int) -> list[Any]:
    """An option for every env: None, one value for all, or a list."""
    value = options.get(name)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return [value] * num_envs
    if len(value) != num_envs:
        raise ValueError(f"options[{name!r}] has {len(value)} entries; expected {num_envs}")
    return list(value)
