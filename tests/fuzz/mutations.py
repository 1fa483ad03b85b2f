"""How a case is spoiled: bytes, texts and trees of plain data, by an rng that is passed in."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from torch import Tensor

_NUMBERS = (0, 1, -1, 2, 3.5, -0.0, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 1e-320, 1e308)
_NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1e999",
    "nan",
    "none",
    "null",
    "True",
    "\ud800",
    "\x00",
    "é\u202e",
    "a" * 5000,
    "../..",
)
_PIECES = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"NaN",
    b"null",
    b"1e999",
    b"[" * 50,
    b'{"a":',
    b"\xed\xa0\x80",
    b"9" * 400,
)


def nested(depth: int) -> object:
    """Lists in lists."""
    tree: list[object] = []
    for _ in range(depth):
        tree = [tree]
    return tree


def odd_value(rng: Random) -> object:
    """Something that is seldom meant."""
    kinds: tuple[Callable[[], object], ...] = (
        lambda: rng.choice(_NUMBERS),
        lambda: rng.choice(_NOT_FINITE),
        lambda: rng.choice(_TEXTS),
        lambda: rng.choice((None, True, False, [], {}, [None], {"": None}, [[1.0, "a"]])),
        lambda: nested(rng.choice((2, 10, 300))),
    )
    return rng.choice(kinds)()


def spoil_text(text: str, rng: Random) -> str:
    """A character or a stretch changed, removed, doubled or put in."""
    start = rng.randrange(len(text) + 1)
    end = min(len(text), start + rng.choice((0, 1, 1, 2, 8, len(text))))
    put_in = rng.choice(
        ("", text[start:end] * 2, rng.choice(_TEXTS), rng.choice("=:,;-_.%/{}[]\"'#&*!|>\n\t 019eé"))
    )
    return text[:start] + put_in + text[end:]


def spoil_bytes(data: bytes, rng: Random) -> bytes:
    """Bits flipped, cut short, or a stretch removed, doubled or replaced."""
    way = rng.randrange(4)
    if way == 0 and data:
        flipped = bytearray(data)
        for _ in range(rng.choice((1, 1, 4, 64))):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    start = rng.randrange(len(data) + 1)
    if way == 1:
        return data[:start]
    end = min(len(data), start + rng.choice((0, 1, 4, 64, 1024)))
    return data[:start] + rng.choice((data[start:end] * 2, rng.choice(_PIECES))) + data[end:]


def spoil_tree(tree: object, rng: Random) -> object:
    """The same tree with up to three nodes spoiled; what is untouched is shared with the original."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _spoil_once(tree, rng)
    return tree


def _spoil_once(tree: object, rng: Random) -> object:
    inside = isinstance(tree, dict | list | tuple) and len(tree) > 0 and rng.random() < 0.9
    if isinstance(tree, dict):
        if inside:
            key = rng.choice(list(tree))
            return _spoil_entry(dict(tree), key, rng)
        return rng.choice(({**tree, rng.choice((*_TEXTS, "extra")): odd_value(rng)}, odd_value(rng)))
    if isinstance(tree, list | tuple) and inside:
        items, place = list(tree), rng.randrange(len(tree))
        way = rng.randrange(4)
        if way == 0:
            del items[place]
        elif way == 1:
            items.insert(place, items[place])
        else:
            items[place] = _spoil_once(items[place], rng)
        return type(tree)(items)
    return _spoil_leaf(tree, rng)


def _spoil_entry(tree: dict[object, object], key: object, rng: Random) -> dict[object, object]:
    way = rng.random()
    if way < 0.1:
        del tree[key]
    elif way < 0.15:
        tree[f"{key}x"] = tree.pop(key)
    elif way < 0.2:
        tree[key] = tree[rng.choice(list(tree))]
    else:
        tree[key] = _spoil_once(tree[key], rng)
    return tree


def _spoil_leaf(leaf: object, rng: Random) -> object:
    if rng.random() < 0.4:
        return odd_value(rng)
    if isinstance(leaf, Tensor):
        return _spoil_tensor(leaf, rng)
    if isinstance(leaf, str):
        return spoil_text(leaf, rng)
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        return rng.choice((-leaf, leaf + 1, leaf * 1000, f"{leaf}", [leaf], leaf == 0))
    return odd_value(rng)


def _spoil_tensor(tensor: Tensor, rng: Random) -> object:
    ways: tuple[Callable[[], object], ...] = (
        lambda: tensor.flatten()[:-1],
        lambda: tensor.unsqueeze(0),
        lambda: tensor.to(rng.choice((torch.int64, torch.float64, torch.uint8, torch.complex64, torch.bool))),
        lambda: torch.full_like(tensor, rng.choice((0, 1, 255))),
        lambda: torch.full(tensor.shape, rng.choice(_NOT_FINITE)),
        lambda: torch.zeros(0),
        lambda: tensor.tolist(),
    )
    return rng.choice(ways)()


def spoil_tensors(tensors: dict[str, Tensor], rng: Random) -> dict[str, Tensor]:
    """Tensors by name, spoiled and still what a safetensors file can hold."""
    spoiled = spoil_tree(tensors, rng)
    entries = spoiled.items() if isinstance(spoiled, dict) else ()
    return {str(name): each.clone().contiguous() for name, each in entries if isinstance(each, Tensor)}


class Bomb:
    """Makes the folder `ran` when it is unpickled by a reader that executes what it reads."""

    def __init__(self, folder: Path) -> None:
        self.ran = str(folder / "ran")

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.ran,)


def bomb_bytes(folder: Path) -> bytes:
    """A pickle that executes."""
    return pickle.dumps(Bomb(folder))
