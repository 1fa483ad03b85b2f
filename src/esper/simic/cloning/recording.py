"""Episodes as they were seen and decided, step by step: what a network can be taught from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esper.leyline import SlotConfig
from esper.simic.env.choices import Actions
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import Judged, Player, play_cases
from esper.tamiyo.space import GrowthSpace

_TENSORS = ("observation", "mask", "action", "previous_reward", "length")


class RecordingError(ValueError):
    """A recording that cannot be read, or does not fit."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Whole episodes of one space. Steps past an episode's length are padding."""

    space: GrowthSpace
    observation: Tensor
    """(episode, step, feature) float32, as the policy sees it"""
    mask: Tensor
    """(episode, step, width) bool"""
    action: Tensor
    """(episode, step, head) int64"""
    previous_reward: Tensor
    """(episode, step) float32: of the step before, 0 at the first"""
    length: Tensor
    """(episode,) int64"""

    def __len__(self) -> int:
        return len(self.length)

    @property
    def steps(self) -> int:
        return int(self.length.sum())

    def part(self, episodes: Sequence[int]) -> "Recording":
        chosen = torch.tensor(list(episodes), dtype=torch.int64)
        return Recording(self.space, *(getattr(self, name)[chosen] for name in _TENSORS))

    def split(self, held_out: int) -> tuple["Recording", "Recording"]:
        """All but the last so many episodes, and these."""
        if not 0 < held_out < len(self):
            raise ValueError(f"held_out is {held_out}; expected 1..{len(self) - 1} of {len(self)} episodes")
        count = len(self) - held_out
        return self.part(range(count)), self.part(range(count, len(self)))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        save_file(tensors, path, metadata={"space": space_text(self.space)})

    @staticmethod
    def load(path: Path) -> "Recording":
        """From data alone; nothing in the file is executed."""
        try:
            with safe_open(path, "pt") as file:
                space = space_of((file.metadata() or {}).get("space", ""))
                return Recording(space, *(file.get_tensor(name) for name in _TENSORS))
        except (OSError, SafetensorError, ValueError) as error:
            raise RecordingError(f"{path}: no recording of episodes can be read from it ({error})") from None


class _Recorder:
    """A player who is watched."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.groups: list[list[tuple[Tensor, Tensor, Tensor, Tensor]]] = []

    def begin(self, num_envs: int) -> None:
        self._player.begin(num_envs)
        self.groups.append([])

    def act(self, episodes: Episodes, rewards: NDArray[np.float64]) -> Actions:
        episodes.observe()
        seen, mask = episodes.observer.flat.clone(), torch.from_numpy(episodes.masks().copy())
        actions = self._player.act(episodes, rewards)
        self.groups[-1].append((seen, mask, torch.from_numpy(actions.copy()), torch.tensor(rewards)))
        return actions


def record_episodes(
    player: Player, episodes: Episodes, wanted: Sequence[tuple[str, int]]
) -> tuple[Recording, list[Judged[None]]]:
    """Play each (case, host seed) once and keep every step; also what each episode came to."""
    recorder = _Recorder(player)
    judged = play_cases(recorder, episodes, wanted)
    parts = [torch.cat([_stack(group, part) for group in recorder.groups]) for part in range(4)]
    kept = len(wanted)  # the last group may have places that only repeat
    observation, mask, action, reward = (part[:kept] for part in parts)
    length = torch.tensor([one.summary.epochs for one in judged])
    return Recording(episodes.space, observation, mask, action, reward.float(), length), judged


def _stack(group: list[tuple[Tensor, Tensor, Tensor, Tensor]], part: int) -> Tensor:
    """(env, step, ...)"""
    return torch.stack([step[part] for step in group], dim=1)


def space_text(space: GrowthSpace) -> str:
    return json.dumps({"slots": space.slot_config.slot_ids, "blueprints": space.blueprints})


def space_of(text: str) -> GrowthSpace:
    """The inverse of `space_text`."""
    try:
        written = json.loads(text)
        return GrowthSpace(SlotConfig(tuple(written["slots"])), tuple(written["blueprints"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it says nothing of slots and blueprints: {error}") from None
