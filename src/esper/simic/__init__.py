"""Simic: selection. Rewards, environments, PPO, rollouts and the trainer."""
