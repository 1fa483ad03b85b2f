"""Controllers as files: a trained policy's weights beside a card that says what it is.

A controller is a folder of `card.json` and `weights.safetensors`. Nothing in it can execute, and it is checked in
full before it is used. Its weights serve any host: any number of slots, any blueprints.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Final, Literal

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from esper.leyline import CHOICES, HEAD_NAMES, DecisionSettings, ObservationUnits, operations
from esper.leyline.errors import EsperError, first_finding
from esper.leyline.files import write_bytes
from esper.tamiyo.actions import GrowthSpace, numbered_slots
from esper.tamiyo.actor import Actor
from esper.tamiyo.features import (
    BLUEPRINT_FEATURE_NAMES,
    SIGHT,
    Sight,
    host_features,
    slot_features_read,
)
from esper.tamiyo.networks import GrowthPolicy
from esper.tamiyo.policy import without_critic

FORMAT: Final = "esper controller"
VERSION: Final = 1
CARD, WEIGHTS = "card.json", "weights.safetensors"
SHIPPED = Path(__file__).parents[1] / "controllers"
"""The controllers that come with Esper, a folder each."""

Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0.0)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NetworkRecord(_Record):
    """The sizes of a `GrowthPolicy`."""

    hidden_size: AtLeastOne
    num_lstm_layers: AtLeastOne = 1
    width: AtLeastOne
    key_size: AtLeastOne
    sight: Sight = 1


class RewardRecord(_Record):
    """The reward it was trained with: the reward of the step before is one of its inputs."""

    family: Literal["contribution", "loss"]
    mode: Literal["sparse", "shaped"]
    rent: NotNegative
    gamma: Annotated[float, Field(gt=0.0, le=1.0)]
    control_variate: bool
    counts: Literal["end", "life"] = "end"


class TrainingRecord(_Record):
    """What it learned from, and what that cost. Unknown is None."""

    suite: Text
    horizon: AtLeastOne
    slots: tuple[Text, ...]
    blueprints: tuple[Text, ...]
    seed: Count
    rounds: Count
    env_steps: Count | None = None
    """Epochs of hosts; None also where it began with recorded episodes or another controller, and those took more."""
    seconds: NotNegative | None = None
    device: Text = "cpu"
    esper: Text | None = None
    commit: Text | None = None
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Every setting of the run."""


class HeldOutScore(_Record):
    """One policy over held-out episodes; intervals are 95 %, drawing episodes anew."""

    policy: Text
    """Name of the rule or controller."""
    episodes: AtLeastOne
    """Episodes played."""
    utility: float
    """Validation accuracy minus rent of the settled models; of a condemned host 0."""
    gain: float
    """Mean utility over that of waiting, paired."""
    gain_low: float | None
    """Lower end of the gain's interval; None where the episodes are too few for one."""
    gain_high: float | None
    """Upper end of the gain's interval."""
    test_accuracy: float | None
    """None where there is no test split (the toy), or a host was condemned."""
    added_parameters: float | None
    """Mean over the episodes."""


class EvidenceRow(HeldOutScore):
    """A held-out score on a card."""

    suite: Text
    """What the episodes were drawn from."""


_OF_RETIRING = ("retire", "decay_epochs", "decay_rent")
"""Settings that stand on the card of a controller that may retire fossils, and on no other."""


