"""What a Grower offers where the host is a frozen base and its seeds are adapters."""

import os
from abc import ABC, abstractmethod

from pydantic import JsonValue

from esper.grower.history import Decision
from esper.kasmina import GrowingModel
from esper.kasmina.adapters import save_adapter
from esper.kasmina.peft_files import export_peft
from esper.kasmina.trainable import describe_trainable


class Adapting(ABC):
    """The part of `Grower` that writes adapters."""

    model: GrowingModel
    history: tuple[Decision, ...]

    @property
    @abstractmethod
    def controller(self) -> str:
        """The name of the controller or rule that decides."""

    def save_adapter(
        self, folder: str | os.PathLike[str], *, base_id: str | None = None, description: str = ""
    ) -> None:
        """Write only what was added to a frozen base, for `esper.load_adapter`: seeds, trained parameters, a card.

        base_id      what people call the base; by default the name of its class
        description  a sentence for the card
        """
        scores = [decision.score for decision in self.history if decision.score is not None]
        card: dict[str, JsonValue] = {
            "description": description,
            "controller": self.controller,
            "epochs": len(self.history),
            "last_score": scores[-1] if scores else None,
            "added_parameters": self.model.added_parameters,
        }
        save_adapter(self.model, folder, base_id=base_id, card=card)

    def export_peft(self, folder: str | os.PathLike[str], *, base_id: str | None = None) -> None:
        """Write the adapter as `peft.PeftModel.from_pretrained` reads it; every seed must be of low rank at a layer.

        base_id  what `base_model_name_or_path` is to say; by default the name of the base's class
        """
        export_peft(self.model, folder, base_id=base_id)

    def print_trainable_parameters(self) -> None:
        """Print how many parameters require gradients, of how many, seeds among them."""
        print(describe_trainable(self.model))
