"""Compiled policies: the one place that knows how `torch.compile` wraps a module."""

from esper.tamiyo.policy import Policy


def unwrap(policy: Policy) -> Policy:
    """The policy behind a `torch.compile`d one, for saving, parameter groups and inspection."""
    original = getattr(policy, "_orig_mod", policy)
    if not isinstance(original, Policy):
        raise TypeError(f"policy is a {type(original).__name__}; expected a Policy, compiled or not")
    return original
