"""Controllers as files: what is saved comes back, what does not fit is refused by name."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

import esper
from esper.leyline import ActionSpec, DecisionSettings, LifecycleOp, Style
from esper.tamiyo import Observer, PolicyInputs
from esper.tamiyo import controller as controllers
from esper.tamiyo.actions import GrowthSpace, encode, numbered_slots
from esper.tamiyo.controller import (
    Controller,
    ControllerCard,
    ControllerError,
    layout_fingerprint,
    shipped_controllers,
)
from tiny_controllers import tiny_card, tiny_controller
from watched import HOLDING, paper_host


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    saved = tiny_controller(3)
    saved.save(tmp_path / "mine")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["card.json", "weights.safetensors"]
    loaded = Controller.load(tmp_path / "mine")
    digests = {name: getattr(loaded.card, name) for name in ("weights_sha256", "card_sha256")}
    assert loaded.card == saved.card.model_copy(update=digests)
    assert loaded.weights.keys() == saved.weights.keys()
    assert all(torch.equal(loaded.weights[name], tensor) for name, tensor in saved.weights.items())
    loaded.save(tmp_path / "mine")  # again, over itself
    assert repr(Controller.load(tmp_path / "mine")) == "Controller('tiny', trained on toy)"


def test_the_same_weights_serve_any_space() -> None:
    controller = tiny_controller()
    for slots, blueprints in ((1, ("a",)), (5, ("x", "y", "z"))):
        policy = controller.policy(GrowthSpace(numbered_slots(slots), blueprints))
        assert all(
            torch.equal(policy.state_dict()[name], tensor) for name, tensor in controller.weights.items()
        )
        assert not policy.training


def test_a_controller_is_the_actor_alone(tmp_path: Path) -> None:
    tiny_controller().save(tmp_path)
    assert not [name for name in load_file(tmp_path / "weights.safetensors") if name.startswith("critic")]
    for name in shipped_controllers():  # some were saved with their critic
        assert Controller.load(name).weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2; this Esper reads version 1"),
        ({"format": "something"}, "is not the card of a controller"),
        ({"layout": "0" * 12}, f"knows layout 000000000000, this Esper has {layout_fingerprint()}"),
        ({"licence": ""}, "licence: String should have at least 1 character"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
        ({"frozen_heads": {"tempo": 4}}, "frozen_heads has tempo=4; expected one of 3, 5, 8"),
        ({"weights_sha256": "no"}, "is not what card.json was written for"),
        (
            {"network": {"hidden_size": 10**6, "width": 7, "key_size": 5, "sight": 2}},
            "too few for a network of hidden_size",
        ),
        (
            {"network": {"hidden_size": 11, "num_lstm_layers": 10**6, "width": 7, "key_size": 5, "sight": 2}},
            "too few for a network of hidden_size",
        ),
        ({"summary": "knows everything"}, r"card.json was changed since it was saved"),
        ({"licence": {"whole": "card" * 99}}, r"card.json: licence: Input should be a valid string$"),
        ({"network": {"hidden_size": 13, "width": 7, "key_size": 5, "sight": 2}}, r"joint_encoder.*expected"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    tiny_controller().save(tmp_path)
    card = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(card | change))
    with pytest.raises(ControllerError, match=message):
        Controller.load(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    controller = tiny_controller()
    controller.save(tmp_path)
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(ControllerError, match="is not JSON"):
        Controller.load(tmp_path)
    controller.save(tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(ControllerError, match="cannot be read"):
        Controller.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ControllerError, match="is a file; a controller is a folder"):
        controller.save(tmp_path / "file")


def test_weights_that_are_not_numbers_are_refused() -> None:
    weights = dict(tiny_controller().weights)
    weights["lstm_ln.weight"] = torch.full_like(weights["lstm_ln.weight"], float("nan"))
    with pytest.raises(ControllerError, match=r"lstm_ln.weight holds NaN or Inf"):
        Controller(tiny_card(), weights)
    del weights["lstm_ln.weight"]
    with pytest.raises(ControllerError, match=r"controller 'tiny' lacks lstm_ln.weight"):
        Controller(tiny_card(), weights)


def test_a_controller_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ControllerError, match="there is no controller 'nope'"):
        Controller.load("nope")
    with pytest.raises(ControllerError, match=r"no folder of that name holds a card.json"):
        Controller.load(tmp_path)


def test_shipped_ones_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controllers, "SHIPPED", tmp_path)
    assert shipped_controllers() == {}
    tiny_controller().save(tmp_path / "cpu-v9")
    assert list(shipped_controllers()) == ["cpu-v9"]
    assert Controller.load("cpu-v9").card.name == "tiny"


def test_they_lie_in_the_package() -> None:
    assert Path(esper.__file__).parent / "controllers" == controllers.SHIPPED


@pytest.mark.parametrize("name", shipped_controllers())
def test_every_shipped_one_loads_and_has_evidence(name: str) -> None:
    card = Controller.load(name).card
    assert card.name == name
    assert card.evidence


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adapt-v1", [0.9564989, 0.0024645, 0.0410206, 0.0000080, 0.0000079, 0.0]),
        ("cpu-v1", [0.4092758, 0.0893373, 0.3661555, 0.0304558, 0.1047755, 0.0]),
        ("shift-v1", [0.2566904, 0.2436031, 0.2942333, 0.0269229, 0.1785502, 0.0]),
        ("stream-v1", [0.9840477, 0.0000178, 0.0141894, 0.0017447, 0.0, 0.0]),
    ],
)
def test_a_shipped_one_decides_as_when_it_was_shipped(name: str, expected: list[float]) -> None:
    """Probabilities of the operations in one known state, whatever newer policies see."""
    host = paper_host("a", "b")
    host.rows = [HOLDING, *host.rows[1:]]
    controller = Controller.load(name)
    settings = DecisionSettings(retire=controller.card.decisions.retire)
    space = GrowthSpace.covering([host]).under(settings)
    observer = Observer(space, 1, decisions=settings)
    observer.begin(0, host, horizon=20)
    observer.observe()
    action = ActionSpec(LifecycleOp.GERMINATE, "a", "norm", style=Style.GATE, tempo=5, alpha_target=0.5)
    previous = torch.from_numpy(encode(action, space, host.slot_config)).unsqueeze(0)
    policy = controller.policy(space)
    output, _ = policy.step(PolicyInputs(observer.flat, previous, torch.ones(1)), policy.initial_hidden(1))
    distribution = policy.distribution(output.logits, torch.from_numpy(observer.masks()))
    probabilities, _ = distribution.choice_probabilities(torch.zeros(1, 8, dtype=torch.int64))
    assert probabilities[0, 0, :6].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_card_knows_choices_as_words() -> None:
    card = tiny_card()
    assert card.decisions.frozen_heads == {"style": "linear_add", "tempo": 3, "alpha_target": 1.0}
    assert ControllerCard.model_validate(card.model_dump()) == card
    with pytest.raises(ValidationError, match="frozen_heads has slot='x'"):
        ControllerCard.model_validate(card.model_dump() | {"frozen_heads": {"slot": "x"}})
