"""A decision, an episode and the cost of a run, as names and values."""

import math
from collections.abc import Sequence

from esper.karn.watch import texts
from esper.karn.watch.episodes import Frame
from esper.karn.watch.lines import EpisodeRow
from esper.karn.watch.runs import Watched
from esper.leyline import RoundFinished

MOST_PARTS = 12


def decision_facts(frame: Frame | None) -> list[tuple[str, str]]:
    """What was decided, and what came of it."""
    if frame is None:
        return [("decision", texts.UNKNOWN)]
    decision = frame.decision
    used = (
        ("slot", decision.slot),
        ("blueprint", decision.blueprint),
        ("style", decision.style),
        ("tempo", decision.tempo),
        ("alpha target", decision.alpha_target),
        ("alpha speed", decision.alpha_speed),
        ("alpha curve", decision.alpha_curve),
    )
    rows = [("operation", texts.operation(decision.op.name))]
    rows += [(name, texts.clipped(str(value), 60)) for name, value in used if value is not None]
    if decision.illegal is not None:
        rows.append(("illegal", texts.clipped(decision.illegal)))
    rows += [
        ("value", texts.signed(decision.value)),
        ("log-probability", texts.number(decision.log_prob)),
        ("contribution", texts.signed(decision.contribution)),
        ("accuracy after", texts.number(decision.validation_accuracy)),
        ("reward", texts.signed(decision.reward, 4)),
    ]
    parts = [(name, part) for name, part in decision.reward_components.items() if part]
    rows += [
        (f"· {texts.clipped(name, 40).replace('_', ' ')}", texts.signed(part, 4)) for name, part in parts
    ]
    return rows


def observation_facts(frame: Frame | None) -> list[tuple[str, str]]:
    """What the policy saw, feature by feature."""
    seen = None if frame is None else frame.decision.observation
    if seen is None:
        return [(texts.UNKNOWN, "recorded with --run-telemetry debug")]
    return [(texts.clipped(name, 60), texts.number(value, 4)) for name, value in seen.items()]


def episode_told(row: EpisodeRow | None, *, recorded: bool) -> str:
    if row is None:
        return "no episode has ended"
    parts = [
        f"round {row.round}",
        f"accuracy {texts.number(row.accuracy)}, wait-only {texts.number(row.control_accuracy)}",
        f"added parameters {texts.whole(row.added_parameters)}",
    ]
    if row.rolled_back is not None:
        parts.append(f"rolled back: {row.rolled_back}")
    if row.lost:
        parts.append("lost")
    if not recorded:
        parts.append("decisions not recorded")
    return "  ·  ".join(parts)


def cost_facts(watched: Watched) -> list[tuple[str, str]]:
    rounds = watched.state.rounds
    last = rounds[-1] if rounds else None
    spent = None if last is None else sum(row.seconds for row in rounds if row.seconds == row.seconds)
    lost = sum(row.lost_episodes for row in rounds)
    return [
        ("env-epochs", texts.whole(None if last is None else last.env_steps)),
        (
            "speed now",
            f"{texts.number(None if last is None else last.env_epochs_per_second, 1)} env-epochs/s",
        ),
        ("time in rounds", texts.duration(spent)),
        ("last round", texts.duration(None if last is None else last.seconds)),
        ("peak memory", texts.size(None if last is None else last.peak_memory_bytes)),
        ("episodes", texts.whole(len(watched.state.episodes)) + (f", {lost:,} lost" if lost else "")),
        ("events read", texts.whole(watched.state.events)),
        ("unreadable lines", texts.whole(watched.state.unreadable_lines)),
    ]


def time_tree(rounds: Sequence[RoundFinished]) -> list[tuple[str, str]]:
    """Where the time of these rounds went, as shares of it; parts inside others are set in."""
    told = [row for row in rounds if row.seconds_by_part is not None and math.isfinite(row.seconds)]
    whole = sum(row.seconds for row in told)
    parts: dict[str, float] = {}
    for row in told:
        for path, seconds in (row.seconds_by_part or {}).items():
            parts[path] = parts.get(path, 0.0) + seconds
    if not parts:
        return [("parts of a round", texts.UNKNOWN)]
    return [
        (
            f"{'· ' * path.count('/')}{texts.clipped(path.rpartition('/')[2], 40)}",
            texts.share(parts[path], whole),
        )
        for path in sorted(parts)[:MOST_PARTS]
    ]
