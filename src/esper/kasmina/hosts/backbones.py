"""Published networks under a head of our own: convolutions in inverted residuals, and BERT.

mobilenet_v2          Sandler et al. 2018
efficientnet_lite0    Tan and Le 2019, without squeeze-and-excitation and with ReLU6
all-MiniLM-L6-v2      a BERT of six layers (Devlin et al. 2018, Wang et al. 2020), through `transformers`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from esper.kasmina.hosts.pretrained import FrozenBody, Statistics, Trains
from esper.leyline.errors import EsperError, install


class BackboneError(EsperError, RuntimeError):
    """A backbone cannot be built: what it needs is not installed, or weights are not its own."""


class Stage(NamedTuple):
    """Blocks of one width."""

    expansion: int
    """Channels inside a block, over those that go in."""
    channels: int
    blocks: int
    stride: int
    """Of the first block."""
    kernel: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """What a network of inverted residuals looks like."""

    stages: tuple[Stage, ...]
    stem: int = 32
    """Channels."""
    top: int = 1280
    """Channels that the head reads."""
    epsilon: float
    """Of its BatchNorm layers."""
    pads_behind: bool
    """Whether a convolution of stride 2 pads an even side behind alone, as TensorFlow does."""

    @property
    def block_ends(self) -> tuple[int, ...]:
        """Places in the body behind the stem and behind each stage."""
        ends = [0]
        for stage in self.stages:
            ends.append(ends[-1] + stage.blocks)
        return tuple(ends)


MOBILENET_V2 = ConvShape(
    stages=(
        Stage(1, 16, 1, 1),
        Stage(6, 24, 2, 2),
        Stage(6, 32, 3, 2),
        Stage(6, 64, 4, 2),
        Stage(6, 96, 3, 1),
        Stage(6, 160, 3, 2),
        Stage(6, 320, 1, 1),
    ),
    epsilon=1e-5,
    pads_behind=False,
)
EFFICIENTNET_LITE0 = ConvShape(
    stages=(
        Stage(1, 16, 1, 1),
        Stage(6, 24, 2, 2),
        Stage(6, 40, 2, 2, kernel=5),
        Stage(6, 80, 3, 2),
        Stage(6, 112, 3, 1, kernel=5),
        Stage(6, 192, 4, 2, kernel=5),
        Stage(6, 320, 1, 1),
    ),
    epsilon=1e-3,
    pads_behind=True,
)


class ConvBackbone(FrozenBody):
    """A stem, inverted residuals and a last convolution (`body`), pooled, and a linear head.

    weights  a published state dict, whose tensors are matched in their order; a classifier in it is left out, unless
             `outputs` is None, which keeps it
    """

    samples_at_once = 100

    def __init__(
        self,
        shape: ConvShape,
        outputs: int | None,
        weights: Mapping[str, Tensor],
        *,
        trains: Trains = "head",
        statistics: Statistics = "target",
    ) -> None:
        super().__init__()
        self.body = conv_body(shape)
        classifier = len(list(weights.values())[-1])
        self.head = nn.Linear(shape.top, outputs or classifier)
        _load_in_order(self.body if outputs else self, weights, left_out=2 if outputs else 0)
        self.settle((self.body,), trains, statistics)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x).mean((2, 3)))
        return outputs


def conv_body(shape: ConvShape) -> nn.Sequential:
    """A stem, every stage's blocks one after another, and a last convolution, untrained."""
    blocks: list[nn.Module] = []
    channels = shape.stem
    for stage in shape.stages:
        for place in range(stage.blocks):
            blocks.append(InvertedResidual(shape, channels, stage, stride=1 if place else stage.stride))
            channels = stage.channels
    stem = nn.Sequential(*_convolved(shape, 3, shape.stem, 3, stride=2))
    return nn.Sequential(stem, *blocks, nn.Sequential(*_convolved(shape, channels, shape.top, 1)))


