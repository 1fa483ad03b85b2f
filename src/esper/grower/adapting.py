"""What a Grower offers where the host is a frozen base and its seeds are adapters."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property

from pydantic import JsonValue
from torch import nn

from esper.grower.history import Decision, Notes
from esper.grower.measuring import Gauge, Scale, measure
from esper.grower.twin import Twin
from esper.grower.validating import passed, without_samples
from esper.kasmina import GrowingModel
from esper.kasmina.adapted import describe_trainable
from esper.kasmina.adapters import save_adapter
from esper.kasmina.feature_cache import FeatureCache
from esper.kasmina.merging import export_peft
from esper.kasmina.norm_statistics import KeptStatistics, estimating

BEFORE = "before"
"""The set of statistics that was in use when others were estimated, where it had no other name that stays."""
CLEARLY = 0.05
"""Of the score: statistics that validate by so much better than those of the target are used in their place. What
few samples can tell apart; a head that has learned nothing yet is told nothing."""
FALL = 0.1
"""Of the score, from an epoch to the next: the data have changed, and with them their statistics."""


class Adapting(ABC):
    """The part of `Grower` that writes adapters, and takes a frozen host to a target."""

    model: GrowingModel
    history: tuple[Decision, ...]
    _gauge: Gauge
    _notes: Notes
    _twin: Twin | None
    _target: Iterable[object] | None
    """Batches of the target, where statistics are chosen without being asked for."""

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

    def choose_statistics(self, batches: Iterable[object], *, name: str = "target") -> str:
        """Estimate statistics on these batches, and use them unless others that are kept validate clearly better.

        Returns the name of those that are used. The arguments are those of `estimate_statistics`; what was in use
        stays, as "before" where its name is taken. A head that has not met the target says nothing of its statistics.
        """
        validate = self._gauge.validate
        if validate is None:
            raise ValueError(
                "statistics are chosen by validation, and there is none: make the Grower with validate="
            )
        if self._twin is not None:
            raise ValueError(
                "statistics are chosen for the model, and its twin would keep others: use estimate_statistics"
            )
        kept = self.statistics
        before = kept.in_use
        if before in (None, name):  # a name that does not stay
            before = BEFORE
            kept.keep(before)
        self.estimate_statistics(batches, name=name)
        scale, scores = Scale(mode=self._gauge.mode), dict[str, float]()
        try:
            for each in dict.fromkeys((name, *kept.names)):
                kept.use(each)
                metrics, _ = measure(self.model, validate, mode=self._gauge.mode)
                if each == name:
                    scale.observe(metrics)
                    scale.close()
                score = scale.score(metrics)
                scores[each] = -math.inf if score is None else score
        except BaseException:
            kept.use(before)
            raise
        best = max(scores, key=lambda each: scores[each])
        chosen = best if scores[best] > scores[name] + CLEARLY else name
        kept.use(chosen)
        found = ", ".join(f"{each} {score:.3f}" for each, score in scores.items())
        self._notes.add(f"BatchNorm statistics: {chosen} are used; validation under each: {found}")
        return chosen

    def _follow_target(self, decision: Decision) -> None:
        """Choose statistics again where validation has fallen, if that was wished for."""
        if self._target is None or not self.history:
            return
        before, now = self.history[-1].score, decision.score
        if before is not None and now is not None and before - now > FALL:
            self.choose_statistics(self._target)

    def cache_features(self, slot: str, samples: int) -> FeatureCache:
        """Remember by sample what the frozen host computes up to a slot; `FeatureCache.of` says for which forward.

        samples  how many the training set has
        """
        return FeatureCache(self.model, slot, samples)
