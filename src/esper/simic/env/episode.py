"""The running episode of one environment: what must be remembered between steps besides host and observer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from esper.leyline import ControlCurve, LifecycleOp

_GENERATOR_TAG = 0xCA5E
"""Names the stream that draws cases and host seeds: no other generator of the same seed shares it."""


def case_generator(seed: int) -> np.random.Generator:
    """Draws the cases and host seeds of one environment's episodes."""
    return np.random.default_rng((_GENERATOR_TAG, seed))


@dataclass(slots=True)
class Episode:
    case: str
    host_seed: int
    control: ControlCurve | None
    """None when the reward does not subtract one."""
    epoch: int = 0
    operations: list[int] = field(default_factory=lambda: [0] * len(LifecycleOp))
    illegal_actions: int = 0
    episode_return: float = 0.0

    def state_dict(self) -> dict[str, object]:
        control = self.control
        return {
            "case": self.case,
            "host_seed": self.host_seed,
            "control": None if control is None else [list(control.accuracies), list(control.losses)],
            "epoch": self.epoch,
            "operations": list(self.operations),
            "illegal_actions": self.illegal_actions,
            "episode_return": self.episode_return,
        }

    @staticmethod
    def from_state(state: Mapping[str, object]) -> "Episode":
        fields = dict(state)
        operations = fields["operations"]
        assert isinstance(operations, list)
        fields["operations"] = list(operations)  # to count in, while the saved state stays as it is
        control = fields.pop("control")
        if control is not None:
            assert isinstance(control, list)
            control = ControlCurve(tuple(control[0]), tuple(control[1]))
        return Episode(control=control, **fields)  # type: ignore[arg-type]
