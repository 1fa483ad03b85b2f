"""A small MDP whose optimum is known: a corridor with a trap, a slip and a detour that pays more."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from esper.simic.offline.recording import Sequences
from esper.tamiyo import ActionLayout, Policy, PolicyInputs, discrete_layout

STATES, ACTIONS, HORIZON = 6, 3, 8
SLIP = 0.2
"""How often a move does nothing."""
GAMMA = 0.95

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Corridor:
    """States 0..5 in a row, begun at 2: left, stay, right. 0 ends with 1, 5 with 3, each step costs 0.1; in state 3
    staying is illegal, and going right from it costs 0.5 more: the near prize tempts, the far one is worth it."""

    layout: ActionLayout = field(default_factory=lambda: discrete_layout(ACTIONS))

    @property
    def legal(self) -> NDArray[np.bool_]:
        """(state, action)"""
        legal = np.ones((STATES, ACTIONS), dtype=np.bool_)
        legal[3, 1] = False
        return legal

    @property
    def transitions(self) -> Array:
        """(state, action, next state)"""
        table = np.zeros((STATES, ACTIONS, STATES))
        for state in range(STATES):
            for action in range(ACTIONS):
                there = min(max(state + action - 1, 0), STATES - 1)
                table[state, action, there] += 1.0 - SLIP
                table[state, action, state] += SLIP
        return table

    def reward(self, state: int, action: int, after: int) -> float:
        """What one step pays."""
        paid = {0: 1.0, STATES - 1: 3.0}.get(after, 0.0) - 0.1
        return paid - (0.5 if (state, action) == (3, 2) else 0.0)

    def ends(self, state: int) -> bool:
        """Whether an episode ends on arrival."""
        return state in (0, STATES - 1)

    def values(self, policy: Array | None) -> Array:
        """(time, state): exact values of a policy (time, state, action), or of the best one, over the horizon."""
        table = self.transitions
        paid = np.array(
            [
                [
                    sum(table[s, a, n] * self.reward(s, a, n) for n in range(STATES) if table[s, a, n])
                    for a in range(ACTIONS)
                ]
                for s in range(STATES)
            ]
        )
        values = np.zeros((HORIZON + 1, STATES))
        for time in range(HORIZON - 1, -1, -1):
            onward = np.where([self.ends(state) for state in range(STATES)], 0.0, values[time + 1])
            worth = paid + GAMMA * table @ onward
            if policy is None:
                values[time] = np.where(self.legal, worth, -np.inf).max(1)
            else:
                values[time] = (policy[time] * worth).sum(1)
        return values

    def uniform(self) -> Array:
        """(time, state, action): random legal actions."""
        row = self.legal / self.legal.sum(1, keepdims=True)
        return np.tile(row, (HORIZON, 1, 1))

    def observation(self, state: int, time: int) -> NDArray[np.float32]:
        """One-hot state, and the share of time that is left."""
        seen = np.zeros(STATES + 1, dtype=np.float32)
        seen[state], seen[-1] = 1.0, 1.0 - time / HORIZON
        return seen

    def of_network(self, policy: Policy, *, greedy: bool) -> Array:
        """(time, state, action): what a network does everywhere."""
        seen = np.stack([self.observation(s, t) for t in range(HORIZON) for s in range(STATES)])
        mask = torch.from_numpy(np.tile(self.legal, (HORIZON, 1)))
        none = torch.zeros(len(seen), dtype=torch.int64)
        output = policy(PolicyInputs(torch.from_numpy(seen), none.unsqueeze(-1), none.float()))
        probabilities = output.logits.masked_fill(~mask, -torch.inf).softmax(-1).detach().double().numpy()
        if greedy:
            probabilities = np.eye(ACTIONS)[probabilities.argmax(1)]
        shaped: Array = probabilities.reshape(HORIZON, STATES, ACTIONS)
        return shaped

    def play(self, policy: Array, episodes: int, seed: int) -> Sequences:
        """Episodes of a policy (time, state, action), cut by nothing but their ends and the horizon."""
        rng, table = np.random.default_rng(seed), self.transitions
        rows: dict[str, list[object]] = {
            name: [] for name in ("seen", "mask", "action", "reward", "log_prob")
        }
        before, lengths = [], []
        for _ in range(episodes):
            state, last = 2, 0.0
            for time in range(HORIZON):
                action = int(rng.choice(ACTIONS, p=policy[time, state]))
                after = int(rng.choice(STATES, p=table[state, action]))
                reward = self.reward(state, action, after)
                rows["seen"].append(self.observation(state, time))
                rows["mask"].append(self.legal[state])
                rows["action"].append([action])
                rows["reward"].append(reward)
                rows["log_prob"].append(np.log(policy[time, state, action]))
                before.append(last)
                state, last = after, reward
                if self.ends(state):
                    break
            lengths.append(time + 1)
        steps = len(before)
        return Sequences(
            observation=torch.from_numpy(np.stack(rows["seen"])),  # type: ignore[arg-type]
            privileged=torch.zeros(steps, 0),
            mask=torch.from_numpy(np.stack(rows["mask"])),  # type: ignore[arg-type]
            action=torch.tensor(rows["action"]),
            previous_reward=torch.tensor(before, dtype=torch.float32),
            reward=torch.tensor(rows["reward"], dtype=torch.float32),
            log_prob=torch.tensor(rows["log_prob"], dtype=torch.float32),
            length=torch.tensor(lengths),
            terminated=torch.ones(episodes, dtype=torch.bool),
        )
