"""Registries of other people's models, and the rules by which a model of theirs is made small and given an example.

Nothing here is fitted to one model: constructors and forwards are filled in by the names of their parameters, configs
made small by the names of their fields, and the first way in which a model runs by itself is the way it is tried.
"""

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.kasmina.probing import ExampleInput

Make = Callable[[], nn.Module]
Given = Mapping[str, object]
Examples = Callable[[nn.Module], Iterator[ExampleInput]]


class NotByTheRules(Exception):
    """A constructor wants something that no rule names."""


@dataclass(frozen=True)
class Unit:
    """What is drawn: a family of models, or one class."""

    name: str
    makes: Callable[[Random], Iterable[Make]]
    """Ways to build it, in the order they are tried."""
    examples: Examples


def filled(function: Callable[..., object], given: Given) -> dict[str, object]:
    """Keyword arguments by the names of the parameters."""
    arguments = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name == "self":
            continue
        if parameter.name in given:
            arguments[parameter.name] = given[parameter.name]
        elif parameter.default is parameter.empty:
            raise NotByTheRules(f"no rule for the argument {parameter.name!r}")
    return arguments


def by_names(made: Callable[..., nn.Module], *givens: Given) -> Callable[[Random], Iterable[Make]]:
    """Ways to call a constructor: its parameters as in each of these tables."""
    return lambda _rng: [lambda given=given: made(**filled(made, given)) for given in givens]  # type: ignore[misc]


def tensors_of(*shapes: tuple[int, ...]) -> Examples:
    return lambda _host: (torch.randn(shape) for shape in shapes)


def named_inputs(table: Mapping[str, list[Callable[[], object]]]) -> Examples:
    """What a forward must be given, by name: the first choice of all of them, then the second of all, and so on."""

    def examples(host: nn.Module) -> Iterator[ExampleInput]:
        for choice in range(max(map(len, table.values()))):
            made = {name: makes[min(choice, len(makes) - 1)]() for name, makes in table.items()}
            required = {
                name: value
                for name, value in filled(host.forward, made).items()
                if inspect.signature(host.forward).parameters[name].default is inspect.Parameter.empty
            }
            yield required

    return examples


def classes(module: object, within: str) -> dict[str, type[nn.Module]]:
    """The modules that a package puts out, each once."""
    found: dict[int, tuple[str, type[nn.Module]]] = {}
    for name in sorted(dir(module)):
        made = getattr(module, name, None)
        if inspect.isclass(made) and issubclass(made, nn.Module) and made.__module__.startswith(within):
            found.setdefault(id(made), (made.__name__, made))
    return dict(found.values())


# Registries of image models: a family is a file of the package


