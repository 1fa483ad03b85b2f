"""One growth episode as a Gymnasium environment, what it shares with many, and a host as text or as a picture."""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from esper.kasmina.drawing import Station, describe_slot, draw_stations
from esper.leyline import ActionSpec, HostProtocol, Situation
from esper.simic.env.episodes import Episodes, Observation
from esper.simic.env.spaces import Actions, action_space, observation_space
from esper.tamiyo.actions import GrowthSpace
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
    """The options of a reset, which may have "case" and "host_seed"."""
    unknown = set(options or {}) - {"case", "host_seed"}
    if unknown:
        raise ValueError(f"options has {', '.join(sorted(unknown))}; expected case, host_seed")
    return options or {}


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
        super().reset(seed=seed)
        drawn_instead = require_options(options)
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
        result = self.episodes.step(np.asarray(action, dtype=np.int64)[np.newaxis])
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
