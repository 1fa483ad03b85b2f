"""sb3-contrib's MaskablePPO learns to grow in the toy, through `esper.FlatGrowthEnv`.

    pip install 'esper-grow[sb3]'
    python examples/maskable_ppo.py [--steps 128000] [--seed 0]

Prints the gain over never growing on draws it has never seen. Most seeds harm, so a policy that explores little
learns to wait and gains nothing: observations and rewards are normalised, rewards are not discounted, and the
entropy bonus begins high and falls.
"""

import argparse
from statistics import fmean

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import esper
import esper.envs
from esper.tolaria.worlds.toy.instance import TOY_SUITES

ENVS, STEPS_EACH = 16, 80
ENTROPY, ENTROPY_AT_END = 0.1, 0.005


def flat_env() -> esper.FlatGrowthEnv:
    env = gymnasium.make("esper.envs:esper/Growth-toy-v0").unwrapped
    return esper.FlatGrowthEnv(env)  # type: ignore[arg-type]  # gymnasium knows it as some Env


class Anneal(BaseCallback):
    """Lets the entropy bonus fall over the first three quarters of the training."""

    def _on_step(self) -> bool:
        left = max(0.0, 1.0 - self.num_timesteps / (0.75 * self.model._total_timesteps))
        assert isinstance(self.model, MaskablePPO)
        self.model.ent_coef = ENTROPY_AT_END + (ENTROPY - ENTROPY_AT_END) * left
        return True


def train(steps: int, seed: int) -> tuple[MaskablePPO, VecNormalize]:
    envs = VecNormalize(DummyVecEnv([flat_env] * ENVS), gamma=1.0)
    envs.seed(seed)
    model = MaskablePPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda left: 1e-3 * left,
        n_steps=STEPS_EACH,
        batch_size=ENVS * STEPS_EACH // 8,
        n_epochs=4,
        gamma=1.0,
        gae_lambda=0.8,
        ent_coef=ENTROPY,
        target_kl=0.03,
        seed=seed,
        device="cpu",
    )
    model.learn(steps, callback=Anneal())
    return model, envs


def gain(model: MaskablePPO, envs: VecNormalize, draws: int) -> float:
    """Mean utility over never growing, greedy, on draws that are held out."""
    env, gains = flat_env(), list[float]()
    for seed, case in enumerate(TOY_SUITES["toy"].held_out(draws)):
        observation, _ = env.reset(seed=seed, options={"case": case})
        ended = False
        while not ended:
            seen = envs.normalize_obs(observation)
            action, _ = model.predict(seen, action_masks=env.action_masks(), deterministic=True)
            observation, _, terminated, truncated, info = env.step(np.int64(action.item()))
            ended = terminated or truncated
        gains.append(info["summary"].gain)
    return fmean(gains)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=128_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model, envs = train(chosen.steps, chosen.seed)
    print(f"gain over never growing on 64 unseen draws: {gain(model, envs, 64):+.4f}")


if __name__ == "__main__":
    main()
