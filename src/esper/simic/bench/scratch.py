"""The final architecture from scratch: a grown network's seeds in place before the first step, trained as one."""

from collections.abc import Sequence

import numpy as np

from esper.kasmina import GrowingModel
from esper.leyline import Stage
from esper.simic.bench.rows import SeedRow
from esper.simic.env.choices import Actions
from esper.simic.env.episodes import Episodes
from esper.tolaria.host import TrainedHost


def build_in(model: GrowingModel, seed: SeedRow) -> None:
    """A seed as a part of the host from the start: at its alpha, with the host's learning rate.

    No rule allows that in a run, so its life is written by hand.
    """
    model.germinate(seed.slot, seed.blueprint, style=seed.style, alpha_target=seed.alpha_target)
    slot = model.slots[seed.slot]
    slot.life.stage, slot.life.alpha = Stage.HOLDING, seed.alpha_target
    slot.life.epochs_in_stage = slot.life.rules.min_holding_epochs
    model.fossilize(seed.slot)
    slot.sync_alpha()


class ScratchPlayer:
    """Builds in what each env's other episode kept, and then waits."""

    def __init__(self, kept: Sequence[Sequence[SeedRow]]) -> None:
        self._kept = kept

    def begin(self, num_envs: int) -> None:
        if num_envs != len(self._kept):
            raise ValueError(f"num_envs is {num_envs}; expected {len(self._kept)}")

    def act(self, episodes: Episodes, rewards: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Actions:
        del rewards
        for env_idx, seeds in enumerate(self._kept):
            host = episodes.host(env_idx)
            if episodes.episode(env_idx).epoch == 0 and isinstance(host, TrainedHost):
                for seed in seeds:
                    build_in(host.model, seed)
                host.lay_out_seeds()
        return np.zeros((episodes.num_envs, episodes.space.action_layout.head_count), dtype=np.int64)
