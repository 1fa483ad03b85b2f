"""Tiny, randomly initialised versions of architectures that others wrote (and a few shapes torch.nn suggests)."""

from collections.abc import Mapping

import torch
import transformers as hf
from torch import Tensor, nn

from esper.kasmina.probing import ExampleInput
from foreign_cases import Build, Case

WIDTH, LAYERS, HEADS, VOCABULARY = 32, 2, 4, 97
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}


def ids() -> Tensor:
    return torch.randint(5, VOCABULARY, (2, 11))


def pixels(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


def text(
    name: str, model: str, options: Mapping[str, object], *slots: str, **more: object
) -> tuple[str, Case]:
    """A model over token ids."""

    def build() -> tuple[nn.Module, ExampleInput]:
        config = getattr(hf, f"{model}Config")(**options)
        return getattr(hf, f"{name}")(config), {"input_ids": ids()}

    return name, Case("transformers", build, list(slots), **more)  # type: ignore[arg-type]


def vision(
    name: str, config: str, options: Mapping[str, object], *slots: str, size: int = 32, **more: object
) -> tuple[str, Case]:
    """A model over images."""

    def build() -> tuple[nn.Module, ExampleInput]:
        return getattr(hf, name)(getattr(hf, config)(**options)), pixels(size)

    return name, Case("transformers", build, list(slots), **more)  # type: ignore[arg-type]


def encoder(model: str, *slots: str, **extra: object) -> tuple[str, Case]:
    return text(f"{model}Model", model, {**TEXT, "intermediate_size": 64, **extra}, *slots)


def decoder(model: str, *slots: str, **extra: object) -> tuple[str, Case]:
    options = {**TEXT, "intermediate_size": 64, **extra}
    return text(f"{model}Model", model, options, *(slots or ("layers.0", "layers.1.mlp")), causal=True)


BERT_LAYERS = ("encoder.layer.0", "encoder.layer.1")
VIT = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
AUDIO = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 64,
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0,
}  # fmt: skip
KEY_VALUE = {"num_key_value_heads": 2}


def audio(model: str) -> tuple[str, Case]:
    def build() -> tuple[nn.Module, ExampleInput]:
        return getattr(hf, f"{model}Model")(getattr(hf, f"{model}Config")(**AUDIO)), {
            "input_values": torch.randn(2, 800)
        }

    return f"{model}Model", Case(
        "transformers", build, ["encoder.layers.0", "feature_extractor.conv_layers.1"], layout=None
    )


def whisper() -> tuple[nn.Module, ExampleInput]:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=8, d_model=WIDTH, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_source_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return hf.WhisperModel(config).get_encoder(), {"input_features": torch.randn(2, 8, 40)}


def patch_tst(name: str) -> Build:
    def build() -> tuple[nn.Module, ExampleInput]:
        config = getattr(hf, f"{name}Config")(
            num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, d_model=16,
            num_hidden_layers=2, num_layers=2, num_attention_heads=2, ffn_dim=32,
        )  # fmt: skip
        return getattr(hf, f"{name}Model")(config), {"past_values": torch.randn(2, 32, 3)}

    return build


def bart(name: str) -> Build:
    def build() -> tuple[nn.Module, ExampleInput]:
        config = getattr(hf, f"{name}Config")(
            vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, use_cache=False,
        )  # fmt: skip
        return getattr(hf, f"{name}Model")(config), {"input_ids": ids(), "decoder_input_ids": ids()}

    return build


