"""A small GPT."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPT(nn.Module):
    """Pre-norm transformer decoder with a tied head. Slots: `blocks.0`, `blocks.1`, ...; wrap with causal=True."""

    def __init__(
        self, vocabulary: int, context: int, *, layers: int = 2, heads: int = 4, width: int = 64
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} must be a multiple of heads {heads}")
        self.context = context
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token_embedding.weight
        self._initialise(layers)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens do not fit the context of {self.context}")
        h = self.token_embedding(tokens) + self.position_embedding(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(self.norm(h))
        return logits

    def _initialise(self, layers: int) -> None:
        """Normal(0, 0.02); what writes into the residual stream is smaller by sqrt(2 layers) (GPT-2)."""
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                if name.endswith("bias"):
                    nn.init.zeros_(parameter)
                continue
            into_residual = name.endswith("project.weight")
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if into_residual else 0.02)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = FeedForward(width)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attention(self.norm_attention(h))
        out: Tensor = h + self.mlp(self.norm_mlp(h))
        return out


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        batch, length, width = h.shape
        qkv: Tensor = self.queries_keys_values(h)
        q, k, v = qkv.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.project(F.gelu(self.expand(h)))
        return out