def families(names: Iterable[str], family_of: Callable[[str], str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name in names:
        grouped.setdefault(family_of(name), []).append(name)
    return grouped


def of_family(
    names: list[str], make: Callable[..., nn.Module], *options: Given
) -> Callable[[Random], Iterable[Make]]:
    """Some members of a family at random, each in all these ways."""

    def makes(rng: Random) -> Iterator[Make]:
        for name in rng.sample(names, min(len(names), 4)):
            for more in options:
                yield lambda name=name, more=more: make(name, **more)  # type: ignore[misc]

    return makes


def timm() -> list[Unit]:
    package = import_module("timm")

    def examples(host: Any) -> Iterator[Tensor]:
        sizes = [64, *(size for size in (host.default_cfg["input_size"][-1],) if size <= 256)]
        return (torch.randn(2, 3, size, size) for size in sizes)

    found = {name: package.list_models(module=name) for name in package.list_modules()}
    return [
        Unit(name, of_family(sorted(names), package.create_model, {"img_size": 64}, {}), examples)
        for name, names in found.items()
        if names
    ]


def torchvision() -> list[Unit]:
    package = import_module("torchvision.models")
    found = families(package.list_models(), lambda name: str(package.get_model_builder(name).__module__))

    def detected(boxes: int = 1) -> ExampleInput:
        target = {
            "boxes": torch.tensor([[4.0, 4.0, 30.0, 30.0]] * boxes),
            "labels": torch.tensor([1] * boxes),
        }
        return [torch.rand(3, 64, 64) for _ in range(2)], [dict(target) for _ in range(2)]

    def examples(host: nn.Module) -> Iterator[ExampleInput]:
        del host
        yield from map(
            torch.randn, ((2, 3, 64, 64), (2, 3, 224, 224), (2, 3, 16, 64, 64), (2, 3, 16, 224, 224))
        )
        yield torch.rand(2, 3, 128, 128), torch.rand(2, 3, 128, 128)
        yield detected()

    options: Given = {"weights": None}
    return [
        Unit(
            name.removeprefix("torchvision.models."),
            of_family(sorted(names), package.get_model, {**options, "weights_backbone": None}, options),
            examples,
        )
        for name, names in found.items()
    ]


def pytorchcv() -> list[Unit]:
    package = import_module("pytorchcv.model_provider")
    found = families(package._models, lambda name: str(package._models[name].__module__.rpartition(".")[2]))
    examples = tensors_of((2, 3, 64, 64), (2, 3, 32, 32), (2, 3, 224, 224), (2, 3, 480, 480), (2, 80, 64))
    return [
        Unit(name, of_family(sorted(names), package.get_model, {}), examples) for name, names in found.items()
    ]


def segmentation() -> list[Unit]:
    package = import_module("segmentation_models_pytorch")
    encoders = sorted(package.encoders.get_encoder_names())

    def makes(made: Callable[..., nn.Module]) -> Callable[[Random], Iterable[Make]]:
        return of_family(encoders, lambda name: made(name, encoder_weights=None, classes=2), {})

    return [
        Unit(made.__name__, makes(made), tensors_of((2, 3, 64, 64), (2, 3, 224, 224)))
        for made in classes(package, "segmentation_models_pytorch").values()
    ]


# Packages whose constructors speak a common language


def vit_pytorch() -> list[Unit]:
    package = import_module("vit_pytorch")
    square: dict[str, object] = {
        "image_size": 64, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 64,
        "dim_head": 16, "channels": 3, "seq_len": 64, "cls_depth": 1, "mlp_mult": 2, "sm_dim": 16, "lg_dim": 32,
        "freq_patch_size": 8, "num_residual_streams": 2, "max_tokens_per_depth": (16, 8), "num_slots": 4,
        "frames": 4, "frame_patch_size": 2, "image_patch_size": 8, "spatial_depth": 1, "temporal_depth": 1,
        "reduction_factor": (4, 2), "num_hierarchies": 2, "block_repeats": (1, 1), "ndim": 2, "input_shape": 64,
    }  # fmt: skip
    staged = {**square, "depth": (1, 1, 1, 1), "heads": (2, 2, 2, 2), "dim": 16}
    cubic = {**square, "ndim": 3, "input_shape": (4, 16, 16), "patch_size": 4}
    examples = tensors_of((2, 3, 64, 64), (2, 3, 224, 224), (2, 3, 64), (2, 3, 4, 64, 64), (2, 3, 4, 16, 16))
    units = []
    for entry in pkgutil.iter_modules(package.__path__):
        try:
            module = import_module(f"vit_pytorch.{entry.name}")
        except (ImportError, OSError):
            continue
        named = [
            made
            for name, made in classes(module, module.__name__).items()
            if re.search(r"former$|vit|nest$|cvt|pit$|rvt$|cct$|wwt|nd$", name, re.I)
            and not name.endswith("Transformer")
        ]
        if named:
            last = max(named, key=lambda made: inspect.getsourcelines(made)[1])
            units.append(
                Unit(f"{entry.name}.{last.__name__}", by_names(last, square, staged, cubic), examples)
            )
    return units


def monai() -> list[Unit]:
    package = import_module("monai.networks.nets")
    volume: dict[str, object] = {
        "spatial_dims": 3, "dimensions": 3, "in_channels": 1, "n_input_channels": 1, "num_channels": 1,
        "out_channels": 2,
        "num_classes": 2, "classes": 2, "channels": (8, 8, 16), "strides": (2, 2, 1), "img_size": 32,
        "patch_size": 8,
        "image_size": (32, 32, 32), "in_shape": (1, 32, 32, 32), "out_shape": (2,), "latent_size": 8,
        "hidden_size": 32,
        "mlp_dim": 64, "num_heads": 4, "num_layers": 2, "feature_size": 12, "num_channel_initial": 8, "depth": 2,
        "extract_levels": (0, 1), "input_image_size": (32, 32, 32), "init_filters": 8, "label_nc": 3,
        "norm_num_groups": 4,
        "input_shape": (32, 32, 32), "num_tokens": 97, "max_seq_len": 32, "attn_layers_dim": 32,
        "attn_layers_depth": 2,
        "attn_layers_heads": 2, "model_name": "efficientnet-b0", "backbone": "resnet18", "pretrained": False,
        "hidden_channels": (16, 16), "encode_channels": (16,), "decode_channels": (16,), "latent_shape": (8,),
        "start_shape": (8, 4, 4, 4), "num_d": 2, "num_layers_d": 2, "unet_out_channels": 8,
        "final_conv_channels": (8,),
        "kernel_size": (3, 3, 3), "upsample_kernel_size": (2, 2), "num_language_layers": 1, "num_vision_layers": 1,
        "num_mixed_layers": 1, "layers": (1, 1, 1, 1), "groups": 1, "reduction": 4,
        "features": (8, 8, 16, 16, 16, 8),
        "block": "basic", "block_inplanes": (8, 8, 16, 16), "num_res_units": 1, "growth_rate": 4,
        "block_config": (2, 2),
    }  # fmt: skip
    plane = {
        **volume, "spatial_dims": 2, "dimensions": 2, "image_size": (32, 32), "in_shape": (1, 32, 32), "img_size": 64,
        "input_image_size": (32, 32), "input_shape": (32, 32), "start_shape": (8, 4, 4), "in_channels": 3,
    }  # fmt: skip
    wide = {**volume, "channels": (32, 32, 64), "img_size": (64, 64, 64), "hidden_channels": (16,)}
    cubes = [
        (2, 1, 32, 32, 32),
        (2, 1, 64, 64, 64),
        (2, 3, 64, 64),
        (2, 1, 32, 32),
        (2, 8),
        (2, 3, 256, 256),
        (2, 1),
    ]

    def inputs(*shapes: tuple[int, ...]) -> list[Callable[[], object]]:
        return [lambda shape=shape: torch.randn(shape) for shape in shapes]  # type: ignore[misc]

    table: dict[str, list[Callable[[], object]]] = {
        **{
            name: inputs(*cubes)
            for name in ("x", "x_in", "inputs", "input", "images", "moving", "fixed", "input_images", "i")
        },
        "concatenated_pairs": inputs((2, 2, 32, 32, 32), (2, 2, 32, 32)),
        "timesteps": [lambda: torch.tensor([3, 7])],
        "seg": inputs((2, 3, 32, 32, 32), (2, 3, 32, 32, 32), (2, 3, 64, 64)),
        "controlnet_cond": inputs((2, 1, 32, 32, 32), (2, 1, 32, 32, 32), (2, 1, 64, 64)),
        "input_ids": [lambda: torch.randint(97, (2, 12))],
    }
    found = classes(package, "monai.networks.nets")
    parts = re.compile(
        r"Block|Bottleneck|Merging|Attention|MixedLayer|Output|PreTrained|Pooler|Topology|Adapter"
    )
    return [
        Unit(name, by_names(made, volume, plane, wide), named_inputs(table))
        for name, made in found.items()
        if not parts.search(name)
    ]


def torch_geometric() -> list[Unit]:
    package = import_module("torch_geometric.nn.models")
    given: dict[str, object] = {
        "in_channels": 8, "hidden_channels": 16, "out_channels": 4, "num_layers": 3, "depth": 2, "edge_dim": 4,
        "num_timesteps": 2, "num_nodes": 13, "embedding_dim": 16, "hidden_node_channels": 16,
        "hidden_edge_channels": 16,
        "num_blocks": 2, "num_bilinear": 4, "num_spherical": 3, "num_radial": 3, "int_emb_size": 8,
        "basis_emb_size": 4,
        "out_emb_channels": 16, "num_rels": 3, "seq_len": 4, "num_classes": 4, "dim_emb": 16, "dim_pe_in": 4,
        "dim_pe_out": 8, "num_filters": 16, "num_heads": 2, "heads": 2, "channel_list": [8, 16, 16, 4],
        "mode": "cat",
        "local_layers": 2, "global_layers": 2, "trans_num_layers": 2, "gnn_num_layers": 2, "vecnorm_type": "none",
    }  # fmt: skip

    def edges() -> Tensor:
        return torch.randint(13, (2, 40), generator=torch.Generator().manual_seed(0))

    table: dict[str, list[Callable[[], object]]] = {
        "x": [lambda: torch.randn(13, 8)],
        "edge_index": [edges],
        "pos_edge_index": [edges],
        "neg_edge_index": [lambda: edges().flip(0)],
        "edge_attr": [lambda: torch.randn(40, 4)],
        "batch": [lambda: torch.tensor([0] * 6 + [1] * 7)],
        "z": [lambda: torch.randint(1, 9, (13,))],
        "pos": [lambda: torch.randn(13, 3)],
        "y": [lambda: torch.randint(4, (13,))],
        "mask": [lambda: torch.rand(13) < 0.5],
        "pos_enc": [lambda: torch.randn(13, 4)],
        "xs": [lambda: [torch.randn(13, 8), torch.randn(13, 8)]],
    }
    return [
        Unit(name, by_names(made, given), named_inputs(table))
        for name, made in classes(package, "torch_geometric.nn.models").items()
    ]


def neuralforecast() -> list[Unit]:
    package = import_module("neuralforecast.models")
    shared: dict[str, object] = {
        "h": 4, "input_size": 12, "logger": False, "enable_progress_bar": False, "n_series": 3, "hidden_size": 16,
        "n_head": 2, "n_heads": 2, "encoder_hidden_size": 16, "decoder_hidden_size": 16, "conv_hidden_size": 8,
        "linear_hidden_size": 16, "d_model": 16, "d_ff": 16, "encoder_layers": 2, "lstm_hidden_size": 16,
    }  # fmt: skip

    def make(made: Callable[..., nn.Module], names: set[str]) -> Callable[[Random], Iterable[Make]]:
        return lambda _rng: [lambda: made(**{name: value for name, value in shared.items() if name in names})]

    def examples(host: Any) -> Iterator[ExampleInput]:
        width = 3 if getattr(host, "MULTIVARIATE", False) else 1
        yield (
            {
                "insample_y": torch.randn(2, 12, width), "insample_mask": torch.ones(2, 12, width),
                "futr_exog": None, "hist_exog": None, "stat_exog": None,
            },
        )  # fmt: skip

    return [
        Unit(name, make(made, set(inspect.signature(made).parameters)), examples)
        for name, made in classes(package, "neuralforecast.models").items()
    ]


def braindecode() -> list[Unit]:
    package = import_module("braindecode.models.util")
    package._init_models_dict()
    given: dict[str, object] = {"n_chans": 8, "n_outputs": 4, "n_times": 1000, "sfreq": 100}
    long = {**given, "n_times": 3000}
    examples = tensors_of((2, 8, 1000), (2, 8, 3000))
    return [
        Unit(name, by_names(made, given, long), examples)
        for name, made in sorted(package.models_dict.items())
    ]


def tsai() -> list[Unit]:
    package = import_module("tsai.models")
    given: dict[str, object] = {"c_in": 3, "c_out": 5, "seq_len": 64, "d": None, "pred_dim": 8, "n_layers": 2}
    units = []
    for entry in pkgutil.iter_modules(package.__path__):
        try:
            module = import_module(f"tsai.models.{entry.name}")
        except Exception:  # what a package of optional parts raises where one is not there
            continue
        made = classes(module, module.__name__).get(entry.name)
        if made is not None:
            units.append(Unit(entry.name, by_names(made, given), tensors_of((2, 3, 64))))
    return units


def kornia() -> list[Unit]:
    found = {
        **classes(import_module("kornia.feature"), "kornia.feature"),
        **classes(import_module("kornia.contrib"), "kornia"),
        **classes(import_module("kornia.models"), "kornia"),
    }
    given: dict[str, object] = {
        "pretrained": False,
        "pretrained_backbone": False,
        "image_size": 64,
        "config": {},
    }
    examples = tensors_of((2, 1, 32, 32), (2, 3, 64, 64), (2, 1, 64, 64), (2, 3, 224, 224))
    return [Unit(name, by_names(made, given), examples) for name, made in sorted(found.items())]


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


# One or two models a package, with what their own first example passes, made smaller


def singles() -> list[Unit]:
    given: dict[str, object] = {
        "dim": 32, "depth": 2, "heads": 2, "num_tokens": 97, "seq_len": 64, "max_seq_len": 64, "dim_head": 16,
        "image_size": 32, "patch_size": 8, "num_classes": 5, "num_freq_bands": 4, "max_freq": 10.0,
        "queries_dim": 32,
        "num_latents": 8, "latent_dim": 32, "window_size": 16, "local_attn_window_size": 16, "bucket_size": 16,
        "num_memory_tokens": 4, "num_frames": 4, "fmap_size": 16, "num_landmarks": 8, "input_dim": 6,
        "output_dim": 2,
        "hidden_dim": 16, "layers": (2, 2, 2, 2), "block_size": 16, "codebook_size": 16, "levels": [8, 5, 5],
        "channels": 3, "reversible": False, "n_features": 6, "dim_k": 16,
        "group_attention_matrix": None, "num_dimensions": 2,
    }  # fmt: skip
    staged = {
        **given,
        "heads": (1, 2, 2, 2),
        "depth": (1, 2),
        "dim": (32, 16),
        "max_seq_len": (16, 4),
        "window_size": 4,
    }
    tokens = torch.randint
    listed = {
        "perceiver_pytorch": ("Perceiver", "PerceiverLM"),
        "linformer": ("LinformerLM", "Linformer"),
        "reformer_pytorch": ("Reformer", "ReformerLM"),
        "g_mlp_pytorch": ("gMLP", "gMLPVision"),
        "axial_attention": ("AxialImageTransformer",),
        "timesformer_pytorch": ("TimeSformer",),
        "bottleneck_transformer_pytorch": ("BottleStack",),
        "MEGABYTE_pytorch": ("MEGABYTE",),
        "mega_pytorch": ("Mega",),
        "uniformer_pytorch": ("Uniformer",),
        "h_transformer_1d": ("HTransformer1D",),
        "local_attention": ("LocalTransformer",),
        "linear_attention_transformer": ("LinearAttentionTransformer", "LinearAttentionTransformerLM"),
        "pytorch_tabnet.tab_network": ("TabNetNoEmbeddings",),
        "recurrent_memory_transformer_pytorch": ("RecurrentMemoryTransformer",),
        "nystrom_attention": ("Nystromformer",),
        "sinkhorn_transformer": ("SinkhornTransformer", "SinkhornTransformerLM"),
        "routing_transformer": ("RoutingTransformer", "RoutingTransformerLM"),
        "swin_transformer_pytorch": ("SwinTransformer",),
        "x_unet": ("XUnet", "NestedResidualUnet"),
        "block_recurrent_transformer_pytorch": ("BlockRecurrentTransformer",),
        "simple_hierarchical_transformer": ("HierarchicalTransformer",),
        "egnn_pytorch": ("EGNN_Network",),
    }

    def examples(host: nn.Module) -> Iterator[ExampleInput]:
        del host
        yield tokens(97, (2, 64))
        yield torch.randn(2, 64, 32)
        for shape in (
            (2, 3, 32, 32),
            (2, 32, 16, 16),
            (2, 32, 32, 3),
            (2, 6),
            (2, 4, 3, 32, 32),
            (2, 3, 4, 32, 32),
        ):
            yield torch.randn(shape)
        yield tokens(97, (2, 13)), torch.randn(2, 13, 3)
        yield torch.randn(2, 13, 32), torch.randn(2, 13, 3)
        yield torch.randn(2, 3, 224, 224)

    units = []
    for path, names in listed.items():
        try:
            module = import_module(path)
        except ImportError:
            continue
        units += [
            Unit(f"{path}.{name}", by_names(getattr(module, name), given, staged), examples) for name in names
        ]
    return units


POOLS: dict[str, tuple[Callable[[], list[Unit]], int]] = {
    "timm": (timm, 40),
    "torchvision": (torchvision, 14),
    "transformers": (transformers, 60),
    "diffusers": (diffusers, 24),
    "torch_geometric": (torch_geometric, 14),
    "monai": (monai, 20),
    "segmentation_models_pytorch": (segmentation, 4),
    "vit_pytorch": (vit_pytorch, 24),
    "neuralforecast": (neuralforecast, 9),
    "pytorchcv": (pytorchcv, 22),
    "braindecode": (braindecode, 16),
    "tsai": (tsai, 12),
    "kornia": (kornia, 8),
    "singles": (singles, 15),
}
"""Package -> its units, and how many of them one draw takes. singles: packages that hold a model or two."""