class InvertedResidual(nn.Module):
    """Expand the channels, convolve each by itself, and project; added to its input where the shapes allow it."""

    def __init__(self, shape: ConvShape, channels: int, stage: Stage, *, stride: int) -> None:
        super().__init__()
        inner = channels * stage.expansion
        expand = [] if stage.expansion == 1 else _convolved(shape, channels, inner, 1)
        self.layers = nn.Sequential(
            *expand,
            *_convolved(shape, inner, inner, stage.kernel, stride=stride, groups=inner),
            *_convolved(shape, inner, stage.channels, 1)[:-1],  # linear: nothing cuts what is passed on
        )
        self.skips = stride == 1 and channels == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layers(x)
        return x + h if self.skips else h


def _convolved(
    shape: ConvShape, channels: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    padding, uneven = kernel // 2, stride == 2 and shape.pads_behind
    pad = [nn.ZeroPad2d((padding - 1, padding, padding - 1, padding))] if uneven else []
    return [
        *pad,
        nn.Conv2d(channels, outputs, kernel, stride, 0 if uneven else padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=shape.epsilon),
        nn.ReLU6(),
    ]


def _load_in_order(module: nn.Module, weights: Mapping[str, Tensor], *, left_out: int) -> None:
    """Load tensors that are named otherwise but come in the same order, all but the last `left_out`."""
    given = list(weights.items())[: len(weights) - left_out]
    own = module.state_dict()
    if len(given) != len(own):
        raise BackboneError(f"the weights have {len(given)} tensors, and the network {len(own)}")
    for (theirs, value), (name, ours) in zip(given, own.items(), strict=True):
        if value.shape != ours.shape:
            raise BackboneError(
                f"the weights' {theirs} is {tuple(value.shape)}, and the network's {name} {tuple(ours.shape)}"
            )
    module.load_state_dict(dict(zip(own, (value for _, value in given), strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BertShape:
    """What a BERT looks like."""

    vocabulary: int = 30_522
    positions: int = 512
    width: int = 384
    layers: int = 6
    heads: int = 12
    inner: int = 1536
    """Channels inside the MLP of a layer."""


class TextBackbone(FrozenBody):
    """A BERT (`body`), the mean over the tokens that are no padding, and a linear head.

    weights  of `transformers.BertModel`; positions and a pooler in it are left out

    Inputs are (batch, position) tokens, of which 0 is padding.
    """

    def __init__(
        self,
        shape: BertShape,
        outputs: int,
        weights: Mapping[str, Tensor],
        *,
        trains: Trains = "head",
        statistics: Statistics = "target",
    ) -> None:
        super().__init__()
        self.body = bert_body(shape)
        used = {
            name: value
            for name, value in weights.items()
            if not name.startswith("pooler.") and not name.endswith("position_ids")
        }
        self.body.load_state_dict(used)
        self.head = nn.Linear(shape.width, outputs)
        self.settle((self.body,), trains, statistics)

    def forward(self, tokens: Tensor) -> Tensor:
        known = tokens != 0  # (batch, position)
        # A mask of four dimensions is used as it is; of two, its content would be asked for, and a device wait.
        hidden = self.body(tokens, attention_mask=known[:, None, None, :]).last_hidden_state
        known = known.unsqueeze(-1).to(hidden.dtype)
        outputs: Tensor = self.head((hidden * known).sum(1) / known.sum(1))
        return outputs


def bert_body(shape: BertShape) -> nn.Module:
    """A `transformers.BertModel` without a pooler, untrained."""
    try:
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise BackboneError(
            f"a BERT is built by the package transformers, which is not installed: {install('transformers')}"
        ) from error
    config = BertConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=shape.positions,
        hidden_dropout_prob=0.0,  # it would draw from the global generator
        attention_probs_dropout_prob=0.0,
    )
    body = BertModel(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
    body.set_attn_implementation("sdpa")
    return body
