"""A character GPT on a text that every Python has, the source of argparse: left alone, grown, and widened.

python examples/char_gpt.py [--seeds 2] [--epochs 9] [--controller cpu-v1]
"""

import argparse
import inspect
from collections.abc import Sequence
from functools import cache

import torch

import esper
from esper.kasmina.hosts import GPT
from side_by_side import Problem, Split, Splits, run

CONTEXT = 32


@cache
def text() -> tuple[Splits, int]:
    """Stretches of 80 / 10 / 10 % of the text, cut into pieces; a target is the next character."""
    source = inspect.getsource(argparse)
    alphabet = sorted(set(source))
    codes = torch.tensor([alphabet.index(character) for character in source])
    ends = [int(share * len(codes)) for share in (0.8, 0.9)]
    train, validation, test = (_pieces(part) for part in codes.tensor_split(ends))
    return Splits(train, validation, test), len(alphabet)


def _pieces(codes: torch.Tensor) -> Split:
    pieces = codes[: (len(codes) - 1) // CONTEXT * CONTEXT + 1]
    return pieces[:-1].view(-1, CONTEXT), pieces[1:].view(-1, CONTEXT)


PROBLEM = Problem(
    title="A character GPT",
    splits=lambda _: text()[0],
    model=lambda width: GPT(text()[1], CONTEXT, layers=2, heads=2, width=2 * (width // 2)),
    width=24,
    slots=["blocks.*"],
    controller=lambda: esper.rule_policy(
        "probe_and_keep", candidates=("mlp@1", "attention@1"), start=2, margin=0.0
    ),
    causal=True,
    seeds=2,
    epochs=9,
    lr=3e-3,
)


def main(arguments: Sequence[str] | None = None) -> None:
    run(PROBLEM, __doc__, arguments)


if __name__ == "__main__":
    main()