class ControllerCard(_Record):
    """Everything about a controller that is not a tensor."""

    format: Literal["esper controller"] = FORMAT
    """What kind of file this is."""
    version: Literal[1] = VERSION
    """Of the format."""
    name: Name
    """What it is called in tables."""
    summary: str
    """One line."""
    licence: Text
    """Terms of use."""
    layout: Text
    """What it sees and how it answers, see `layout_fingerprint`."""
    network: NetworkRecord
    """Sizes of the policy network."""
    decisions: DecisionSettings
    """What it may decide; in the file its fields stand among the card's own."""
    reward: RewardRecord
    """What it was rewarded for."""
    training: TrainingRecord
    """The run that it comes from."""
    evidence: tuple[EvidenceRow, ...] = ()
    """Held-out scores of it, and of rules on the same hosts."""
    weights_sha256: str = ""
    """Of the weights beside the card; filled in when it is saved."""
    card_sha256: str = ""
    """Of all the rest of the card; filled in when it is saved. Empty is not checked."""

    @model_validator(mode="before")
    @classmethod
    def _gather_decisions(cls, document: Mapping[str, object]) -> Mapping[str, object]:
        if "decisions" in document:
            return document
        for name in ("frozen_heads", "plateau_threshold"):
            if name not in document:
                raise ValueError(f"{name} is missing")
        card = dict(document)
        names = [each.name for each in fields(DecisionSettings) if each.name in card]
        return card | {"decisions": {name: card.pop(name) for name in names}}

    @model_serializer(mode="wrap")
    def _spread_decisions(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        card: dict[str, object] = {}
        for name, value in dump(self).items():
            card |= value if name == "decisions" else {name: value}
        unsaid: tuple[str, ...] = () if self.decisions.retire else _OF_RETIRING
        if self.decisions.observation_units == "absolute":
            unsaid = (*unsaid, "observation_units")
        return {name: value for name, value in card.items() if name not in unsaid}


def layout_fingerprint(
    sight: Sight = SIGHT, *, retire: bool = False, units: ObservationUnits = "absolute"
) -> str:
    """A text that changes when the features that a policy of this sight reads or the action's choices do.

    retire  whether it may retire fossils, and reads what is known of them
    units   what it observes in; each has features of its own
    """
    space = replace(_SMALLEST, retire=retire, units=units)
    choices = {
        head: [op.name for op in operations(retire=retire)]
        if head == "op"
        else [str(choice) for choice in known]
        for head, known in CHOICES.items()
    }
    layout = [
        host_features(space),
        slot_features_read(space, sight),
        BLUEPRINT_FEATURE_NAMES,
        HEAD_NAMES,
        choices,
    ]
    return hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:12]


class ControllerError(EsperError, ValueError):
    """A controller that cannot or must not be used; the message says which and why."""


class UnknownController(ControllerError):
    """No controller has that name, and no such folder holds one."""


