"""What to do about an anomaly."""

from esper.simic.agent.anomaly import AnomalyKind

_ADVICE = {
    AnomalyKind.RATIO_EXPLOSION: "the policy moves too far in one update: lower lr, n_epochs or target_kl",
    AnomalyKind.RATIO_COLLAPSE: "choices are being given up for good: raise entropy_coef or lower lr",
    AnomalyKind.VALUE_COLLAPSE: "the critic does not predict returns: wait, raise value_coef, or use more envs",
    AnomalyKind.NUMERICAL_INSTABILITY: "the update was skipped; if it comes back, lower lr and look at the rewards",
}


def advice_for(kind: AnomalyKind) -> str:
    return _ADVICE[kind]
