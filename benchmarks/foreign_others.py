"""Tiny networks over graphs, series, sound, text and tables, and generative models, from a dozen packages."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from esper.kasmina.probing import ExampleInput
from foreign_cases import Case, case

Example = Callable[[], ExampleInput]


def made(
    package: str, path: str, name: str, example: Example, options: Mapping[str, object], **more: object
) -> tuple[str, Case]:
    """A class found under `path` and called with `options`."""

    def build() -> tuple[nn.Module, ExampleInput]:
        return getattr(import_module(path), name)(**options), example()

    return case(package, name, build, **more)


def series(channels: int, length: int) -> Example:
    return lambda: torch.randn(2, channels, length)


def tokens(length: int, width: int) -> Example:
    return lambda: torch.randn(2, length, width)


# Diffusion


def diffusers(name: str, example: Example, **options: object) -> tuple[str, Case]:
    return made("diffusers", "diffusers", name, example, options)


def noised(shape: tuple[int, ...], **more: tuple[int, ...]) -> Example:
    def example() -> ExampleInput:
        return {
            "sample": torch.randn(shape),
            "timestep": torch.tensor([3, 7]),
            **{name: torch.randn(size) for name, size in more.items()},
        }

    return example


_BLOCKS: dict[str, Any] = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
_DIFFUSERS = [
    diffusers("UNet2DModel", noised((2, 3, 16, 16)), sample_size=16, **_BLOCKS, attention_head_dim=4,
              down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    diffusers("UNet2DConditionModel", noised((2, 4, 16, 16), encoder_hidden_states=(2, 5, 8)), **_BLOCKS,
              sample_size=16, cross_attention_dim=8, attention_head_dim=4,
              down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
              up_block_types=("CrossAttnUpBlock2D", "UpBlock2D")),
    diffusers("UNet3DConditionModel", noised((2, 4, 3, 16, 16), encoder_hidden_states=(2, 5, 8)), **_BLOCKS,
              sample_size=16, cross_attention_dim=8, attention_head_dim=4,
              down_block_types=("DownBlock3D", "CrossAttnDownBlock3D"),
              up_block_types=("CrossAttnUpBlock3D", "UpBlock3D")),
    diffusers("AutoencoderKL", lambda: torch.randn(2, 3, 16, 16), block_out_channels=(8, 16), norm_num_groups=4,
              down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    diffusers("VQModel", lambda: torch.randn(2, 3, 16, 16), block_out_channels=(8, 16), norm_num_groups=4,
              down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
              num_vq_embeddings=16),
    diffusers("AutoencoderKLCogVideoX", lambda: torch.randn(2, 3, 5, 16, 16), block_out_channels=(8, 8, 8, 8),
              norm_num_groups=4, layers_per_block=1, latent_channels=4),
    diffusers("DiTTransformer2DModel", lambda: {"hidden_states": torch.randn(2, 4, 8, 8),
              "timestep": torch.tensor([3, 7]), "class_labels": torch.tensor([0, 1])}, num_attention_heads=2,
              attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8, norm_num_groups=4),
    diffusers("SD3Transformer2DModel", lambda: {"hidden_states": torch.randn(2, 4, 8, 8),
              "encoder_hidden_states": torch.randn(2, 5, 16), "pooled_projections": torch.randn(2, 8),
              "timestep": torch.tensor([3, 7])}, sample_size=8, in_channels=4, num_layers=2, attention_head_dim=8,
              num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=8,
              out_channels=4),
]  # fmt: skip


def gaussian_diffusion(dims: int) -> Callable[[], tuple[nn.Module, ExampleInput]]:
    def build() -> tuple[nn.Module, ExampleInput]:
        package = import_module("denoising_diffusion_pytorch")
        if dims == 1:
            net = package.Unet1D(dim=8, dim_mults=(1, 2), channels=3)
            return package.GaussianDiffusion1D(net, seq_length=64, timesteps=20), torch.rand(2, 3, 64)
        net = package.Unet(dim=8, dim_mults=(1, 2), flash_attn=False)
        return package.GaussianDiffusion(net, image_size=16, timesteps=20), torch.rand(2, 3, 16, 16)

    return build


_DENOISING = [
    case("denoising_diffusion_pytorch", f"GaussianDiffusion, {dims}d", gaussian_diffusion(dims), note="random steps")
    for dims in (1, 2)
]  # fmt: skip


# Graphs


def graph() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(13, 8), torch.randint(13, (2, 40), generator=generator)


def graph_net(name: str, **options: object) -> tuple[str, Case]:
    options = {"in_channels": 8, "hidden_channels": 16, "num_layers": 3, "out_channels": 4, **options}
    return made("torch_geometric", "torch_geometric.nn", name, graph, options)


def graph_transformer() -> tuple[nn.Module, ExampleInput]:
    geometric = import_module("torch_geometric.nn")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.blocks = nn.ModuleList(
                geometric.GPSConv(16, geometric.GINConv(nn.Sequential(nn.Linear(16, 16), nn.ReLU())), heads=2)
                for _ in range(3)
            )

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = block(x, edges)
            return x

    return Net(), graph()


def pooled(layer: str) -> Callable[[], tuple[nn.Module, ExampleInput]]:
    """Nodes to graphs: the rows are nodes first and graphs then."""

    def build() -> tuple[nn.Module, ExampleInput]:
        geometric = import_module("torch_geometric.nn")

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList(getattr(geometric, layer)(8, 8) for _ in range(2))
                self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

            def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
                for block in self.blocks:
                    x = block(x, edges).relu()
                out: Tensor = self.head(geometric.global_mean_pool(x, batch))
                return out

        return Net(), (*graph(), torch.tensor([0] * 6 + [1] * 7))

    return build


_GRAPHS = [
    *map(graph_net, ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN")),
    graph_net("PNA", aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([0, 1, 5, 3])),
    case("torch_geometric", "GPSConv", graph_transformer),
    *(case("torch_geometric", f"{layer}, pooled", pooled(layer), slots=["blocks.1", "head"])
      for layer in ("GCNConv", "TransformerConv", "GATv2Conv", "SAGEConv", "GraphConv")),
    made("torch_geometric", "torch_geometric.nn", "GraphUNet", graph,
         {"in_channels": 8, "hidden_channels": 8, "out_channels": 4, "depth": 2}),
]  # fmt: skip


# Forecasts


def forecast(name: str, *, several: int = 0, refused: bool = False, **options: object) -> tuple[str, Case]:
    def build() -> tuple[nn.Module, ExampleInput]:
        shared: dict[str, object] = {"h": 4, "input_size": 12, "enable_progress_bar": False, "logger": False}
        if several:
            shared["n_series"] = several
        model = getattr(import_module("neuralforecast.models"), name)(**shared, **options)
        width = several or 1
        windows = {
            "insample_y": torch.randn(2, 12, width), "insample_mask": torch.ones(2, 12, width), "futr_exog": None,
            "hist_exog": None, "stat_exog": None,
        }  # fmt: skip
        return model, (windows,)

    return case("neuralforecast", name, build, refused=refused)


_FORECASTS = [
    forecast("NBEATS", mlp_units=[[16, 16]] * 3, n_blocks=[1, 1, 1]),
    forecast("NHITS", mlp_units=[[16, 16]] * 3),
    forecast("MLP", hidden_size=16),
    forecast("TCN", encoder_hidden_size=16, decoder_hidden_size=16),
    forecast("BiTCN", hidden_size=8),
    forecast("TiDE", hidden_size=16, decoder_output_dim=8),
    forecast("LSTM", encoder_hidden_size=16, decoder_hidden_size=16),
    forecast("DilatedRNN", refused=True, encoder_hidden_size=8, decoder_hidden_size=8),
    forecast(
        "PatchTST", hidden_size=16, n_heads=2, encoder_layers=2, patch_len=4, stride=2, linear_hidden_size=16
    ),
    forecast("TimesNet", hidden_size=8, conv_hidden_size=8, encoder_layers=2),
    forecast("Informer", hidden_size=16, n_head=2, conv_hidden_size=8),
    forecast("Autoformer", hidden_size=16, n_head=2, conv_hidden_size=8),
    forecast("FEDformer", hidden_size=16, conv_hidden_size=8, modes=4),
    forecast("iTransformer", several=3, hidden_size=16, n_heads=2, d_ff=16),
    forecast("TSMixer", several=3, ff_dim=8),
    forecast("SOFTS", several=3, hidden_size=16, d_core=8, d_ff=16),
    forecast("TimeMixer", several=3, d_model=8, d_ff=8),
    forecast("KAN", hidden_size=8),
]


# Sound


def torchaudio(name: str, example: Example, **options: object) -> tuple[str, Case]:
    return made("torchaudio", "torchaudio.models", name, example, options)


def asteroid(name: str, samples: int = 1024, **options: object) -> tuple[str, Case]:
    def build() -> tuple[nn.Module, ExampleInput]:
        return getattr(import_module("asteroid.models"), name)(2, **options), torch.randn(2, samples)

    return case("asteroid", name, build)


def speechbrain(path: str, name: str, example: Example, **options: object) -> tuple[str, Case]:
    return made("speechbrain", f"speechbrain.{path}", name, example, options)


def emformer() -> ExampleInput:
    return torch.randn(2, 12, 16), torch.tensor([10, 10])


_SOUND = [
    torchaudio("Conformer", lambda: (torch.randn(2, 12, 16), torch.tensor([12, 12])), input_dim=16, num_heads=2,
               ffn_dim=32, num_layers=2, depthwise_conv_kernel_size=3),
    torchaudio("ConvTasNet", lambda: torch.randn(2, 1, 256), enc_num_feats=16, msk_num_feats=8,
               msk_num_hidden_feats=16, msk_num_layers=2, msk_num_stacks=2),
    torchaudio("DeepSpeech", lambda: torch.randn(2, 1, 12, 16), n_feature=16, n_hidden=16, n_class=5),
    torchaudio("Wav2Letter", series(1, 2000), num_classes=5, num_features=1, input_type="waveform"),
    torchaudio("Emformer", emformer, input_dim=16, num_heads=2, ffn_dim=32, num_layers=2, segment_length=4,
               right_context_length=2),
    asteroid("ConvTasNet", n_blocks=2, n_repeats=2, bn_chan=8, hid_chan=16, skip_chan=8, n_filters=16),
    asteroid("DPRNNTasNet", n_filters=8, bn_chan=8, hid_size=8, chunk_size=10, n_repeats=2),
    asteroid("DPTNet", n_filters=16, ff_hid=16, chunk_size=10, n_repeats=2, n_heads=2),
    asteroid("SuDORMRFNet", bn_chan=8, num_blocks=2, upsampling_depth=2, n_filters=16),
    asteroid("LSTMTasNet", n_filters=16, hid_size=16, rnn_type="LSTM", n_layers=2, dropout=0.1),
    speechbrain("lobes.models.ECAPA_TDNN", "ECAPA_TDNN", tokens(20, 8), input_size=8, lin_neurons=8,
                channels=[16, 16, 16, 16, 48], attention_channels=8, res2net_scale=2, se_channels=8),
    speechbrain("lobes.models.Xvector", "Xvector", tokens(20, 8), in_channels=8, tdnn_channels=[8, 8, 8, 8, 16],
                lin_neurons=8, device="cpu"),
    speechbrain("lobes.models.CRDNN", "CRDNN", tokens(20, 16), input_size=16, cnn_channels=(8, 8), rnn_neurons=8,
                rnn_layers=1, dnn_neurons=16),
    speechbrain("lobes.models.ResNet", "ResNet", tokens(24, 16), input_size=16, channels=[8, 8, 8, 8], lin_neurons=8),
    speechbrain("lobes.models.transformer.Transformer", "TransformerEncoder", tokens(12, 16), num_layers=2, nhead=2,
                d_ffn=32, d_model=16),
    speechbrain("lobes.models.Cnn14", "Cnn14", tokens(64, 64), mel_bins=64, emb_dim=32),
]  # fmt: skip


# Text and tables


def x_transformer(kind: str) -> Callable[[], tuple[nn.Module, ExampleInput]]:
    def build() -> tuple[nn.Module, ExampleInput]:
        package = import_module("x_transformers")
        sizes = {"dim": 16, "depth": 2, "heads": 2, "attn_dim_head": 8}
        if kind == "ViTransformerWrapper":
            layers = package.Encoder(**sizes)
            return package.ViTransformerWrapper(
                image_size=32, patch_size=8, num_classes=5, attn_layers=layers
            ), torch.randn(2, 3, 32, 32)
        if kind == "ContinuousTransformerWrapper":
            return package.ContinuousTransformerWrapper(
                dim_in=8, dim_out=4, max_seq_len=32, attn_layers=package.Encoder(**sizes)
            ), torch.randn(2, 12, 8)
        layers = getattr(package, kind)(**sizes, rotary_pos_emb=True)
        return package.TransformerWrapper(num_tokens=97, max_seq_len=32, attn_layers=layers), torch.randint(
            97, (2, 12)
        )

    return build


def tabular() -> ExampleInput:
    return torch.randn(5, 6)


_TEXT_AND_TABLES = [
    *(case("x_transformers", kind, x_transformer(kind))
      for kind in ("Decoder", "Encoder", "ViTransformerWrapper", "ContinuousTransformerWrapper")),
    made("performer_pytorch", "performer_pytorch", "PerformerLM", lambda: torch.randint(97, (2, 12)),
         {"num_tokens": 97, "max_seq_len": 12, "dim": 16, "depth": 2, "heads": 2, "dim_head": 8}),
    made("conformer", "conformer", "Conformer", tokens(12, 16), {"dim": 16, "depth": 2, "heads": 2, "dim_head": 8}),
    made("pytorch_tcn", "pytorch_tcn", "TCN", series(4, 20), {"num_inputs": 4, "num_channels": [8, 8, 8]}),
    made("rtdl_revisiting_models", "rtdl_revisiting_models", "MLP", tabular,
         {"d_in": 6, "d_out": 2, "n_blocks": 3, "d_block": 16, "dropout": 0.1}),
    made("rtdl_revisiting_models", "rtdl_revisiting_models", "ResNet", tabular,
         {"d_in": 6, "d_out": 2, "n_blocks": 3, "d_block": 16, "d_hidden": 32, "d_hidden_multiplier": None,
          "dropout1": 0.1, "dropout2": 0.0}),
    made("rtdl_revisiting_models", "rtdl_revisiting_models", "FTTransformer", lambda: (torch.randn(5, 6), None),
         {"n_cont_features": 6, "cat_cardinalities": [], "d_out": 2, "n_blocks": 2, "d_block": 16,
          "attention_n_heads": 2, "attention_dropout": 0.1, "ffn_d_hidden": None, "ffn_d_hidden_multiplier": 2.0,
          "ffn_dropout": 0.1, "residual_dropout": 0.0}),
]  # fmt: skip

CASES: dict[str, Case] = dict([*_DIFFUSERS, *_DENOISING, *_GRAPHS, *_FORECASTS, *_SOUND, *_TEXT_AND_TABLES])
