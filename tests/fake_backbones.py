"""Tiny published networks and rated sentences, in the files that the real ones come in."""

import hashlib
import io
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from esper.kasmina.hosts.backbones import BertShape, ConvShape, Stage, bert_body, conv_body
from esper.tolaria.data import few_labels
from esper.tolaria.data.files import PackagedFile
from esper.tolaria.tasks import backbone
from esper.tolaria.tasks.backbone import BACKBONES

CONV = ConvShape(
    stages=(Stage(1, 8, 1, 1), Stage(2, 8, 2, 2), Stage(2, 12, 1, 2, kernel=5)),
    stem=8,
    top=16,
    epsilon=1e-5,
    pads_behind=False,
)
WORDS = ("good", "great", "bad", "awful", "the", "film", "was", "a", "phone", "and")
BERT = BertShape(vocabulary=40, positions=40, width=16, layers=3, heads=2, inner=32)
SENTENCES = 2100
"""Of each domain."""


def put_in_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every network and the sentences tiny files in `home`, the data directory: one unpacked, others packed."""
    monkeypatch.setenv("ESPER_DATA", str(home))
    shapes: dict[str, ConvShape | BertShape] = {
        "mobilenet_v2": CONV,
        "efficientnet_lite0": replace(CONV, pads_behind=True),
        "minilm": BERT,
    }
    for name, shape in shapes.items():
        real = BACKBONES[name]
        content = torch_file(shape) if isinstance(shape, ConvShape) else save(bert_weights())
        vocabulary = None
        if real.vocabulary is not None:
            vocabulary = _pinned(real.vocabulary, vocabulary_file())
            _pack(home / backbone.FOLDER, {real.file: content, real.vocabulary: vocabulary_file()})
        elif name == "mobilenet_v2":
            (home / backbone.FOLDER).mkdir(parents=True, exist_ok=True)
            (home / backbone.FOLDER / real.file.name).write_bytes(content)
        else:
            _pack(home / backbone.FOLDER, {real.file: content})
        fake = replace(real, shape=shape, file=_pinned(real.file, content), vocabulary=vocabulary)
        monkeypatch.setitem(BACKBONES, name, fake)
    rated = rated_sentences()
    monkeypatch.setattr(few_labels, "RATED", _pinned(few_labels.RATED, rated))
    _pack(home / "sentiment", {few_labels.RATED: rated})


def _pinned(file: PackagedFile, content: bytes) -> PackagedFile:
    return replace(file, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def _pack(folder: Path, contents: Mapping[PackagedFile, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / next(iter(contents)).archive
    with zipfile.ZipFile(archive, "w") as package:
        for file, content in contents.items():
            package.writestr(file.member, content)


def torch_file(shape: ConvShape) -> bytes:
    """The weights as `torch.save` writes them."""
    stream = io.BytesIO()
    torch.save(conv_weights(shape), stream)
    return stream.getvalue()


def conv_weights(shape: ConvShape = CONV, classes: int = 7) -> OrderedDict[str, Tensor]:
    """Under names of its own, in the order of the network, with a classifier at the end."""
    generator = torch.Generator().manual_seed(0)
    own = conv_body(shape).state_dict()
    shapes = [*(value.shape for value in own.values()), (classes, shape.top), (classes,)]
    return OrderedDict(
        (f"layer{place}", torch.rand(size, generator=generator) - (0.5 if len(size) == 4 else 0.0))
        for place, size in enumerate(shapes)
    )


def bert_weights() -> dict[str, Tensor]:
    """Of `transformers.BertModel`, with a pooler and positions as they are published."""
    generator = torch.Generator().manual_seed(0)
    own = bert_body(BERT).state_dict()
    drawn = {
        name: 0.3 * torch.randn(value.shape, generator=generator) if value.ndim > 1 else value
        for name, value in own.items()
    }
    others = {"pooler.dense.weight": torch.zeros(16, 16), "embeddings.position_ids": torch.arange(40)[None]}
    return drawn | others


def vocabulary_file() -> bytes:
    """A tokeniser of these words, with padding as 0."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    known = {"[PAD]": 0, "[UNK]": 1} | {word: place for place, word in enumerate(WORDS, start=2)}
    tokeniser = Tokenizer(WordLevel(known, unk_token="[UNK]"))
    tokeniser.pre_tokenizer = Whitespace()
    text: str = tokeniser.to_str()
    return text.encode()


def rated_sentences() -> bytes:
    """Of every domain so many sentences, each rated by its adjective, and one that nobody is sure of."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as packed:
        for stem in few_labels.TEXTS.values():
            lines = ["0\t0.1\tneither one nor the other"]
            for place in range(SENTENCES):
                word = WORDS[place % 4]
                rating = 1.5 if place % 4 < 2 else -1.5
                lines.append(f"{place + 1}\t{rating}\tthe film was {word} and a {place}")
            content = "\r\n".join(lines).encode()
            member = tarfile.TarInfo(f"hutto/{stem}_GroundTruth.txt")
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return stream.getvalue()
