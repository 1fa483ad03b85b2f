"""Episodes out of lines, in few numbers: there are too many of them to check each as the analyst's reader does."""

import math
from typing import NamedTuple

from pydantic import JsonValue
from pydantic_core import from_json

from esper.karn.watch.texts import clipped

Fields = dict[str, JsonValue]


class EpisodeRow(NamedTuple):
    """What is kept of an EpisodeFinished; unknown is None."""

    round: int
    env: int
    episode: int
    case: str
    epochs: int | None
    utility: float | None
    gain: float | None
    accuracy: float | None
    control_accuracy: float | None
    added_parameters: int | None
    rolled_back: str | None
    lost: bool

    @property
    def control_utility(self) -> float | None:
        return None if self.utility is None or self.gain is None else self.utility - self.gain


def fields_of(line: bytes) -> Fields | None:
    """The object of a line; None when it is none."""
    try:
        data = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def episode_row(data: Fields) -> EpisodeRow | None:
    """None when it does not even say which episode it was."""
    get = data.get
    round_number, env, episode = whole(get("round")), whole(get("env")), whole(get("episode"))
    if round_number is None or env is None or episode is None:
        return None
    case, rolled_back = get("case"), get("rolled_back")
    return EpisodeRow(
        round_number,
        env,
        episode,
        clipped(case) if isinstance(case, str) else "",
        whole(get("epochs")),
        real(get("utility")),
        real(get("gain")),
        real(get("validation_accuracy")),
        real(get("control_accuracy")),
        whole(get("added_parameters")),
        clipped(rolled_back) if isinstance(rolled_back, str) else None,
        get("lost") is True,
    )


def real(value: JsonValue) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None


def whole(value: JsonValue) -> int | None:
    """A count of any honest size; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