class Tagger(nn.Module):
    def __init__(self, recurrent: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.recurrent = recurrent(16, 16, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(32, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.recurrent(self.embed(tokens))[0])
        return out


class UNet(nn.Module):
    """Two levels, skip connections, batch norm, in-place ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.block(3, 8), self.block(8, 16)])
        self.middle = self.block(16, 16)
        self.up = nn.ModuleDict({"deep": self.block(32, 8), "shallow": self.block(16, 8)})
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def block(size_in: int, size_out: int) -> nn.Module:
        layers = (nn.Conv2d(size_in, size_out, 3, padding=1), nn.BatchNorm2d(size_out), nn.ReLU(inplace=True))
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        shallow = self.down[0](x)
        deep = self.down[1](nn.functional.max_pool2d(shallow, 2))
        h = nn.functional.interpolate(self.middle(nn.functional.max_pool2d(deep, 2)), scale_factor=2)
        h = nn.functional.interpolate(self.up["deep"](torch.cat([h, deep], 1)), scale_factor=2)
        out: Tensor = self.head(self.up["shallow"](torch.cat([h, shallow], 1)))
        return out


def efficient_net() -> tuple[nn.Module, ExampleInput]:
    """Its own initialisation makes so small a network put out 1e-34, and then nothing in it learns."""
    options = {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320, "image_size": 64}
    model: nn.Module = hf.EfficientNetModel(hf.EfficientNetConfig.from_dict(options))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model, pixels(64)


def bert() -> tuple[nn.Module, ExampleInput]:
    return CASES["BertModel"].build()


def checkpointed() -> tuple[nn.Module, ExampleInput]:
    model, example = bert()
    assert isinstance(model, hf.BertModel)
    model.gradient_checkpointing_enable()
    return model, example


def transformer() -> tuple[nn.Module, ExampleInput]:
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
    model.encoder.use_nested_tensor = False
    return model, (torch.randn(2, 7, 16), torch.randn(2, 5, 16))


def torch_encoder(nested: bool) -> Build:
    def build() -> tuple[nn.Module, ExampleInput]:
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested), torch.randn(3, 7, 16)

    return build


CASES: dict[str, Case] = dict(
    [
        encoder("Bert", *BERT_LAYERS),
        encoder("Roberta", *BERT_LAYERS, pad_token_id=1),
        encoder("XLMRoberta", "encoder.layer.0.output", "encoder.layer.1.attention", pad_token_id=1),
        encoder("Electra", *BERT_LAYERS, embedding_size=WIDTH),
        encoder("DebertaV2", "encoder.layer.0", "encoder.layer.1.output"),
        encoder("ConvBert", *BERT_LAYERS, embedding_size=WIDTH),
        encoder("RoFormer", *BERT_LAYERS, embedding_size=WIDTH),
        encoder("MPNet", *BERT_LAYERS),
        encoder(
            "ModernBert",
            "layers.0",
            "layers.1.mlp",
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
        text(
            "AlbertModel",
            "Albert",
            {**TEXT, "embedding_size": 16, "intermediate_size": 64},
            "encoder.albert_layer_groups.0.albert_layers.0",
            "embeddings",
        ),
        text(
            "DistilBertModel",
            "DistilBert",
            {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
            "transformer.layer.0",
            "transformer.layer.1.ffn",
        ),
        text("FNetModel", "FNet", {**TEXT, "intermediate_size": 64}, *BERT_LAYERS),
        text(
            "T5EncoderModel",
            "T5",
            {
                "vocab_size": VOCABULARY,
                "d_model": WIDTH,
                "d_kv": 8,
                "d_ff": 64,
                "num_layers": 2,
                "num_heads": 4,
            },
            "encoder.block.0",
            "encoder.block.1.layer.1",
        ),
        text(
            "GPT2Model",
            "GPT2",
            {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4},
            "h.0",
            "h.1.mlp",
            causal=True,
        ),
        text(
            "GPT2LMHeadModel",
            "GPT2",
            {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4},
            "transformer.h.0",
            "transformer.wte",
            causal=True,
            note="tied head",
        ),
        text(
            "GPTNeoModel",
            "GPTNeo",
            {
                "vocab_size": VOCABULARY,
                "hidden_size": WIDTH,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 1]],
            },
            "h.0",
            "h.1",
            causal=True,
        ),
        text(
            "OPTModel",
            "OPT",
            {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": WIDTH, "max_position_embeddings": 64},
            "decoder.layers.0",
            "decoder.layers.1.fc2",
            causal=True,
        ),
        text(
            "BloomModel",
            "Bloom",
            {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4},
            "h.0",
            "h.1.mlp",
            causal=True,
        ),
        decoder("GPTNeoX"),
        decoder("Llama", **KEY_VALUE),
        decoder("Mistral", **KEY_VALUE),
        decoder("Qwen2", **KEY_VALUE),
        decoder("Gemma", **KEY_VALUE, head_dim=8),
        decoder("Phi"),
        decoder("StableLm", **KEY_VALUE),
        ("BartModel", Case("transformers", bart("Bart"), ["encoder.layers.0", "decoder.layers.1"])),
        ("MBartModel", Case("transformers", bart("MBart"), ["encoder.layers.1", "decoder.layers.0.fc2"])),
        vision("ViTModel", "ViTConfig", VIT, "layers.0", "layers.1"),
        vision("DeiTModel", "DeiTConfig", VIT, "layers.0", "layers.1"),
        vision("BeitModel", "BeitConfig", VIT, "layers.0", "layers.1"),
        vision("Dinov2Model", "Dinov2Config", VIT, "encoder.layer.0", "encoder.layer.1.mlp"),
        vision(
            "SwinModel",
            "SwinConfig",
            {
                "image_size": 32,
                "patch_size": 4,
                "embed_dim": 16,
                "depths": [2, 2],
                "num_heads": [2, 4],
                "window_size": 4,
            },
            "encoder.layers.0.blocks.0",
            "encoder.layers.1.blocks.1",
        ),
        vision(
            "SegformerModel",
            "SegformerConfig",
            {
                "hidden_sizes": [8, 16, 16, 32],
                "depths": [1, 1, 1, 1],
                "num_attention_heads": [1, 2, 2, 4],
                "decoder_hidden_size": 16,
            },
            "stages.0.blocks.0",
            "stages.1.patch_embeddings.proj",
            size=64,
        ),
        vision(
            "ConvNextModel",
            "ConvNextConfig",
            {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
            "encoder.stages.0",
            "encoder.stages.2.layers.0",
            size=64,
        ),
        vision(
            "ConvNextV2Model",
            "ConvNextV2Config",
            {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
            "encoder.stages.1",
            "encoder.stages.2.layers.0",
            size=64,
        ),
        vision(
            "ResNetModel",
            "ResNetConfig",
            {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
            "encoder.stages.0",
            "encoder.stages.1.layers.0",
        ),
        vision(
            "RegNetModel",
            "RegNetConfig",
            {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
            "encoder.stages.0",
            "encoder.stages.1",
        ),
        vision(
            "MobileNetV1Model",
            "MobileNetV1Config",
            {"depth_multiplier": 0.25, "min_depth": 8},
            "layer.0",
            "layer.5",
        ),
        vision(
            "MobileNetV2Model",
            "MobileNetV2Config",
            {"depth_multiplier": 0.25, "min_depth": 8},
            "layer.0",
            "layer.5",
            size=64,
        ),
        ("EfficientNetModel", Case("transformers", efficient_net, ["encoder.blocks.0", "encoder.blocks.2"])),
        vision(
            "MobileViTModel",
            "MobileViTConfig",
            {
                "hidden_sizes": [16, 16, 16],
                "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
                "num_attention_heads": 2,
                "image_size": 64,
            },
            "encoder.layer.0",
            "encoder.layer.2",
            size=64,
        ),
        vision(
            "PoolFormerModel",
            "PoolFormerConfig",
            {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]},
            "encoder.block.0.0",
            "encoder.block.2.0",
            size=64,
        ),
        vision(
            "PvtModel",
            "PvtConfig",
            {
                "image_size": 64,
                "hidden_sizes": [8, 16, 16, 32],
                "depths": [1, 1, 1, 1],
                "num_attention_heads": [1, 2, 2, 4],
            },
            "encoder.block.0.0",
            "encoder.block.1.0",
            size=64,
        ),
        audio("Wav2Vec2"),
        audio("Hubert"),
        ("WhisperEncoder", Case("transformers", whisper, ["layers.0", "conv2"])),
        (
            "PatchTSTModel",
            Case("transformers", patch_tst("PatchTST"), ["encoder.layers.0.ff", "encoder.layers.1.ff"]),
        ),
        (
            "PatchTSMixerModel",
            Case(
                "transformers",
                patch_tst("PatchTSMixer"),
                ["encoder.mlp_mixer_encoder.mixers.0", "encoder.mlp_mixer_encoder.mixers.1"],
            ),
        ),
        ("BertModel, gradient checkpointing", Case("transformers", checkpointed, list(BERT_LAYERS))),
        ("BertModel, torch.compile", Case("transformers", bert, list(BERT_LAYERS), compiled=True)),
        ("torch.nn.Transformer", Case("torch", transformer, ["encoder.layers.0", "decoder.layers.1"])),
        (
            "torch.nn.TransformerEncoder",
            Case("torch", torch_encoder(False), ["layers.0", "layers.1.linear2"]),
        ),
        (
            "torch.nn.TransformerEncoder, nested",
            Case("torch", torch_encoder(True), ["layers.0"], refused=True),
        ),
        ("LSTM tagger", Case("torch", lambda: (Tagger(nn.LSTM), ids()), ["recurrent", "embed"])),
        ("GRU tagger", Case("torch", lambda: (Tagger(nn.GRU), ids()), ["recurrent", "head"])),
        ("U-Net", Case("torch", lambda: (UNet(), torch.randn(2, 3, 16, 16)), ["down.0", "up.deep"])),
    ]
)
