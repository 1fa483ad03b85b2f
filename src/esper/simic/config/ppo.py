"""The settings of the learners: PPO's own, those it shares with a run (`PPOSettings`), and implicit Q-learning's."""

from dataclasses import field
from typing import Literal, Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from esper.leyline import HEAD_NAMES
from esper.simic.config import checks
from esper.simic.config.checks import CHECKED, explained


@explained
@dataclass(slots=True, frozen=True, kw_only=True, config=CHECKED)
class PPOSettings:
    """What `PPOConfig` and `TrainingConfig` have in common, declared once."""

    gamma: checks.UpToOne = 0.995
    """Discount per step, of PPO and of the reward's shaping: one number."""
    gae_lambda: checks.UpToOne = 0.98
    """How far advantages look ahead before they trust the critic."""
    lr: checks.Positive = 3e-4
    """Adam's learning rate."""
    adam_eps: checks.Positive = 1e-5
    """Adam's epsilon."""
    clip_ratio: checks.UpToOne = 0.2
    """How far a probability ratio may leave 1 before it stops paying."""
    value_coef: checks.NotNegative = 0.5
    """Weight of the value loss."""
    clip_value: checks.Flag = False
    """Use the pessimistic clipped value loss."""
    value_clip: checks.Positive = 10.0
    """How far a value may move from the rollout's, with clip_value."""
    entropy_coef: checks.NotNegative = 0.05
    """Weight of the entropy bonus at the start; 0 is no bonus, whatever the floor."""
    entropy_coef_min: checks.NotNegative = 0.01
    """Where its annealing ends; it is never below. `adaptive_entropy_floor` scales it."""
    adaptive_entropy_floor: checks.Flag = False
    """Raise the floor of a head where few of its choices are legal."""
    target_kl: checks.PositiveOrNone = 0.015
    """No more steps in an update once the joint KL exceeds 1.5 times this; None never stops."""
    max_grad_norm: checks.Positive = 0.5
    """Gradients of the policy are clipped to this norm."""
    n_epochs: checks.Count = 2
    """Passes over a rollout; with memory, over 2 warns and over 4 is capped at 4."""
    normalize_advantages: checks.Flag = True
    """Advantages of a rollout get mean 0 and standard deviation 1."""
    normalize_rewards: checks.Flag = False
    """Divide rewards by their running standard deviation, before advantages."""
    normalize_observations: checks.Flag = False
    """Bring observations to mean 0 and deviation 1, except bits, shares and what a host keeps for life."""
    weight_decay: checks.NotNegative = 0.0
    """Of the critic only; above 0 the optimiser is AdamW."""
    start_critic_rounds: checks.CountOrZero = 0
    """Rounds after a warm start in which only the critic learns: until it knows the policy, advantages mislead."""
    start_kl: checks.NotNegative = 0.0
    """Weight, after them, of the KL from the policy that a warm start gave; it falls linearly to 0."""
    start_kl_anneal_steps: checks.CountOrZero = 20
    """Rounds over which start_kl falls to 0; 0 keeps it."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the policy's networks, in rollout and update alike; log-softmax and LSTM stay fp32."""


@explained
@dataclass(slots=True, frozen=True, kw_only=True, config=CHECKED)
class PPOConfig(PPOSettings):
    """The settings of a `PPOAgent`, checked when they are set."""

    lr_anneal_steps: checks.CountOrZero = 0
    """Updates over which lr falls linearly to a tenth; 0 keeps it."""
    entropy_anneal_steps: checks.CountOrZero = 0
    """Updates over which entropy_coef goes to its floor; 0 keeps it."""
    entropy_coef_per_head: checks.Coefficients = field(default_factory=dict)
    """head -> its own starting coefficient, instead of entropy_coef; 0 is no bonus for this head."""
    head_names: tuple[str, ...] = HEAD_NAMES
    """The heads `entropy_coef_per_head` may name: the layout's, where it is not the growth layout."""
    num_minibatches: checks.Count = 4
    """Per epoch: groups of envs with memory, of shuffled steps without."""
    debug: checks.Flag = False
    """Assert that ratios start at 1, and break down NaN and Inf."""

    @model_validator(mode="after")
    def _heads_are_known(self) -> Self:
        for head in self.entropy_coef_per_head:
            if head not in self.head_names:
                raise ValueError(
                    f"entropy_coef_per_head names unknown head {head!r}; "
                    f"expected among {', '.join(self.head_names)}"
                )
        return self

    def lr_at(self, updates: int) -> float:
        """lr (1 - 0.9 progress), progress as of `annealed_at`."""
        return self.lr * (1.0 - 0.9 * self.annealed_at(updates))

    def annealed_at(self, updates: int) -> float:
        """Progress, from 0 to 1, linear over `lr_anneal_steps` updates; 0 throughout without them."""
        return min(updates / self.lr_anneal_steps, 1.0) if self.lr_anneal_steps else 0.0

    def start_kl_at(self, updates: int) -> float:
        """start_kl (1 - progress), progress linear over `start_kl_anneal_steps` updates after the critic's own."""
        passed, steps = updates - self.start_critic_rounds, self.start_kl_anneal_steps
        progress = min(max(passed / steps, 0.0), 1.0) if steps else 0.0
        return self.start_kl * (1.0 - progress)


@explained
@dataclass(slots=True, frozen=True, kw_only=True, config=CHECKED)
class IQLConfig:
    """The settings of an `IQL` learner, checked when they are set."""

    gamma: checks.UpToOne = 1.0
    """Discount per step; that of the recorded reward's shaping."""
    expectile: checks.Expectile = 0.8
    """Which expectile of Q over recorded actions V is: 0.5 is what was done, towards 1 the best that was done."""
    beta: checks.NotNegative = 10.0
    """How sharply better actions are preferred; 0 clones what was done."""
    trace: checks.Share = 0.0
    """How much of what was done later counts for what an action is worth (lambda): 0 asks V after each step."""
    balance: checks.Share = 0.0
    """How far rare actions count as much as frequent ones for Q and policy: 0 as often as they were done, 1 alike."""
    target_rate: checks.UpToOne = 0.01
    """How far the slow copies of the critics move with each update."""
    lr: checks.Positive = 1e-3
    """Adam's learning rate."""
