"""What a Grower offers where the host is a frozen base and its seeds are adapters."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property

from pydantic import JsonValue
from torch import nn

from esper.grower.history import Decision
from esper.grower.twin import Twin
from esper.grower.validating import passed, without_samples
from esper.kasmina import GrowingModel
from esper.kasmina.adapted import describe_trainable, export_peft
from esper.kasmina.adapters import save_adapter
from esper.kasmina.feature_cache import FeatureCache
from esper.kasmina.norm_statistics import KeptStatistics, estimating


class Adapting(ABC):
    """The part of `Grower` that writes adapters, and takes a frozen host to a target."""

    model: GrowingModel
    history: tuple[Decision, ...]
    _twin: Twin | None

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

    # BatchNorm statistics of the target

    @cached_property
    def statistics(self) -> KeptStatistics:
        """The sets of BatchNorm statistics that are kept: `names`, and the one `in_use`. The first is "source"."""
        return KeptStatistics(self.model.host)

    def estimate_statistics(self, batches: Iterable[object], *, name: str = "target") -> None:
        """Estimate the BatchNorm statistics on these batches, keep them beside those before, and use them.

        batches  of the target, as `validate` has them: (inputs, targets) or dicts. Labels are not looked at
        name     under which `use_statistics` finds them

        What is exported and saved has the statistics in use. A twin gets its own, from the same batches.
        """
        if self.model.replicas.size > 1:
            raise ValueError(
                f"{self.model.replicas.size} processes train the model, and each would estimate statistics of its "
                "own batches: estimate them in one process before the model is distributed"
            )
        filled = [batch for batch in batches if not without_samples(batch)]
        kept = self.statistics  # before the estimate
        twins: list[nn.Module] = [] if self._twin is None else [self._twin.model]
        for model, host in ((self.model, self.model.host), *((twin, twin) for twin in twins)):
            device = next(host.parameters()).device
            with estimating(host):
                for batch in filled:
                    passed(model, batch, device)
        kept.keep(name)

    def use_statistics(self, name: str) -> None:
        """Go back to other statistics, "source" for those that the host came with; a twin keeps its own."""
        self.statistics.use(name)

    def cache_features(self, slot: str, samples: int) -> FeatureCache:
        """Remember by sample what the frozen host computes up to a slot; `FeatureCache.of` says for which forward.

        samples  how many the training set has
        """
        return FeatureCache(self.model, slot, samples)
