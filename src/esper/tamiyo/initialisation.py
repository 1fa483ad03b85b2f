"""Orthogonal initialisation: gain sqrt(2) hidden, 0.01 for policy outputs, 1 for the value output."""

import math
from itertools import pairwise

import torch
from torch import nn

HIDDEN_GAIN = math.sqrt(2.0)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


def orthogonal_linear(
    in_features: int, out_features: int, gain: float, generator: torch.Generator
) -> nn.Linear:
    """A linear layer with orthogonal weights of this gain and zero bias."""
    # From meta, so that the global generator is left alone.
    layer = nn.Linear(in_features, out_features, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight, gain, generator=generator)
        layer.bias.zero_()
    return layer


def orthogonal_mlp(sizes: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    """Linear and tanh alternating, from sizes[0] to sizes[-1]; the last layer is hidden too."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [orthogonal_linear(fan_in, fan_out, HIDDEN_GAIN, generator), nn.Tanh()]
    return nn.Sequential(*layers)


def orthogonal_lstm(input_size: int, hidden_size: int, generator: torch.Generator) -> nn.LSTM:
    """An LSTM whose gates have orthogonal weights (gain 1) and zero bias."""
    lstm = nn.LSTM(input_size, hidden_size, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        weight_ih, weight_hh, bias_ih, bias_hh = lstm.all_weights[0]
        for weight in (weight_ih, weight_hh):
            for gate in weight.chunk(4):
                nn.init.orthogonal_(gate, generator=generator)
        bias_ih.zero_()
        bias_hh.zero_()
    return lstm
