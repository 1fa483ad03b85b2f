"""Frozen bases and their targets: what is trained, what stays, whose statistics are used, and what is refused."""

import pickle
from pathlib import Path

import pytest
import torch

from esper.kasmina.hosts.pretrained import PretrainedHost
from esper.leyline import ActionSpec, Beginning, HostStep, LifecycleOp
from esper.tolaria.data import DatasetCorrupt
from esper.tolaria.data.targets import FAMILIES
from esper.tolaria.engine.host import TrainedHost
from esper.tolaria.tasks import Instance, ParameterError, adapt
from esper.tolaria.tasks.adapt import BASES
from esper.tolaria.worlds.engine import EngineWorld

NOISY = "adapt:amount=0.5,size=100"


def host_of(case: str) -> PretrainedHost:
    instance = Instance.parse(case)
    host = instance.row.host(instance.load())
    assert isinstance(host, PretrainedHost)
    return host


def lived(case: str, *actions: ActionSpec) -> TrainedHost:
    """A host after an epoch for each action."""
    world = EngineWorld(1)
    world.begin_many([Beginning(0, case, 0)])
    for action in actions:
        world.step_many([HostStep(0, action)])
    return world.host(0)


@pytest.mark.parametrize("name", BASES)
def test_a_base_knows_what_it_has_learned(name: str) -> None:
    family = BASES[name].family
    case = f"adapt:base={name},shift=none,size=100"
    host, data = host_of(case).eval(), Instance.parse(case).load()
    validation = data.phases[0].validation
    with torch.no_grad():
        hits = (host(validation.inputs).argmax(1) == validation.targets).float().mean()
    assert hits > 0.84
    assert host.head.out_features == FAMILIES[family].classes


def test_the_bases_are_small_and_a_damaged_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.stem for path in adapt.FOLDER.iterdir()} == set(BASES)
    assert sum(path.stat().st_size for path in adapt.FOLDER.iterdir()) < 1_000_000
    content = bytearray((adapt.FOLDER / "series_layer.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "series_layer.safetensors").write_bytes(content)
    monkeypatch.setattr(adapt, "FOLDER", tmp_path)
    with pytest.raises(DatasetCorrupt, match=r"series_layer.safetensors: found SHA-256 .* expected SHA-256"):
        adapt._weights.__wrapped__(BASES["series_layer"])


def test_the_head_and_a_seed_learn_and_the_body_stays() -> None:
    grow = ActionSpec(LifecycleOp.GERMINATE, "stem", "conv_small")
    host = lived(NOISY, grow, ActionSpec(LifecycleOp.ADVANCE, "stem"))
    weights = BASES["series_batch"].weights()
    bare = {name: value for name, value in host.model.host.state_dict().items() if "esper_seed" not in name}
    moved = {name for name, value in bare.items() if not torch.equal(value, weights[name])}
    fresh = host_of(NOISY).state_dict()
    assert moved >= {"head.weight", "head.bias"}
    # the statistics are those of the target, and no step has moved them
    assert {name for name, value in bare.items() if not torch.equal(value, fresh[name])} == {
        "head.weight",
        "head.bias",
    }
    assert all("running" in name or "batches" in name for name in moved - {"head.weight", "head.bias"})
    seed = host.slots[0].seed
    assert seed is not None
    assert seed.scale.abs().sum() > 0


@pytest.mark.parametrize("base", ["series_batch", "digits_attention"])
@pytest.mark.parametrize(("trains", "rank"), [("lora4", 4), ("lora16", 16)])
def test_lora_begins_as_the_base_and_adds_what_its_rank_says(base: str, trains: str, rank: int) -> None:
    case = f"adapt:amount=0.5,base={base},size=100"
    plain, lora = host_of(case).eval(), host_of(f"{case},trains={trains}").eval()
    inputs = Instance.parse(case).load().phases[0].train.inputs[:7]
    torch.testing.assert_close(lora(inputs), plain(inputs))
    layers = [
        part.weight
        for body in (plain.stem, plain.blocks)
        for part in body.modules()
        if isinstance(part, torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d)
    ]
    sizes = [(len(weight), weight[0].numel()) for weight in layers]
    added = sum((rows + columns) * min(rank, rows, columns) for rows, columns in sizes)
    learned = sum(each.numel() for each in lora.parameters() if each.requires_grad)
    assert learned == added + sum(each.numel() for each in plain.head.parameters())


def test_whose_statistics_are_used() -> None:
    name = "blocks.0.0.1.running_mean"
    learned = BASES["series_batch"].weights()[name]
    assert torch.equal(host_of(f"{NOISY},statistics=source").state_dict()[name], learned)
    target = host_of(NOISY).state_dict()[name]
    assert not torch.equal(target, learned)
    assert torch.equal(lived(NOISY, ActionSpec()).model.host.state_dict()[name], target)
    moving = lived(f"{NOISY},statistics=moving", ActionSpec()).model.host.state_dict()[name]
    assert not torch.equal(moving, learned)
    assert not torch.equal(moving, target)


def test_fine_tuning_moves_everything() -> None:
    host = lived(f"{NOISY},lr=0.001,trains=all", ActionSpec())
    weights = BASES["series_batch"].weights()
    for name, parameter in host.model.host.named_parameters():
        assert not torch.equal(parameter.detach(), weights[name]), name


def test_a_head_that_is_wrong_with_confidence_is_not_taken_for_one_that_diverged() -> None:
    """It begins above what would condemn a host that began at chance (3 log 10)."""
    world = EngineWorld(1)
    world.begin_many([Beginning(0, "adapt:base=digits_batch,shift=rename,size=100", 0)])
    assert world.host(0).report.validation_loss > 3 * 2.303
    world.step_many([HostStep(0, ActionSpec())])
    assert world.host(0).report.rolled_back is None
    assert world.host(0).epoch == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("adapt:shift=turn", "shift=turn needs pictures or digits; series_batch has learned series"),
        ("adapt:amount=0.5,shift=rename", "amount is not read with shift=rename; it is 0.5"),
        (
            "adapt:amount=2.5,shift=contrast",
            "amount must be above 0 and at most 2 with shift=contrast, not 2.5",
        ),
        ("adapt:base=digits_layer,size=501", "size must be at most 500 with base=digits_layer, not 501"),
        ("adapt:base=digits_layer,statistics=source", "statistics is not read with base=digits_layer"),
        ("adapt:base=resnet", "adapt.base must be one of series_batch, "),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ParameterError, match=complaint):
        Instance.parse(text)


def test_the_row_is_pickled_with_its_parameters_and_the_weights_are_in_the_fingerprint() -> None:
    row = Instance.parse(f"{NOISY},lr=0.002,trains=lora4").row
    again = pickle.loads(pickle.dumps(row))
    assert again.settings() == row.settings()
    assert BASES["series_batch"].sha256 in str(row.host.keywords)  # type: ignore[attr-defined]
    prints = {Instance.parse(case).fingerprint() for case in (NOISY, f"{NOISY},statistics=source")}
    assert len(prints) == 2
