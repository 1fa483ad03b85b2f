"""Every row that Esper ships: its data, its host, and a step of training."""

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.leyline import Stage
from esper.tolaria import final_report
from esper.tolaria.data import DatasetMissing, Split, TaskData, mnist1d
from esper.tolaria.data.images import FASHION_MNIST, MNIST
from esper.tolaria.data.splits import ReportKey
from esper.tolaria.engine.step import mean_loss
from esper.tolaria.tasks import Instance, Task, all_tasks, task
from esper.tolaria.tasks.images import cifar_loader, idx_loader, resnet_host
from fake_datasets import cifar_binary, small, write_csv, write_folder, write_idx, write_text
from tiny import grow_until

SHIPPED = (
    "digits",
    "mnist1d",
    "shift",
    "stream",
    "slow_bits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar10_deep",
    "cifar10_impaired",
    "cifar10_resnet",
    "synthetic",
    "tabular",
    "text",
    "diabetes",
    "functions",
    "tabular_quantity",
    "drawn_series",
    "drawn_digits",
    "drawn_tables",
    "drawn_functions",
    "drawn_pictures",
    "drawn_sequences",
    "adapt",
    "adapt_stream",
    "backbone",
)


def test_the_table_is_what_it_is() -> None:
    assert tuple(row.name for row in all_tasks()) == SHIPPED
    for row in all_tasks():
        assert "\n" not in row.summary
        assert all(spec.doc and "\n" not in spec.doc for spec in row.parameters.values())


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Task, TaskData]]:
    """A row with data: its own, or tiny ones in the format it reads."""
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))

    def load(name: str) -> tuple[Task, TaskData]:
        row = task(name)
        if name in ("mnist", "fashion_mnist"):
            write_idx(tmp_path / name, packed=name == "mnist")
            row = replace(
                row, load=idx_loader(small(MNIST if name == "mnist" else FASHION_MNIST), validation=30)
            )
        elif name.startswith("cifar10"):
            write_folder(tmp_path / "cifar10" / "cifar-10-batches-bin", cifar_binary(20))
            row = replace(row, load=cifar_loader(per_batch=20, validation=20))
        elif name == "tabular_quantity":
            np.save(tmp_path / "t.npy", np.random.default_rng(0).normal(3, 2, (120, 4)))
            return row, Instance.of(name, {"path": str(tmp_path / "t.npy")}).load()
        elif name == "tabular":
            write_csv(tmp_path / "t.csv")
            return row, Instance.of(name, {"path": str(tmp_path / "t.csv")}).load()
        elif name == "text":
            write_text(tmp_path / "t.txt")
            return row, Instance.of(name, {"path": str(tmp_path / "t.txt"), "context": 16}).load()
        elif name == "synthetic":
            return row, Instance.parse("synthetic:samples=512").load()
        return row, row.data({})

    return load


@pytest.mark.parametrize(
    "name", SHIPPED[:-3]
)  # bases are trained already: test_adapt.py, test_adapt_stream.py, test_backbone.py
def test_every_row_loads_wraps_grows_and_trains(
    name: str, loaded: Callable[[str], tuple[Task, TaskData]]
) -> None:
    row, data = loaded(name)
    model = row.grow(data, seed=0, device="cpu")
    offered = {slot: [card.name for card in place.cards] for slot, place in model.slots.items()}
    for pattern in row.blueprints:  # nothing is listed that could not be grown
        assert all(any(fnmatchcase(card, pattern) for card in cards) for cards in offered.values()), pattern
    optimiser = torch.optim.Adam(model.parameters(), lr=row.optimiser.lr)
    model.attach(optimiser)
    model.germinate(model.slot_config.slot_ids[-1], row.blueprints[-1])
    model.tick()
    train = data.phases[0].train
    inputs, targets = train.inputs[:16], train.targets[:16]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    outputs = model(inputs)
    assert isinstance(outputs, Tensor)
    loss = mean_loss(outputs, targets)
    assert loss.item() == pytest.approx(data.untrained_loss, abs=1.0)
    loss.backward()
    optimiser.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2
    score = final_report.test_score(model, data)
    assert score.samples == len(data.test)
    assert np.isfinite(score.loss)


def contents(*splits: Split) -> list[bytes]:
    return [sample.numpy().tobytes() for split in splits for sample in split.inputs]


@pytest.mark.parametrize(
    "text", ["digits", "mnist1d", "mnist1d:classes=3,shuffled=1,size=700,noise=0.3", "synthetic:samples=512"]
)
def test_splits_are_disjoint_by_content(text: str) -> None:
    data = Instance.parse(text).load()
    test = data.test.to("cpu").open(ReportKey())
    samples = contents(data.phases[0].train, data.phases[0].validation, test)
    assert len(set(samples)) == len(samples)


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("digits", "d59bbd58807a93235a474ff96c21a171"),
        ("mnist1d", "f147a9f6b732a87a61b393c8dacde28d"),
        (
            "mnist1d:classes=4,data=2,noise=0.25,permutation=9,shuffled=0.5,size=900",
            "020a4c8d7333f3ba11f84fd25dfd42dc",
        ),
        ("shift:change=7,kind=noise,noise=0.3", "c9b7c54411c5746e50fffcef77fadf7d"),
        ("shift:classes=6,noise=0.1", "9f00bb30f77b3a4afa5f208045ce41b8"),
    ],
)
def test_generated_data_are_these_and_no_others(text: str, digest: str) -> None:
    """If this fails on purpose, every result measured before belongs to other data: say so in the changelog."""
    mnist1d.pool.cache_clear()
    assert task(Instance.parse(text).task).data(dict(Instance.parse(text).parameters)).digest() == digest


