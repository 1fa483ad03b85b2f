"""Registries whose models are made from a config, which is made small by the names of its fields."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from random import Random
from typing import Any, cast

import torch
from torch import Tensor, nn

from blind_rules import (
    Make,
    Unit,
    filled,
)
from esper.kasmina.probing import ExampleInput

# Models made from a config


SMALL: list[tuple[str, int]] = [
    (r"(.*_)?vocab_size|num_embeddings|num_tokens", 99),
    (r".*(key_value|kv)_heads", 2),
    (r".*num.*heads?|.*n_heads?|.*attention_heads", 4),
    (r".*head_dim|.*head_size|d_kv", 8),
    (r"(num_|n_)?experts_per_tok|.*top_k|moe_topk", 2),
    (r"(num|n)_.*experts", 4),
    (r".*(num_|n_).*(layers?|blocks)|.*_layers|depth|.*layers_per_block", 4),
    (r".*(intermediate|ffn|inner|feedforward|feed_forward|mlp).*(size|dim)|d_ff|n_inner", 64),
    (r".*hidden_size|.*d_model|.*embed_dim|n_embd|dim|.*embedding_size|.*hidden_dim", 32),
    (r".*_width|projection_dim|.*base_dim|base_channels", 32),
    (r".*attention_dim|caption_channels|text_(embed_)?dim|caption_projection_dim|pooled_projection_dim", 32),
    (r".*_lora_rank|.*state_size|.*_rank", 8),
    (r"max_position_embeddings|n_positions|max_seq(uence)?_len(gth)?", 128),
]  # fmt: skip
"""Name of a field -> what it becomes, if it is a larger integer."""


def shrunk(fields: Mapping[str, Any], patterns: list[tuple[str, int]]) -> dict[str, Any]:
    """The fields that a small model has otherwise, also in configs within a config."""
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and name.endswith("config"):
            small[name] = {**value, **shrunk(value, patterns)}
        elif isinstance(value, int) and not isinstance(value, bool):
            if name.endswith("token_id"):
                if value > 90:
                    small[name] = value % 90
                continue
            target = next((new for pattern, new in patterns if re.fullmatch(pattern, name)), value)
            if target < value:
                small[name] = target
        elif isinstance(value, list | tuple) and value and all(type(one) is int for one in value):
            if re.search("depth|num_layers|n_layers|layers_per", name):
                small[name] = [1] * len(value)
            elif (
                re.search("hidden_sizes|embed_dims|block_out_channels|channels_list", name)
                and min(value) >= 64
            ):
                small[name] = [32] * len(value)
    return small


LEVELS = [SMALL, SMALL[:1] + SMALL[4:8], SMALL[6:7]]
"""All fields; the words, experts, layers and feed-forward widths only; the layers only."""


def transformers() -> list[Unit]:
    package = import_module("transformers")
    auto = import_module("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES
    configs = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES

    def make(kind: str, name: str, patterns: list[tuple[str, int]]) -> nn.Module:
        config = getattr(package, configs[kind])
        fields = shrunk(config().to_dict(), patterns)
        made: nn.Module = getattr(package, name)(config(**fields))
        return made

    def makes(kind: str, name: str) -> Callable[[Random], Iterable[Make]]:
        return lambda _rng: [lambda level=level: make(kind, name, level) for level in LEVELS]  # type: ignore[misc]

    first = {kind: name if isinstance(name, str) else name[0] for kind, name in auto.items()}
    unique = {name: kind for kind, name in reversed(first.items()) if kind in configs}
    return [Unit(name, makes(kind, name), transformers_examples) for name, kind in sorted(unique.items())]


def transformers_examples(host: Any) -> Iterator[ExampleInput]:
    """By the names that the forward takes: words, pictures, sound, or two of them."""
    takes = set(inspect.signature(host.forward).parameters)
    fields = host.config.to_dict()
    nested = [fields, *(value for value in fields.values() if isinstance(value, dict))]

    def known(name: str, *otherwise: int) -> list[int]:
        found = [level[name] for level in nested if isinstance(level.get(name), int)]
        return list(dict.fromkeys([*found, *otherwise]))

    ids = torch.randint(10, 90, (2, 11))
    pictures = [
        torch.randn(2, channels, size, size)
        for size in known("image_size", 64, 224)
        if size <= 512
        for channels in known("num_channels", 3)[:1]
    ]
    films = [
        torch.randn(2, frames, 3, p.shape[-1], p.shape[-1])
        for p in pictures
        for frames in known("num_frames", 4)[:1]
    ]
    bins = known("num_mel_bins", 80)[0]
    features = [torch.randn(2, bins, 128), torch.randn(2, 128, bins), torch.randn(2, bins, 3000)]
    waves = [
        torch.randn(2, 3200),
        torch.randn(2, 1, 3200),
        torch.randn(2, 128, bins),
        torch.randn(2, 1024, bins),
    ]
    choices: list[dict[str, list[Tensor]]] = [
        {"input_ids": [ids]},
        {"input_ids": [ids], "decoder_input_ids": [ids]},
        {"pixel_values": pictures},
        {"pixel_values": pictures, "input_ids": [ids]},
        {"pixel_values": films},
        {"pixel_values_videos": films},
        {"input_features": features},
        {"input_features": features, "decoder_input_ids": [ids]},
        {"input_values": waves},
        {"input_values": waves, "decoder_input_ids": [ids]},
        {"inputs": [ids, torch.randn(2, 11, *known("d_model", 32)[:1])]},
        {
            "past_values": [
                torch.randn(2, *known("context_length", 32)[:1], *known("num_input_channels", 1)[:1])
            ]
        },
    ]
    for choice in choices:
        if set(choice) <= takes:
            for index in range(max(map(len, choice.values()))):
                yield {name: some[min(index, len(some) - 1)] for name, some in choice.items()}


def diffusers() -> list[Unit]:
    package = import_module("diffusers")
    base = import_module("diffusers.models.modeling_utils").ModelMixin
    found: dict[str, type[nn.Module]] = {}
    for name in sorted(dir(package)):
        if name[0].isupper() and re.search(r"Transformer|UNet|Autoencoder|ControlNet|DiT|VQ|Prior|VAE", name):
            try:
                made = getattr(package, name)
            except (ImportError, RuntimeError):
                continue
            if inspect.isclass(made) and issubclass(made, base):
                found[name] = cast(type[nn.Module], made)

    def makes(made: Callable[..., nn.Module]) -> Callable[[Random], Iterable[Make]]:
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(made).parameters.items()
            if parameter.default is not parameter.empty
        }
        return lambda _rng: [lambda level=level: made(**shrunk(defaults, level)) for level in LEVELS]  # type: ignore[misc]

    return [Unit(name, makes(made), diffusers_examples) for name, made in found.items()]


def diffusers_examples(host: Any) -> Iterator[ExampleInput]:
    config = dict(host.config)

    def size(*names: str, otherwise: int) -> int:
        return next((config[name] for name in names if isinstance(config.get(name), int)), otherwise)

    channels = size("in_channels", otherwise=3)
    width = size(
        "joint_attention_dim", "cross_attention_dim", "caption_channels", "text_embed_dim", "text_dim",
        "caption_dim",
        "cap_feat_dim", "context_in_dim", "encoder_hid_dim", otherwise=32,
    )  # fmt: skip
    shapes = [
        (channels, 16, 16),
        (channels, 5, 16, 16),
        (16, channels),
        (channels, 16),
        (channels, 32, 32),
        (channels, 1024),
    ]
    for shape in shapes:
        for timestep in (torch.tensor([3, 7]), torch.tensor([0.3, 0.7])):
            noisy = torch.randn(2, *shape)
            table: dict[str, object] = {
                "sample": noisy, "hidden_states": noisy, "x": noisy, "timestep": timestep, "timesteps": timestep,
                "encoder_hidden_states": torch.randn(2, 5, width),
                "encoder_hidden_states_mask": torch.ones(2, 5).bool(),
                "encoder_attention_mask": torch.ones(2, 5), "guidance": torch.ones(2),
                "attention_mask": torch.ones(2, 5),
                "pooled_projections": torch.randn(2, size("pooled_projection_dim", otherwise=32)), "num_frames": 5,
                "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(5, 3), "height": 16, "width": 16,
                "class_labels": torch.tensor([0, 1]), "added_time_ids": torch.randn(2, 3),
                "input_ids": torch.randint(9, (2, 5)),
                "proj_embedding": torch.randn(2, width), "controlnet_cond": torch.randn(2, 3, 128, 128),
                "global_hidden_states": torch.randn(2, 1, width), "pooled_text_emb": torch.randn(2, width),
            }  # fmt: skip
            signature = inspect.signature(host.forward).parameters
            wanted = {
                "img_ids",
                "txt_ids",
                "guidance",
                "pooled_projections",
                "timestep",
                "encoder_hidden_states",
            }
            yield {
                name: value
                for name, value in filled(host.forward, table).items()
                if signature[name].default is inspect.Parameter.empty or name in wanted
            }
