"""The governor in a user's loop: it takes a model that broke back to its last good epoch, and training goes on."""

import math
from collections.abc import Mapping

import torch

from esper.grower.metrics import EpochMetrics
from esper.kasmina import GrowingModel
from esper.kasmina.snapshots import ModelSnapshot
from esper.tolaria.governor import Governor, GovernorRules, Verdict, Vitals

BROKEN_EPOCHS = 2
"""Epochs in a row that a seed may put out NaN or Inf before it is removed. One can be a scaler's overflow."""

LEAST_FIRST_LOSS = 1.0
"""A first loss can be small (a good start, or just the last batch's): noise over it is no divergence."""


class Guard:
    """Remembers the last good epoch in memory: a second copy of weights and optimiser state.

    A host is judged by its own past: diverged is a training loss over `divergence_factor` times the first epoch's,
    collapsed an accuracy that is nearly gone.
    """

    def __init__(self, model: GrowingModel, rules: GovernorRules | None) -> None:
        self._model = model
        self._governor = (
            None if rules is None else Governor(rules, chance_accuracy=0.0, untrained_loss=math.inf)
        )
        self._memory: ModelSnapshot | None = None
        self._broken: dict[str, int] = {}

    def remember(self) -> None:
        """The model as it is now is worth going back to."""
        if self._governor is None:
            return
        if self._memory is None:
            self._memory = ModelSnapshot(self._model)
        else:
            self._memory.take()

    def restore(self) -> None:
        """Go back to it, if anything was remembered."""
        if self._memory is not None:
            self._memory.restore()

    def judge(self, metrics: EpochMetrics, gradient_norm: float | None) -> Verdict | None:
        """None if the model may go on. What is unknown is not held against it."""
        governor = self._governor
        if governor is None:
            return None
        loss = metrics.train_loss
        if loss is None and not _finite_weights(self._model):
            loss = math.nan
        if math.isinf(governor.untrained_loss) and loss is not None and math.isfinite(loss) and loss > 0:
            governor.untrained_loss = max(loss, LEAST_FIRST_LOSS)
        return governor.judge(
            Vitals(
                train_loss=0.0 if loss is None else loss,
                gradient_norm=0.0 if gradient_norm is None else gradient_norm,
                validation_loss=0.0 if metrics.val_loss is None else metrics.val_loss,
                validation_accuracy=(
                    governor.best_accuracy if metrics.val_accuracy is None else metrics.val_accuracy
                ),
                seeds_finite=True,  # seeds are kept away from the host, and judged by `broken_seeds`
            )
        )

    @property
    def content(self) -> bool:
        """Whether the epoch judged last is worth going back to."""
        return self._governor is not None and self._governor.content

    def gives_up(self) -> bool:
        """Whether going back has not helped; from here on the model is left alone."""
        if self._governor is None or not self._governor.gives_up:
            return False
        self._governor = self._memory = None
        return True

    def broken_seeds(self) -> list[str]:
        """Live seeds that were not finite for `BROKEN_EPOCHS` epochs, this one included."""
        for name, slot in self._model.slots.items():
            broken = slot.stage.is_live and bool(slot.non_finite.any())
            self._broken[name] = self._broken.get(name, 0) + 1 if broken else 0
        return [name for name, epochs in self._broken.items() if epochs >= BROKEN_EPOCHS]

    def state_dict(self) -> dict[str, object]:
        governor = self._governor
        if governor is None:
            return {"governor": None, "untrained_loss": None, "broken": dict(self._broken)}
        return {
            "governor": governor.state_dict(),
            "untrained_loss": governor.untrained_loss,
            "broken": dict(self._broken),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        governor, untrained, broken = state["governor"], state["untrained_loss"], state["broken"]
        if self._governor is not None and isinstance(governor, dict) and isinstance(untrained, float):
            self._governor.load_state_dict(governor)
            self._governor.untrained_loss = untrained
        if isinstance(broken, dict):
            self._broken = dict(broken)


@torch.no_grad()
def _finite_weights(model: GrowingModel) -> bool:
    return all(bool(p.isfinite().all()) for p in model.host.parameters())
