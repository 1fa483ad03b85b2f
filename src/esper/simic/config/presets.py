"""Known configurations: what each is for, and the settings in which it differs from the defaults."""

from collections.abc import Mapping
from dataclasses import dataclass

from esper.leyline.errors import nearest
from esper.simic.config.checks import ConfigError

Settings = Mapping[str, object]

EXPLORING: Settings = {
    # What to grow and where was measured to matter, how it is blended in was not: less to learn.
    "freeze_style": "linear_add",
    "freeze_tempo": 3,
    "freeze_alpha_target": 1.0,
    "freeze_alpha_speed": 0,
    "freeze_alpha_curve": "linear",
    "gamma": 1.0,
    "gae_lambda": 0.8,
    "lr": 1e-3,
    "lr_anneal_steps": None,
    # Most seeds harm, so a policy that explores little learns to wait before it learns what helps.
    "entropy_coef": 0.1,
    "entropy_coef_min": 0.005,
    "normalize_rewards": True,
    "target_kl": 0.03,
    "hidden_size": 64,
    "n_epochs": 4,  # steps of hosts are expensive, passes over them are cheap
    # With these, runs that learn give up a choice to 0.03 of what it was, one round in ten.
    "anomaly_min_ratio_threshold": 0.02,
}
"""What every learner that is not shown all heads begins with."""

PATIENT: Settings = {
    **EXPLORING,
    # Pruned at random, hardly a seed grows up, and what helps is never seen.
    "initial_op_logits": {"PRUNE": -3.0, "FOSSILIZE": -2.0},
    # What to grow is soon learned; whether to grow depends on the host, and takes longer.
    "entropy_coef_per_head": {"op": 0.03, "slot": 0.02, "blueprint": 0.02},
    # Before that all hosts look alike, and whether to grow cannot be learned from what is grown blindly.
    "first_growth": 4,
}
"""For hosts that are trained, where a seed takes epochs to show its worth."""

MANY_HOSTS: Settings = {
    **PATIENT,
    "num_envs": 32,
    "num_minibatches": 8,
    "rounds": 88,
    "workers": 2,
    "pool_cases": 128,
    "pool_host_seeds": 1,
    "run_checkpoint_every": 8,
    "eval_every": 0,
}
"""For a controller that is kept: enough hosts and rounds to learn from."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A known configuration."""

    purpose: str
    """What it is for, in one line."""
    settings: Settings
    """The settings in which it differs from the defaults."""


PRESETS: Mapping[str, Preset] = {
    "toy": Preset(
        "a world without training, to try the learner in (a minute or two on one core)",
        {
            **EXPLORING,
            "suite": "toy",
            "pool_cases": 10_000,  # baselines cost nothing here, so that no case need be met twice
            "pool_host_seeds": 1000,
            "num_envs": 64,
            "num_minibatches": 8,
            "rounds": 96,
            "eval_every": 48,
            "eval_episodes": 128,
        },
    ),
    "demo": Preset(
        "see a controller begin to learn on MNIST-1D, in four minutes on two cores",
        {
            **PATIENT,
            "suite": "cpu",
            "pool_cases": 16,  # few, so that their baselines are soon trained
            "pool_host_seeds": 1,
            "num_envs": 8,
            "num_minibatches": 2,
            "workers": 2,
            "rounds": 12,
            "run_checkpoint_every": 5,
            "eval_every": 0,
        },
    ),
    "cpu": Preset(
        "learn to grow on draws of MNIST-1D (seven minutes on an H200, over an hour on two cores)",
        {**MANY_HOSTS, "suite": "cpu"},
    ),
    "cpu_mixers": Preset(
        "learn when and where to grow mixers on draws of MNIST-1D (half an hour on two cores)",
        {
            **MANY_HOSTS,
            "suite": "cpu",
            # One kind has four fifths of what the best schedule of each case gains, and ten take three times as long.
            "menu": "mixer",
            "rounds": 32,
            "pool_cases": 72,
        },
    ),
    "shift": Preset(
        "learn to answer data that change while a host trains on them, from cpu-v1 on (seven minutes on an H200)",
        {**MANY_HOSTS, "suite": "shift", "rounds": 64, "warm_start": "cpu-v1"},
    ),
    "stream": Preset(
        "learn to grow and to give back while data keep changing: lives of 100 epochs under a cap",
        {
            **MANY_HOSTS,
            "suite": "stream",
            "num_envs": 16,  # a round has as many epochs as 80 hosts of 20
            "num_minibatches": 4,
            "rounds": 96,
            "pool_cases": 192,
            "retire": True,
            # What pays is to be had and to be given back: with one kind there is less to learn about which.
            "menu": "mixer",
            "initial_op_logits": {"PRUNE": -3.0, "FOSSILIZE": -2.0, "RETIRE": -3.0},
        },
    ),
    "hosts": Preset(
        "learn what to grow, and where, in networks of many kinds and sizes",
        {**MANY_HOSTS, "suite": "hosts", "pool_cases": 256, "first_growth": 2},
    ),
    "adapt": Preset(
        "learn what to grow, and where, in frozen networks that are to be adapted to a target",
        {**MANY_HOSTS, "suite": "adapt", "pool_cases": 256, "first_growth": 1},
    ),
    "adapt_stream": Preset(
        "learn to adapt a frozen network to targets that change, and to give back: lives of 120 epochs under a cap",
        {
            **MANY_HOSTS,
            "suite": "adapt_stream",
            "num_envs": 16,
            "num_minibatches": 4,
            "rounds": 64,
            "pool_cases": 192,
            "retire": True,
            # The kinds that were best for some target somewhere.
            "menu": "norm,lora,depthwise,conv_small,mlp_small,conv_light,mlp",
            "first_growth": 2,
            "initial_op_logits": {"PRUNE": -3.0, "FOSSILIZE": -2.0, "RETIRE": -3.0},
        },
    ),
    "cifar10": Preset(
        "learn to grow small hosts on CIFAR-10, on a GPU, with every head (the data must be in ESPER_DATA)",
        {"suite": "cifar10", "device": "cuda", "num_envs": 32, "normalize_rewards": True},
    ),
}


def preset_settings(name: str) -> Settings:
    """The settings of a preset; ConfigError if there is none of this name."""
    if name not in PRESETS:
        raise ConfigError(
            f"no preset is named {name!r}; there are {', '.join(PRESETS)}{nearest(name, PRESETS)}"
        )
    return PRESETS[name].settings
