"""Growth episodes as Gymnasium environments, one or many at a time, and a host as text or as a picture."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from esper.kasmina.drawing import Station, describe_slot, draw_stations
from esper.leyline import ActionSpec, EpisodeFinished, HostProtocol, Situation, SlotReading
from esper.simic.env.episodes import Episodes, Flags, Observation, StepResult
from esper.simic.reward import RewardTelemetry
from esper.tamiyo.actions import Actions, GrowthSpace
from esper.tamiyo.features import BOUND, observation_parts
from esper.tamiyo.layout import ActionLayout

Frame: TypeAlias = NDArray[np.uint8] | str
RENDER_MODES = ("rgb_array", "ansi")
_DPI = 100


def require_render_mode(mode: str | None) -> str | None:
    """The mode itself; raises for one that does not exist."""
    if mode is not None and mode not in RENDER_MODES:
        raise ValueError(f"render_mode is {mode!r}; expected one of {', '.join(RENDER_MODES)}, or None")
    return mode


def render_host(host: HostProtocol, mode: str) -> Frame:
    """Text for "ansi", a picture for "rgb_array"."""
    return host_text(host) if mode == "ansi" else host_picture(host)


def host_text(host: HostProtocol) -> str:
    """One line for the host, one per slot."""
    names = host.slot_config.slot_ids
    width = max(map(len, names))
    slots = [
        f"  {name:{width}}  {describe_slot(slot)}" for name, slot in zip(names, host.snapshots(), strict=True)
    ]
    return "\n".join([headline(host), *slots])


def headline(host: HostProtocol) -> str:
    """Epoch, validation and parameters in one line."""
    report = host.report
    accuracy = "unknown" if report.validation_accuracy is None else f"{report.validation_accuracy:.3f}"
    return (
        f"epoch {report.epoch}: validation accuracy {accuracy}, loss {report.validation_loss:.3f}; "
        f"host {host.host_parameters:,} parameters, grown {host.added_parameters:,}"
    )


def host_picture(host: HostProtocol) -> NDArray[np.uint8]:
    """(height, width, 3) in 0..255."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    stations = [
        Station(slot.name, f"{slot.layout} x {slot.channels}", None, slot) for slot in host.snapshots()
    ]
    figure = Figure(figsize=(9.0, 0.62 * len(stations) + 0.8), facecolor="white", dpi=_DPI)
    canvas = FigureCanvasAgg(figure)
    draw_stations(figure, stations, headline(host))
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return pixels[..., :3].copy()


def observation_space(space: GrowthSpace) -> gym.spaces.Dict:
    """host, slots and blueprints, all bounded."""
    return gym.spaces.Dict(
        {
            name: gym.spaces.Box(-BOUND, BOUND, shape, np.float32)
            for name, shape in observation_parts(space).items()
        }
    )


def action_space(space: GrowthSpace) -> gym.spaces.MultiDiscrete:
    """One choice per head, in HEAD_NAMES order."""
    return gym.spaces.MultiDiscrete(np.array(space.action_layout.sizes, dtype=np.int64))


Info = dict[str, Any]  # Gymnasium's own type for it


class OverEpisodes:
    """What both Gymnasium environments are: a shell around `Episodes`."""

    episodes: Episodes

    @property
    def space(self) -> GrowthSpace:
        """Slots and blueprints of all hosts."""
        return self.episodes.space

    @property
    def action_layout(self) -> ActionLayout:
        """Heads and their choices."""
        return self.episodes.space.action_layout

    def require_layout(self, layout: ActionLayout, *, theirs: str = "the policy") -> None:
        """Raise unless a policy with this layout has our slots, in our order, and our heads."""
        self.episodes.space.action_layout.require_same(layout, ours="the environment", theirs=theirs)

    def state_dict(self) -> dict[str, object]:
        """Everything, mid-episode; what `load_state_dict` restores goes on bit for bit."""
        return self.episodes.state_dict()


def require_options(options: Info | None) -> Info:
    """The options of a reset, which may have "case" and "host_seed", of all envs or one for each."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ValueError(f"options is {options!r}; expected a dict with case or host_seed")
    unknown = set(options) - {"case", "host_seed"}
    if unknown:
        raise ValueError(f"options has {', '.join(sorted(map(str, unknown)))}; expected case, host_seed")
    for case in _all_of(options.get("case")):
        if not isinstance(case, str | None):
            raise ValueError(f"options['case'] is {case!r}; expected a text such as 'mnist1d:noise=0.2'")
    for seed in _all_of(options.get("host_seed")):
        whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= int(seed) < 2**63
        if seed is not None and not whole:
            raise ValueError(f"options['host_seed'] is {seed!r}; expected a whole number from 0 to 2**63 - 1")
    return options


def _all_of(value: object) -> Sequence[object]:
    return list(value) if isinstance(value, list | tuple | np.ndarray) else [value]


def require_seed(seed: object) -> int:
    """An rng seed as it is to be."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed is {seed!r}; expected a whole number >= 0, or one for each of several envs")
    return int(seed)


def require_choices(actions: object) -> Actions:
    """Numbers of choices: what is no whole number would be cut down to one."""
    chosen = np.asarray(actions)
    if chosen.dtype.kind not in "iu":
        raise ValueError(
            f"the action is {actions!r}; expected whole numbers, that of the choice of each head"
        )
    return chosen.astype(np.int64, copy=False)


