"""The golden layout: a trained policy depends on every name and its place."""

import numpy as np
import torch

from esper.simic.env import make_env
from esper.tamiyo import HOST_FEATURES, SLOT_FEATURES, GrowthSpace, Observer
from esper.tamiyo.features import (
    BLUEPRINT_FEATURE_NAMES,
    PRESENT,
    fixed_scales,
    flatten_observation,
    has_fixed_scale,
    observation_parts,
    observation_size,
)
from watched import paper_host

HOST = """
time_left epochs_left training_samples plateau gradient_norm
train_loss train_accuracy validation_loss validation_accuracy
train_loss_change train_accuracy_change validation_loss_change validation_accuracy_change
train_loss_slope train_accuracy_slope validation_loss_slope validation_accuracy_slope
loss_gap accuracy_gap added_parameters budget_left
gradient_norm_known
train_loss_known train_accuracy_known validation_loss_known validation_accuracy_known
train_loss_trend_known train_accuracy_trend_known validation_loss_trend_known validation_accuracy_trend_known
loss_gap_known accuracy_gap_known budget_left_known
last_wait last_germinate last_set_alpha_target last_prune last_fossilize last_advance
"""
SLOT = """
present
stage_dormant stage_training stage_blending stage_holding stage_fossilized stage_embargoed
ready_germinate ready_set_alpha_target ready_prune ready_fossilize ready_advance
grows_norm grows_attention grows_conv grows_mixer grows_pointwise grows_copy grows_other
width depth fading alpha epochs_to_target age epochs_in_stage
parameters contribution contribution_trend probe alpha_target gradient_ratio gradient_health
contribution_known contribution_trend_known probe_known alpha_target_known gradient_ratio_known
gradient_health_known
style_linear_add style_sigmoid_add style_multiply style_gate
"""
BLUEPRINT = """
kind_norm kind_attention kind_conv kind_mixer kind_pointwise kind_copy kind_other cost offered
"""

SCALED = """
epochs_left training_samples plateau gradient_norm
train_loss train_accuracy validation_loss validation_accuracy
train_loss_change train_accuracy_change validation_loss_change validation_accuracy_change
train_loss_slope train_accuracy_slope validation_loss_slope validation_accuracy_slope
loss_gap accuracy_gap added_parameters budget_left
epochs_to_target age epochs_in_stage parameters contribution contribution_trend probe gradient_ratio
"""


def test_every_feature_keeps_its_name_and_place() -> None:
    assert list(HOST_FEATURES) == HOST.split()
    assert list(SLOT_FEATURES) == SLOT.split()
    assert list(BLUEPRINT_FEATURE_NAMES) == BLUEPRINT.split()
    assert PRESENT == 0
    assert len(set(HOST_FEATURES)) == len(HOST_FEATURES)


def test_whatever_can_be_unknown_has_a_validity_bit() -> None:
    for names in (HOST_FEATURES, SLOT_FEATURES):
        for bit in (name for name in names if name.endswith("_known")):
            stem = bit.removesuffix("_known").removesuffix("_trend")
            assert any(name.startswith(stem) for name in names if not name.endswith("_known"))


def test_bits_shares_and_places_have_a_fixed_scale() -> None:
    """Running statistics leave them alone, by name: some never vary, and would be 0."""
    fixed = "present width depth fading alpha style_linear_add style_gate time_left kind_mixer cost offered"
    assert all(map(has_fixed_scale, fixed.split()))
    every = (*HOST_FEATURES, *SLOT_FEATURES, *BLUEPRINT_FEATURE_NAMES)
    assert [name for name in every if not has_fixed_scale(name)] == SCALED.split()


def test_every_bit_of_a_flat_observation_has_a_fixed_scale() -> None:
    envs = make_env("toy", 8)
    envs.reset(seed=0)
    seen, rng = [], np.random.default_rng(0)
    for _ in range(60):
        envs.episodes.observe()
        seen.append(envs.episodes.observer.flat.clone())
        envs.step(envs.episodes.choices.sample(envs.episodes.masks(), rng))
    values = torch.cat(seen)
    bits = (values == 0).any(0) & (values == 1).any(0) & ((values == 0) | (values == 1)).all(0)
    assert bits.sum() > 50
    assert fixed_scales(envs.space)[bits].all()
    assert not fixed_scales(envs.space).all()


def test_a_flat_observation_is_its_parts_end_to_end() -> None:
    host = paper_host("a", "b")
    space = GrowthSpace.covering([host])
    observer = Observer(space, 3)
    for env_idx in range(3):
        observer.begin(env_idx, host, horizon=5)
    parts = {name: torch.from_numpy(part) for name, part in observer.observe().items()}
    assert {name: tuple(part.shape[1:]) for name, part in parts.items()} == observation_parts(space)
    assert torch.equal(flatten_observation(parts), observer.flat)
    assert observer.flat.shape == (3, observation_size(space))
    secret = torch.arange(6.0).view(3, 2)
    flat = flatten_observation(parts, secret)
    assert torch.equal(flat[:, -2:], secret)
    assert np.shares_memory(observer.observe()["slots"], observer.flat.numpy())
