"""Registries of other people's models: what can be drawn from each, built by the rules of `blind_rules`."""

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from blind_configs import diffusers, transformers
from blind_rules import (
    Given,
    Make,
    Unit,
    by_names,
    classes,
    families,
    named_inputs,
    of_family,
    tensors_of,
)
from esper.kasmina.probing import ExampleInput

# Registries of image models: a family is a file of the package


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
