"""What an update returns, typed."""

from dataclasses import dataclass

from esper.leyline import ActionDict as ActionDict
from esper.leyline import HeadEntropies as HeadEntropies
from esper.leyline import HeadLogProbs as HeadLogProbs
from esper.simic.agent.anomaly import Anomaly


@dataclass(frozen=True, slots=True)
class GradientStats:
    """Gradients before clipping, of the last applied step."""

    grad_norm: float
    """L2 norm over all parameters."""
    max_grad: float
    """Largest L2 norm of one parameter tensor's gradient."""
    min_grad: float
    """Smallest L2 norm of one parameter tensor's gradient."""


@dataclass(frozen=True, slots=True)
class RatioBreakdown:
    """What exactly is wrong with the ratios; counted only in debug."""

    nan: int
    inf: int
    heads: tuple[str, ...]
    """The heads in which it was seen."""


@dataclass(frozen=True, slots=True)
class ValueDiagnostics:
    """Values, returns and advantages of a rollout as they were before the update. Unknown is None."""

    value_pred_mean: float
    value_pred_std: float
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    value_mse_before: float
    advantage_mean_prenorm: float
    advantage_std_prenorm: float
    explained_variance: float | None
    explained_variance_low_return_variance: bool
    value_nrmse: float | None


@dataclass(frozen=True, slots=True)
class PPOUpdateMetrics:
    """One update. Averages are over applied minibatches; what was never measured is None."""

    policy_loss: float | None
    value_loss: float | None
    entropy: float | None
    """Joint entropy per unforced step, summed over relevant heads."""
    approx_kl: float
    """k3 of the joint log-ratio in the last minibatch looked at."""
    clip_fraction: float | None
    ratio_mean: float | None
    ratio_max: float | None
    ratio_min: float | None
    ratio_has_numerical_issue: bool
    ratio_breakdown: RatioBreakdown | None
    advantage_mean: float
    """Over the steps that train the actor, after normalisation."""
    advantage_std: float
    head_entropies: HeadEntropies | dict[str, float | None]
    """Mean over steps where the head is relevant with two or more legal choices; None if there are none."""
    head_grad_norms: dict[str, float | None]
    """Norm of the gradients of each head's own parameters in the last applied step."""
    gradient: GradientStats | None
    value: ValueDiagnostics
    entropy_coef: float | None
    """Weight of the entropy bonus as it was used, mean over choices: annealed, of each head, with its floor."""
    head_entropy_coefs: dict[str, float | None]
    """The same head by head; None where a head never had a choice."""
    epochs: int
    """Epochs begun."""
    minibatches_applied: int
    minibatches_skipped: int
    """Not applied because something was not finite."""
    kl_stopped: bool
    valid_steps: int
    forced_steps: int
    """Valid steps without any choice: they train the value only."""
    invalid_steps: int
    anomalies: tuple[Anomaly, ...] = ()
