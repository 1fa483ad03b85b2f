"""Tiny networks over images, volumes and videos: timm, torchvision, vit-pytorch, MONAI and segmentation models."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.probing import ExampleInput
from foreign_cases import Case, case


def images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size)


def timm(name: str, size: int = 32, label: str = "", **options: object) -> tuple[str, Case]:
    def build() -> tuple[nn.Module, ExampleInput]:
        return import_module("timm").create_model(name, num_classes=5, **options), images(size)

    return f"timm {name}{label}", Case("timm", build)


def torchvision(name: str, size: int = 32, module: str = "models", **options: object) -> tuple[str, Case]:
    def build() -> tuple[nn.Module, ExampleInput]:
        made = getattr(import_module(f"torchvision.{module}"), name)(num_classes=5, **options)
        return made, images(size)

    return f"torchvision {name}", Case("torchvision", build)


def vit(
    name: str, module: str, example: Callable[[], ExampleInput] = images, **options: object
) -> tuple[str, Case]:
    """A model of vit-pytorch."""

    def build() -> tuple[nn.Module, ExampleInput]:
        return getattr(import_module(f"vit_pytorch.{module}"), name)(**options), example()

    return f"vit-pytorch {module}.{name}", Case("vit_pytorch", build)


def segmentation(name: str, encoder: str = "mobilenet_v2", *slots: str) -> tuple[str, Case]:
    def build() -> tuple[nn.Module, ExampleInput]:
        made = getattr(import_module("segmentation_models_pytorch"), name)
        return made(encoder, encoder_weights=None, classes=2), images(64)

    return f"segmentation {name}, {encoder}", Case("segmentation_models_pytorch", build, list(slots))


def monai(name: str, shape: tuple[int, ...], label: str = "", **options: object) -> tuple[str, Case]:
    def build() -> tuple[nn.Module, ExampleInput]:
        made: nn.Module = getattr(import_module("monai.networks.nets"), name)(**options)
        return made, torch.randn(shape)

    return f"MONAI {name}{label}", Case("monai", build)


def swin_3d() -> tuple[nn.Module, ExampleInput]:
    made = import_module("torchvision.models.video.swin_transformer").SwinTransformer3d(
        patch_size=[2, 4, 4],
        embed_dim=12,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=[2, 4, 4],
        num_classes=5,
    )
    return made, torch.randn(2, 3, 4, 32, 32)


def video_resnet() -> tuple[nn.Module, ExampleInput]:
    video = import_module("torchvision.models.video.resnet")
    simple = [video.Conv3DSimple] * 4
    return video.VideoResNet(video.BasicBlock, simple, [1, 1, 1, 1], video.BasicStem, 5), torch.randn(
        2, 3, 4, 24, 24
    )


def swin_2d(version: int) -> Callable[[], tuple[nn.Module, ExampleInput]]:
    def build() -> tuple[nn.Module, ExampleInput]:
        swin = import_module("torchvision.models.swin_transformer")
        block, merging = (
            (swin.SwinTransformerBlock, swin.PatchMerging)
            if version == 1
            else (swin.SwinTransformerBlockV2, swin.PatchMergingV2)
        )
        made = swin.SwinTransformer(
            [4, 4], 12, [2, 2], [2, 2], [4, 4], num_classes=5, block=block, downsample_layer=merging
        )
        return made, images()

    return build


def convnext() -> tuple[nn.Module, ExampleInput]:
    made = import_module("torchvision.models.convnext")
    setting = [made.CNBlockConfig(8, 16, 2), made.CNBlockConfig(16, None, 2)]
    return made.ConvNeXt(setting, num_classes=5), images()


def vision_transformer() -> tuple[nn.Module, ExampleInput]:
    made = import_module("torchvision.models").VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)
    return made, images()


SMALL_VIT: dict[str, Any] = {"depth": 3, "embed_dim": 24, "num_heads": 2}
VIT: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "dim": 16,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 32,
}
VOLUME: dict[str, Any] = {
    "image_size": 16,
    "image_patch_size": 8,
    "frames": 4,
    "frame_patch_size": 2,
    "num_classes": 5,
    "dim": 16,
}


def volume() -> Tensor:
    return torch.randn(2, 3, 4, 16, 16)


_TIMM = [
    *map(timm, ("test_resnet", "test_byobnet", "test_convnext", "test_convnext2", "test_efficientnet")),
    *map(timm, ("test_efficientnet_gn", "test_efficientnet_ln", "test_mambaout", "test_nfnet")),
    *(timm(name, img_size=32) for name in ("test_vit", "test_vit2", "test_vit3")),
    *(timm(name, 64) for name in ("regnety_002", "regnetx_002", "mobilenetv3_small_050", "ghostnet_050")),
    *(timm(name, 64) for name in ("edgenext_xx_small", "mobilevit_xxs", "mobilevitv2_050", "starnet_s1")),
    *(timm(name, 64) for name in ("pvt_v2_b0", "fastvit_t8", "repvit_m0_9", "lcnet_050", "hgnetv2_b0")),
    *(timm(name, 64) for name in ("poolformer_s12", "poolformerv2_s12", "inception_next_atto", "convnextv2_atto")),
    *(timm(name, 64) for name in ("efficientvit_b0", "mambaout_femto", "caformer_s18", "convformer_s18")),
    timm("resnet10t", 64),
    timm("regnety_002", 64, label=", torch.fx features", features_only=True, feature_cls="fx"),
    timm("swin_tiny_patch4_window7_224", 56, img_size=56, embed_dim=12, depths=(2, 2), num_heads=(2, 2)),
    timm("swinv2_tiny_window8_256", 64, img_size=64, embed_dim=12, depths=(2, 2), num_heads=(2, 2)),
    timm("swinv2_cr_tiny_224", 56, img_size=56, window_size=7, embed_dim=12, depths=(2, 2), num_heads=(2, 2)),
    timm("davit_tiny", 64, depths=(1, 1), embed_dims=(16, 32), num_heads=(2, 2)),
    timm("twins_svt_small", 64, depths=(1, 1, 1, 1)),
    timm("tnt_s_legacy_patch16_224", 64, img_size=64, depth=2),
    timm("cait_xxs24_224", 64, img_size=64, depth=2),
    timm("xcit_nano_12_p16_224", 64, img_size=64, depth=2),
    timm("sequencer2d_s", 224, layers=(1, 1, 1, 1)),
    timm("hiera_tiny_224", 64, img_size=(64, 64), stages=(1, 1, 1, 1)),
    timm("eva02_tiny_patch14_224", 56, img_size=56, depth=2),
    timm("beit_base_patch16_224", 64, img_size=64, **SMALL_VIT),
    timm("vit_relpos_small_patch16_224", 64, img_size=64, **SMALL_VIT),
    timm("levit_128s", 224, embed_dim=(16, 16, 16), num_heads=(2, 2, 2), depth=(1, 1, 1)),
]  # fmt: skip

_TORCHVISION = [
    *(torchvision(name, 64) for name in ("shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "mobilenet_v3_small")),
    *(torchvision(name, 64) for name in ("resnet18", "efficientnet_b0", "regnet_y_400mf", "mobilenet_v2")),
    case("torchvision", "SwinTransformer", swin_2d(1)),
    case("torchvision", "SwinTransformerV2", swin_2d(2)),
    case("torchvision", "SwinTransformer3d", swin_3d),
    case("torchvision", "VideoResNet", video_resnet),
    case("torchvision", "ConvNeXt", convnext),
    case("torchvision", "VisionTransformer", vision_transformer),
]  # fmt: skip

_VIT = [
    *(vit("ViT", module, **VIT) for module in ("vit", "parallel_vit", "vit_for_small_dataset")),
    vit("SimpleViT", "simple_vit", **VIT),
    vit("DeepViT", "deepvit", **VIT),
    vit("CaiT", "cait", **VIT, cls_depth=1),
    vit("PiT", "pit", image_size=64, patch_size=8, num_classes=5, dim=16, depth=(1, 1), heads=2, mlp_dim=32,
        example=lambda: images(64)),
    vit("CvT", "cvt", num_classes=5, s1_emb_dim=8, s2_emb_dim=16, s3_emb_dim=16, s3_depth=1),
    vit("ScalableViT", "scalable_vit", lambda: images(64), num_classes=5, dim=16, heads=(1,) * 4, depth=(1,) * 4,
        ssa_dim_key=(8, 8, 8, 8), reduction_factor=(2, 2, 1, 1), window_size=(2, 2, None, None)),
    vit("MaxViT", "max_vit", lambda: images(64), num_classes=5, dim=8, dim_conv_stem=8, dim_head=8, depth=(1, 1),
        window_size=4),
    vit("NesT", "nest", lambda: images(32), image_size=32, patch_size=4, dim=8, heads=2, num_hierarchies=2,
        block_repeats=(1, 1), num_classes=5),
    vit("MobileViT", "mobile_vit", lambda: images(64), image_size=(64, 64), dims=[16, 16, 16],
        channels=[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 16], num_classes=5),
    vit("XCiT", "xcit", **VIT, cls_depth=1),
    vit("CCT", "cct", img_size=32, embedding_dim=16, n_conv_layers=1, num_layers=2, num_heads=2, mlp_ratio=2.0,
        num_classes=5, kernel_size=3, stride=2, padding=1, positional_embedding="learnable"),
    vit("ViT", "vit_3d", volume, **VOLUME, depth=2, heads=2, mlp_dim=32),
    vit("SimpleViT", "simple_vit_3d", volume, **VOLUME, depth=2, heads=2, mlp_dim=32),
    vit("ViT", "vit_1d", lambda: torch.randn(2, 3, 32), seq_len=32, patch_size=4, num_classes=5, dim=16, depth=2,
        heads=2, mlp_dim=32),
]  # fmt: skip

_SEGMENTATION = [
    *map(segmentation, ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "DeepLabV3Plus")),
    segmentation("PSPNet", "mobilenet_v2", "encoder.features.2", "encoder.features.4"),
    segmentation("Segformer", "mit_b0"),
    segmentation("UPerNet", "resnet18"),
]

_UNET: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
_FLAT_UNET: dict[str, Any] = {"in_channels": 1, "out_channels": 2, "channels": (4, 8), "strides": (2,)}
_CUBE = (2, 1, 16, 16, 16)
_MONAI = [
    monai("UNet", _CUBE, **_UNET, channels=(4, 8, 8), strides=(2, 2), num_res_units=1),
    monai("UNet", (2, 1, 16, 16), ", 2d", spatial_dims=2, **_FLAT_UNET),
    monai("UNet", (2, 1, 32), ", 1d", spatial_dims=1, **_FLAT_UNET),
    monai("AttentionUnet", _CUBE, **_UNET, channels=(4, 8, 8), strides=(2, 2)),
    monai("DynUNet", _CUBE, **_UNET, kernel_size=[3] * 3, strides=[1, 2, 2], upsample_kernel_size=[2, 2],
          filters=[4, 8, 8]),
    monai("SegResNet", _CUBE, **_UNET, init_filters=8, blocks_down=(1, 1), blocks_up=(1,)),
    monai("VNet", (2, 1, 16, 16, 16), spatial_dims=3, in_channels=1, out_channels=2),
    monai("UNETR", (2, 1, 16, 16, 16), in_channels=1, out_channels=2, img_size=16, feature_size=4, hidden_size=16,
          mlp_dim=32, num_heads=2),
    monai("ViT", _CUBE, in_channels=1, img_size=16, patch_size=8, hidden_size=16, mlp_dim=32, num_layers=2,
          num_heads=2),
    monai("DenseNet", _CUBE, spatial_dims=3, in_channels=1, out_channels=2, init_features=4, growth_rate=4,
          block_config=(2, 2)),
    monai("ResNet", _CUBE, block="basic", layers=[1, 1, 1, 1], block_inplanes=[4, 4, 8, 8], n_input_channels=1,
          num_classes=2),
    monai("HighResNet", _CUBE, **_UNET),
    monai("VarAutoEncoder", _CUBE, spatial_dims=3, in_shape=(1, 16, 16, 16), out_channels=1, latent_size=4,
          channels=(4, 8), strides=(2, 2)),
    monai("AutoEncoder", _CUBE, spatial_dims=3, in_channels=1, out_channels=1, channels=(4, 8), strides=(2, 2)),
    monai("Regressor", (2, 1, 16, 16), in_shape=(1, 16, 16), out_shape=(2,), channels=(4, 8), strides=(2, 2)),
    monai("MedNeXt", _CUBE, **_UNET, init_filters=4, blocks_down=(1, 1, 1, 1), blocks_up=(1, 1, 1, 1)),
    monai("VQVAE", _CUBE, spatial_dims=3, in_channels=1, out_channels=1, channels=(8, 8), num_res_layers=1,
          num_res_channels=(8, 8), downsample_parameters=((2, 4, 1, 1), (2, 4, 1, 1)),
          upsample_parameters=((2, 4, 1, 1, 0), (2, 4, 1, 1, 0)), num_embeddings=8, embedding_dim=4),
]  # fmt: skip

CASES: dict[str, Case] = dict([*_TIMM, *_TORCHVISION, *_VIT, *_SEGMENTATION, *_MONAI])
