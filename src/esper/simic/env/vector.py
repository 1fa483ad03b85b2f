"""Many growth episodes as one Gymnasium vector environment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from esper.leyline import ActionSpec, Baselines, DecisionSettings, Settle, Situation, SlotReading, World
from esper.simic.env.cases import CaseSource, as_source
from esper.simic.env.episodes import (
    ANY_HOST_SEED,
    Episodes,
    Flags,
    Observation,
    OnIllegal,
    StepResult,
)
from esper.simic.env.rendering import RENDER_MODES, Frame, render_host, require_render_mode
from esper.simic.env.spaces import Actions, action_space, observation_space
from esper.simic.reward import RewardConfig, RewardTelemetry
from esper.simic.timing import Stopwatch
from esper.tamiyo.actions import GrowthSpace
from esper.tamiyo.layout import ActionLayout

Info = dict[str, Any]  # Gymnasium's own type for it


class GrowthVectorEnv(VectorEnv[Observation, Actions, NDArray[Any]]):
    """Hosts of one world, grown by one action each per step.

    >>> envs = GrowthVectorEnv(world, space, suite, num_envs=8, horizon=20, controls=controls)
    >>> observation, info = envs.reset(seed=1)
    >>> observation, reward, terminated, truncated, info = envs.step(actions)  # (env, head), HEAD_NAMES order

    A step applies the operation, ticks, trains one epoch, validates, governs, rewards, observes. The horizon
    terminates, with the settled model; so does a rollback by the governor. An env that ended is begun anew in
    the same step: `info["final_obs"]` and `info["final_info"]` tell of the end, whose "summary" is an
    `EpisodeFinished`. `info["action_mask"]` (env, width) is the flat mask to act under next.
    An episode whose worker died is truncated with `info["lost"]`: its steps are not to be learned from.

    cases       a suite to draw from, or cases; each env draws with a generator of its own
    on_illegal  "raise", or "noop": WAIT is executed, and `info["illegal"]` says what was wrong
    decisions   what may be decided, and when validation is on a plateau
    on_close    what `close` is to do besides, such as stopping workers that nobody else uses
    host_seeds  host seeds are drawn below this number; few of them, with few cases, make controls cheap
    """

    metadata = {"render_modes": list(RENDER_MODES), "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        world: World,
        space: GrowthSpace,
        cases: CaseSource | Sequence[str] | str,
        *,
        num_envs: int,
        horizon: int,
        reward: RewardConfig | None = None,
        controls: Baselines | None = None,
        on_illegal: OnIllegal = "raise",
        settle: Settle = "worth",
        decisions: DecisionSettings = DecisionSettings(),
        host_seeds: int = ANY_HOST_SEED,
        render_mode: str | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.render_mode = require_render_mode(render_mode)
        self._on_close = on_close
        self.episodes = Episodes(
            world,
            space,
            as_source(cases),
            num_envs=num_envs,
            horizon=horizon,
            reward=RewardConfig() if reward is None else reward,
            controls=controls,
            on_illegal=on_illegal,
            settle=settle,
            decisions=decisions,
            host_seeds=host_seeds,
        )
        self.single_observation_space = observation_space(space)
        self.single_action_space = action_space(space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self._last_step: StepResult | None = None

    # Gymnasium

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Info | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in every env.

        seed     env i gets seed + i, or seeds one by one; without, the generators go on (or are drawn)
        options  "case" and "host_seed", one for all envs or one each, instead of drawn ones
        """
        self._seed(seed)
        cases = _each(options, "case", self.num_envs)
        host_seeds = _each(options, "host_seed", self.num_envs)
        self.episodes.begin_many(
            [
                self.episodes.draw(env_idx, case=cases[env_idx], host_seed=host_seeds[env_idx])
                for env_idx in range(self.num_envs)
            ]
        )
        return self._observation(), self._info()

    def step(self, actions: Actions) -> tuple[Observation, NDArray[np.float64], Flags, Flags, Info]:
        result = self._last_step = self.episodes.step(np.asarray(actions, dtype=np.int64))
        ended = result.ended
        info: Info = {}
        if ended.any():
            last = self.episodes.observe()
            for env_idx in map(int, np.flatnonzero(ended)):
                final = {name: part[env_idx].copy() for name, part in last.items()}
                ended_with = {"final_obs": final, "final_info": {"summary": result.finished[env_idx]}}
                info = self._add_info(info, ended_with, env_idx)
            self.episodes.begin_many([self.episodes.draw(int(env_idx)) for env_idx in np.flatnonzero(ended)])
        for env_idx, outcome in enumerate(result.outcomes):
            if outcome.illegal is not None:
                info = self._add_info(info, {"illegal": outcome.illegal}, env_idx)
        info |= {"lost": result.lost, "_lost": np.ones(self.num_envs, dtype=np.bool_)}
        reward = result.components.total
        return self._observation(), reward, result.terminated, result.lost.copy(), info | self._info()

    def render(self) -> tuple[Frame, ...] | None:
        """A frame of every env in `render_mode`."""
        mode = self.render_mode
        if mode is None:
            return None
        return tuple(render_host(self.episodes.host(env_idx), mode) for env_idx in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002  Gymnasium's signature
        if self._on_close is not None:
            self._on_close()

    # Beyond Gymnasium

    @property
    def space(self) -> GrowthSpace:
        return self.episodes.space

    @property
    def action_layout(self) -> ActionLayout:
        return self.episodes.space.action_layout

    @property
    def last_step(self) -> StepResult:
        """What came of the last step in every env, before any of them began anew."""
        if self._last_step is None:
            raise RuntimeError("no step has been taken yet")
        return self._last_step

    @property
    def stopwatch(self) -> Stopwatch:
        """Seconds spent in the parts of a step; a training loop adds its own parts."""
        return self.episodes.stopwatch

    @property
    def horizon(self) -> int:
        """Epochs of an episode."""
        return self.episodes.horizon

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

    def require_layout(self, layout: ActionLayout, *, theirs: str = "the policy") -> None:
        """Raise unless a policy with this layout has our slots, in our order, and our heads."""
        self.episodes.require_layout(layout, theirs=theirs)

    def state_dict(self) -> dict[str, object]:
        """Everything, mid-episode; what `load_state_dict` restores goes on bit for bit."""
        return self.episodes.state_dict()

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

    def _observation(self) -> Observation:
        return {name: part.copy() for name, part in self.episodes.observe().items()}

    def _info(self) -> Info:
        return {"action_mask": self.action_masks(), "_action_mask": np.ones(self.num_envs, dtype=np.bool_)}


def _each(options: Info | None, name: str, num_envs: int) -> list[Any]:
    """An option for every env: None, one value for all, or a list."""
    unknown = set(options or {}) - {"case", "host_seed"}
    if unknown:
        raise ValueError(f"options has {', '.join(sorted(unknown))}; expected case, host_seed")
    value = (options or {}).get(name)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return [value] * num_envs
    if len(value) != num_envs:
        raise ValueError(f"options[{name!r}] has {len(value)} entries; expected {num_envs}")
    return list(value)