def test_sizes_shapes_and_balance() -> None:
    digits, series = Instance("digits").load(), Instance("mnist1d").load()
    for data, shape, sizes in ((digits, (1, 64), (700, 300, 797)), (series, (1, 40), (4000, 500, 2500))):
        phase = data.phases[0]
        assert (len(phase.train), len(phase.validation), len(data.test)) == sizes
        assert phase.train.inputs.shape[1:] == shape
        assert phase.train.inputs.dtype == torch.float32
        counts = phase.train.targets.bincount() / len(phase.train)
        assert (counts - 0.1).abs().max() < 0.006
    assert digits.phases[0].train.inputs.min() == 0
    assert digits.phases[0].train.inputs.max() == 1


def test_validation_and_test_of_mnist1d_do_not_depend_on_size_or_noise() -> None:
    whole = Instance("mnist1d").load()
    part = Instance.parse("mnist1d:noise=0.4,size=500").load()
    assert part.phases[0].validation.digest() == whole.phases[0].validation.digest()
    assert part.test.digest() == whole.test.digest()
    assert torch.equal(part.phases[0].train.inputs, whole.phases[0].train.inputs[:500])
    wrong = part.phases[0].train.targets != whole.phases[0].train.targets[:500]
    assert wrong.sum() == 200


def test_shuffling_moves_positions_of_every_split_alike() -> None:
    plain = Instance("mnist1d").load()
    moved = Instance.parse("mnist1d:permutation=3,shuffled=1").load()
    order = mnist1d.reordering(1.0, 3)
    for part in ("train", "validation"):
        one, other = getattr(plain.phases[0], part), getattr(moved.phases[0], part)
        assert torch.equal(one.inputs[:, :, order], other.inputs)
    assert moved.test.digest() != plain.test.digest()


def test_a_shift_of_positions() -> None:
    data = Instance.parse("shift:change=6,kind=shuffle,permutation=3,shuffled=1").load()
    plain, moved = Instance("mnist1d").load(), Instance.parse("mnist1d:permutation=3,shuffled=1").load()
    assert [phase.start_epoch for phase in data.phases] == [0, 6]
    assert data.phases[0].train.digest() == plain.phases[0].train.digest()
    assert data.phases[1].validation.digest() == moved.phases[0].validation.digest()
    assert data.test.digest() == moved.test.digest()


def test_a_shift_of_noise_changes_training_labels_only() -> None:
    before, after = Instance.parse("shift:change=6,kind=noise,noise=0.3").load().phases
    assert torch.equal(before.train.inputs, after.train.inputs)
    assert (before.train.targets != after.train.targets).sum() == 1200
    assert before.validation.digest() == after.validation.digest()


def test_a_shift_of_classes_adds_samples_and_keeps_what_was_there() -> None:
    data = Instance.parse("shift:change=6,classes=4,noise=0.25,size=1000").load()
    before, after = data.phases
    assert (data.classes, len(before.train), len(after.train)) == (10, 400, 1000)
    assert before.train.targets.max() == before.validation.targets.max() == 3
    assert after.validation.targets.max() == 9
    assert (len(before.validation), len(after.validation), len(data.test)) == (200, 500, 2500)
    later = dict(zip(contents(after.train), after.train.targets.tolist(), strict=True))
    assert [later[sample] for sample in contents(before.train)] == before.train.targets.tolist()
    true = torch.from_numpy(mnist1d.pool(0, 10).labels[:1000])
    assert (after.train.targets != true).sum() == 250
    model = task("shift").grow(data, seed=0, device="cpu")
    logits = model(before.train.inputs[:2])
    assert isinstance(logits, Tensor)
    assert logits.shape == (2, 10)


@pytest.mark.parametrize(
    "name",
    ["mnist", "fashion_mnist", "cifar10", "cifar10_deep", "cifar10_impaired", "cifar10_resnet"],
)
def test_without_its_files_a_row_says_what_it_needs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    with pytest.raises(DatasetMissing, match="Esper downloads nothing"):
        Instance(name).load()


def test_the_language_model_cannot_see_later_characters(
    loaded: Callable[[str], tuple[Task, TaskData]],
) -> None:
    row, data = loaded("text")
    model = row.grow(data, seed=0, device="cpu").eval()
    grow_until(model, "blocks.0", Stage.HOLDING, "attention")
    seed = model.slots["blocks.0"].seed
    assert seed is not None
    with torch.no_grad():  # a seed is born silent
        for parameter in seed.parameters():
            parameter.add_(0.1)
    tokens = data.phases[0].train.inputs[:2].clone()
    first = model(tokens)
    tokens[:, 9:] = (tokens[:, 9:] + 1) % data.classes
    second = model(tokens)
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert torch.equal(first[:, :9], second[:, :9])
    assert not torch.equal(first[:, 9:], second[:, 9:])


def test_the_residual_host_of_the_recipe_has_179k_parameters() -> None:
    host = resnet_host(Instance.parse("synthetic:samples=512").load())
    assert sum(parameter.numel() for parameter in host.parameters()) == 178_918
