"""Recordings of the toy that several tests share."""

from functools import cache

import torch

from esper.leyline import DecisionSettings
from esper.simic.env import make_env
from esper.simic.offline.recorder import RandomPlayer, record_episodes
from esper.simic.offline.recording import Recording
from esper.simic.reward import RewardConfig
from esper.tolaria.worlds.toy.instance import toy_case

HOW = DecisionSettings(
    {"style": "linear_add", "tempo": 3, "alpha_target": 1.0, "alpha_speed": 0, "alpha_curve": "linear"}
)
"""How a seed is blended in does not matter in the toy."""

PATIENT = {"WAIT": 2.0, "ADVANCE": 2.0, "PRUNE": -4.0, "FOSSILIZE": -4.0}
"""Logits of random operations under which seeds grow up, so that what they are worth is seen."""


@cache
def random_episodes(
    count: int,
    *,
    first: int = 0,
    num_envs: int = 8,
    slots: int = 3,
    seed: int = 0,
    gamma: float = 1.0,
    patient: bool = False,
) -> Recording:
    """Episodes of random legal actions, each of another draw; `patient` ones prune seldom and wait more."""
    episodes = make_env("toy", num_envs, reward=RewardConfig(gamma=gamma), decisions=HOW).episodes
    episodes.critic_looks = True
    player = RandomPlayer(
        episodes.space.action_layout, torch.Generator().manual_seed(seed), PATIENT if patient else None
    )
    wanted = [(toy_case(first + number, slots=slots), number) for number in range(count)]
    recording, _ = record_episodes(
        player, episodes, wanted, policy="random", log_probs=lambda: player.log_prob
    )
    return recording
