"""A5, C9: the settings of PPO are checked when they are made."""

import pytest

from esper.simic.agent import PPOConfig


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("gamma", 0.0, 1.0),
        ("gamma", 1.01, 0.5),
        ("gae_lambda", 0.0, 1.0),
        ("clip_ratio", 1.1, 1.0),
        ("lr", 0.0, 1e-9),
        ("lr", float("inf"), 1e-3),
        ("lr", float("nan"), 1e-3),
        ("n_epochs", 1.5, 2),
        ("num_minibatches", True, 4),
        ("lr_anneal_steps", 10.0, 10),
        ("entropy_anneal_steps", 0.5, 0),
        ("entropy_coef", -0.1, 0.0),
        ("n_epochs", 0, 1),
        ("num_minibatches", 0, 1),
        ("target_kl", 0.0, None),
        ("value_clip", 0.0, 1e-3),
        ("precision", "fp16", "bf16"),
        ("weight_decay", -1.0, 0.0),
    ],
)
def test_the_config_names_the_field_and_the_value(name: str, bad: object, good: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is {bad!r}; expected"):
        PPOConfig(**{name: bad})  # type: ignore[arg-type]
    assert getattr(PPOConfig(**{name: good}), name) == good  # type: ignore[arg-type]


def test_head_coefficients_are_checked_against_the_heads() -> None:
    assert PPOConfig(entropy_coef_per_head={"blueprint": 0.1}).entropy_coef_per_head["blueprint"] == 0.1
    with pytest.raises(ValueError, match="unknown head 'blueprnt'; expected among op, slot"):
        PPOConfig(entropy_coef_per_head={"blueprnt": 0.1})
    with pytest.raises(ValueError, match=r"entropy_coef_per_head\['op'\] is -1"):
        PPOConfig(entropy_coef_per_head={"op": -1.0})
    PPOConfig(entropy_coef_per_head={"action": 0.1}, head_names=("action",))


def test_defaults_are_those_of_the_design() -> None:
    config = PPOConfig()
    assert (config.lr, config.gamma, config.gae_lambda, config.clip_ratio) == (3e-4, 0.995, 0.98, 0.2)
    assert (config.entropy_coef, config.entropy_coef_min, config.value_coef) == (0.05, 0.01, 0.5)
    assert (config.target_kl, config.max_grad_norm, config.adam_eps) == (0.015, 0.5, 1e-5)
    assert (config.n_epochs, config.clip_value, config.value_clip) == (2, False, 10.0)


def test_the_learning_rate_falls_to_a_tenth() -> None:
    config = PPOConfig(lr=1.0, lr_anneal_steps=10)
    assert [config.lr_at(updates) for updates in (0, 5, 10, 99)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert PPOConfig(lr=1.0).lr_at(99) == 1.0
    with pytest.raises(ValueError, match="lr_anneal_steps is -1; expected a whole number >= 0"):
        PPOConfig(lr_anneal_steps=-1)