class Controller:
    """A trained policy for any host.

    >>> controller = Controller.load("path/to/controller")
    >>> policy = controller.policy(space)         # for hosts of this space
    >>> actor = controller.actor(space)           # the same with its memory; greedy, or sampling with a generator
    """

    def __init__(self, card: ControllerCard, weights: Mapping[str, Tensor]) -> None:
        self.card = card
        self.weights = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in without_critic(weights).items()
        }
        known = layout_fingerprint(
            card.network.sight, retire=card.decisions.retire, units=card.decisions.observation_units
        )
        if card.layout != known:
            raise ControllerError(
                f"controller {card.name!r} knows layout {card.layout}, this Esper has {known}: it "
                "sees and answers otherwise. Train or fetch one for this version"
            )
        sizes, held = card.network, sum(tensor.numel() for tensor in self.weights.values())
        # Before a network of these sizes is made: a memory of n has 4 n^2 weights, and so on.
        if (
            max(sizes.num_lstm_layers * sizes.hidden_size**2, sizes.width**2, sizes.width * sizes.key_size)
            > held
        ):
            raise ControllerError(
                f"controller {card.name!r} has {held:,} weights, too few for a network of {sizes}"
            )
        _require_fitting(card.name, self.weights, without_critic(self._network(_SMALLEST).state_dict()))

    def __repr__(self) -> str:
        return f"Controller({self.card.name!r}, trained on {self.card.training.suite})"

    def policy(self, space: GrowthSpace, device: torch.device | str = "cpu") -> GrowthPolicy:
        """The network with these weights, for hosts of this space and with the operations that its card gives.

        Its critic is untrained, acting needs none.
        """
        network = self._network(space)
        network.load_state_dict(self.weights, strict=False)
        return network.to(device).eval()

    def actor(
        self, space: GrowthSpace, num_envs: int = 1, *, generator: torch.Generator | None = None
    ) -> Actor:
        """The policy with its memory in `num_envs` hosts at once; greedy, or sampling with a generator."""
        return Actor(self.policy(space), num_envs, generator=generator)

    def _network(self, space: GrowthSpace) -> GrowthPolicy:
        generator = torch.Generator().manual_seed(0)  # what it draws is overwritten
        space = space.under(self.card.decisions)
        return GrowthPolicy(space, **self.card.network.model_dump(), generator=generator)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the folder `path`. The card goes last and names its weights, so a torn save is noticed."""
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise ControllerError(f"{folder} is a file; a controller is a folder")
        folder.mkdir(parents=True, exist_ok=True)
        content = write_tensors(self.weights)
        card = self.card.model_copy(update={"weights_sha256": _digest(content)})
        card = card.model_copy(update={"card_sha256": _card_digest(card)})
        write_bytes(folder / WEIGHTS, content)
        write_bytes(folder / CARD, (json.dumps(card.model_dump(mode="json"), indent=2) + "\n").encode())

    @staticmethod
    def load(name_or_path: str | os.PathLike[str]) -> "Controller":
        """One that comes with Esper, by its name, or one in a folder of yours."""
        folder = controller_folder(name_or_path)
        if folder is None:
            shipped = ", ".join(shipped_controllers())
            known = f"there are {shipped}" if shipped else "none comes with this Esper"
            raise UnknownController(
                f"there is no controller {str(name_or_path)!r}: {known}, and no folder of that name holds a {CARD}"
            )
        card = read_card(folder)
        path = folder / WEIGHTS
        try:
            content = path.read_bytes()
            if _digest(content) != card.weights_sha256:
                raise ControllerError(f"{path} is not what {CARD} was written for: damaged, or replaced")
            controller = Controller(card, read_tensors(content))
        except OSError as error:
            raise ControllerError(f"{path} cannot be read: {error.strerror}") from None
        except SafetensorError as error:
            raise ControllerError(f"{path} is not a whole safetensors file: {error}") from None
        if card.card_sha256 not in ("", _card_digest(card)):
            raise ControllerError(f"{folder / CARD} was changed since it was saved: fetch or make it again")
        return controller


def shipped_controllers() -> dict[str, Path]:
    """Name -> folder of the controllers that come with Esper."""
    return {card.parent.name: card.parent for card in sorted(SHIPPED.glob(f"*/{CARD}"))}


def controller_folder(name_or_path: str | os.PathLike[str]) -> Path | None:
    """The folder of a controller that comes with Esper, by its name, or of another; None if it holds none."""
    folder = shipped_controllers().get(str(name_or_path), Path(name_or_path))
    return folder if (folder / CARD).is_file() else None


def read_card(folder: Path) -> ControllerCard:
    """A controller's card alone."""
    path = folder / CARD
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ControllerError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ControllerError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ControllerError(f"{path} is not the card of a controller: its format is not {FORMAT!r}")
    if document.get("version") != VERSION:
        raise ControllerError(
            f"{path} has version {document.get('version')!r}; this Esper reads version {VERSION}"
        )
    try:
        return ControllerCard.model_validate(document)
    except ValidationError as error:
        raise ControllerError(f"{path}: {first_finding(error)}") from None


_SMALLEST = GrowthSpace(numbered_slots(1), ("any",))


def _require_fitting(name: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for tensor in sorted(set(found) ^ set(expected)):
        problem = "lacks" if tensor in expected else "has an unknown"
        raise ControllerError(f"controller {name!r} {problem} {tensor}")
    for tensor, wanted in expected.items():
        if found[tensor].shape != wanted.shape or found[tensor].dtype != wanted.dtype:
            raise ControllerError(
                f"controller {name!r}: {tensor} is {found[tensor].dtype} {tuple(found[tensor].shape)}; expected "
                f"{wanted.dtype} {tuple(wanted.shape)}"
            )
        if not found[tensor].isfinite().all():
            raise ControllerError(f"controller {name!r}: {tensor} holds NaN or Inf")


def _card_digest(card: ControllerCard) -> str:
    content = card.model_dump(mode="json") | {"card_sha256": ""}
    return _digest(json.dumps(content, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