class GrowthEnv(OverEpisodes, gym.Env[Observation, Actions]):
    """One host, grown by one action a step: `GrowthVectorEnv` with one env and without autoreset.

    Made by name, illegal actions are WAITs with `info["illegal"]`, since other libraries sample without masks.
    The last step's `info["summary"]` is an `EpisodeFinished`, `info["reward"]` has the reward's components,
    `info["shown_reward"]` what a policy that sees its last reward is shown.
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(self, episodes: Episodes, *, render_mode: str | None = None) -> None:
        if episodes.num_envs != 1:
            raise ValueError(f"episodes has {episodes.num_envs} envs; expected 1")
        self.render_mode = require_render_mode(render_mode)
        self.episodes = episodes
        self.observation_space: gym.spaces.Dict = observation_space(self.space)  # type: ignore[assignment]
        self.action_space = action_space(self.space)
        self._seeded = self._over = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        """options: "case" and "host_seed", instead of drawn ones."""
        given = require_options(options)
        drawn_instead = {name: _each(given, name, 1)[0] for name in given}
        super().reset(seed=None if seed is None else require_seed(seed))
        if seed is not None or not self._seeded:
            self.episodes.seed(0, int(self.np_random.integers(2**31)) if seed is None else seed)
            self._seeded = True
        self.episodes.begin(0, **drawn_instead)
        self._over = False
        return self._observation(), self._info()

    def step(self, action: Actions) -> tuple[Observation, float, bool, bool, Info]:
        """One action (head,); an episode whose worker died is truncated, with `info["lost"]`."""
        if self._over:
            raise RuntimeError("the episode is over: call reset() before the next step()")
        chosen, heads = require_choices(action), self.episodes.space.action_layout.names
        if chosen.shape != (len(heads),):
            raise ValueError(
                f"action has shape {chosen.shape}; expected ({len(heads)},), for {', '.join(heads)}"
            )
        result = self.episodes.step(chosen[np.newaxis])
        lost = bool(result.lost[0])
        info = self._info() | {"reward": result.components.of(0), "lost": lost}
        info["shown_reward"] = float(result.shown_rewards[0])
        illegal = result.outcomes[0].illegal
        if illegal is not None:
            info["illegal"] = illegal
        self._over = bool(result.ended[0])
        if self._over:
            info["summary"] = result.finished[0]
        reward = float(result.components.total[0])
        return self._observation(), reward, bool(result.terminated[0]), lost, info

    def render(self) -> Frame | None:
        """A frame in `render_mode`."""
        if self.render_mode is None:
            return None
        return render_host(self.episodes.host(0), self.render_mode)

    def legal_mask(self) -> NDArray[np.bool_]:
        """(layout.width,), True where legal: a row for each choice of the head that a head depends on."""
        mask: NDArray[np.bool_] = self.episodes.masks()[0].copy()
        return mask

    def action_masks(self) -> NoReturn:
        """Refuse sb3-contrib, which asks by this name for masks of heads that do not depend on each other."""
        raise TypeError(
            "sb3-contrib would misread the masks of a GrowthEnv, where what a head may choose depends on the heads "
            "before it: give MaskablePPO esper.FlatGrowthEnv(env.unwrapped). The mask itself is legal_mask()"
        )

    def sample_legal(self, rng: np.random.Generator) -> Actions:
        """(head,): a random legal action, head after head, uniform over what is legal."""
        action: Actions = self.episodes.choices.sample(self.episodes.masks(), rng)[0]
        return action

    def situation(self) -> Situation:
        """The host in words, for a rule-based policy."""
        return self.episodes.situation(0)

    def encode(self, action: ActionSpec) -> Actions:
        """What a rule-based policy said, as `step` takes it."""
        return self.episodes.encode(0, action)

    def load_state_dict(self, state: Mapping[str, object]) -> tuple[Observation, Info]:
        """Go on from a saved state; returns what `reset` or `step` had returned there."""
        self.episodes.load_state_dict(state)
        self._seeded, self._over = True, self.episodes.is_over(0)
        return self._observation(), self._info()

    def _observation(self) -> Observation:
        return {name: part[0].copy() for name, part in self.episodes.observe().items()}

    def _info(self) -> Info:
        return {"action_mask": self.legal_mask()}


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
        self._require_open()
        given = require_options(options)
        cases = _each(given, "case", self.num_envs)
        host_seeds = _each(given, "host_seed", self.num_envs)
        self._seed(seed)
        self.episodes.begin_many(
            [
                self.episodes.draw(env_idx, case=cases[env_idx], host_seed=host_seeds[env_idx])
                for env_idx in range(self.num_envs)
            ]
        )
        return self._observation(), self._info()

    def step(self, actions: Actions) -> tuple[Observation, NDArray[np.float64], Flags, Flags, Info]:
        """One action (env, head) in every env; what ended is begun anew."""
        self._require_open()
        result = self._last_step = self.episodes.step(require_choices(actions))
        info = self._begin_anew(result.finished) if result.finished else {}
        for env_idx, outcome in enumerate(result.outcomes):
            if outcome.illegal is not None:
                info = self._add_info(info, {"illegal": outcome.illegal}, env_idx)
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        info |= {"lost": result.lost, "_lost": everywhere}
        info |= {"shown_reward": result.shown_rewards, "_shown_reward": everywhere}
        reward = result.components.total
        return self._observation(), reward, result.terminated, result.lost.copy(), info | self._info()

    def _require_open(self) -> None:
        if self.closed:
            raise RuntimeError("the environments are closed: make new ones with esper.make_env()")

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
        if isinstance(seed, list | tuple | np.ndarray):
            seeds = [require_seed(one) for one in seed]
        else:
            seeds = [require_seed(seed) + env_idx for env_idx in range(self.num_envs)]
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
