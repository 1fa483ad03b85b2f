"""Teaching by somebody who knows more: what a teacher would decide is asked wherever the student goes, and cloned.

A teacher of drawn tasks may know what no controller is shown, such as when the data of a stream change. What it
decides cannot be copied from its own episodes alone: a student that is late has seeds which the teacher never has.
So the student plays, the teacher says what it would do in the same state, and the network is taught from all that
was said so far (the aggregation of data sets of Ross, Gordon and Bagnell, 2011).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch

from esper.simic.building import build
from esper.simic.cloning import CloningError, PolicyNetwork
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.episodes import Episodes
from esper.simic.evaluation import LearnedPlayer, Player, Rewards
from esper.simic.offline.recorder import record_episodes
from esper.simic.offline.recording import Advised, joined
from esper.tamiyo.actions import Actions

TeacherOf = Callable[[Sequence[str]], Player]
"""The teacher of envs whose cases are these."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One round of teaching."""

    utility: float
    """Mean of what was played in it: by the teacher in the first, by the student in the others."""
    agreement: float
    """The share of free steps, of all lessons so far, on which the student decides as the teacher afterwards."""
    acting: float | None
    """The same where the teacher does not wait; None where it always does."""


class AdvisedPlayer:
    """Plays a student (None: the teacher itself), and keeps what the teacher would have decided in its states."""

    def __init__(self, teacher: Player, student: Player | None = None) -> None:
        self._teacher, self._student = teacher, student
        self.advice: list[Actions] = []
        """(env, head) for each step."""

    def begin(self, num_envs: int) -> None:
        """Begin anew, both."""
        self.advice = []
        for player in (self._teacher, self._student):
            if player is not None:
                player.begin(num_envs)

    def act(self, episodes: Episodes, rewards: Rewards) -> Actions:
        """What the student decides; illegal advice is to wait."""
        advice = self._teacher.act(episodes, rewards)
        allowed = episodes.choices.allowed(advice, episodes.masks())
        self.advice.append(np.where(allowed[:, None], advice, 0))
        return self.advice[-1] if self._student is None else self._student.act(episodes, rewards)


def record_advised(
    teacher_of: TeacherOf,
    student: Player | None,
    episodes: Episodes,
    wanted: Sequence[tuple[str, int]],
    *,
    policy: str,
) -> tuple[list[Advised], list[float]]:
    """Play each (case, host seed) and keep what the teacher says on the way; and the utility of each episode.

    Episodes whose host was lost are left out.
    """
    lessons, utilities = [], []
    for start in range(0, len(wanted), episodes.num_envs):
        group = wanted[start : start + episodes.num_envs]
        filled = [*group, *[group[-1]] * (episodes.num_envs - len(group))]
        player = AdvisedPlayer(teacher_of([case for case, _ in filled]), student)
        recording, played = record_episodes(player, episodes, group, policy=policy)
        kept = [env for env, summary in enumerate(played) if not summary.lost]
        if len(recording) < len(group):  # a host that was lost at once has no episode here
            raise RuntimeError(f"a host of {len(group)} was lost before its first step; begin again")
        if kept:
            said = torch.from_numpy(np.stack(player.advice)).long()  # (step, env, head)
            whole = recording.part(kept)
            lengths = zip(kept, whole.length.tolist(), strict=True)
            lessons.append(whole.advised(torch.cat([said[:length, env] for env, length in lengths])))
            utilities += [played[env].utility or 0.0 for env in kept]
    return lessons, utilities


def teach(
    config: TrainingConfig,
    teacher_of: TeacherOf,
    name: str,
    *,
    rounds: int = 4,
    episodes: int = 64,
    passes: int = 40,
    progress: Callable[[int, Lesson], None] = lambda *_: None,
) -> PolicyNetwork:
    """A network that decides as the teacher would, as far as what it is shown says.

    config    whose suite, pool, sizes and decisions it is taught with; its rewards need no baseline
    rounds    of `episodes` each; in the first the teacher plays
    passes    over all that was said so far, after each round
    progress  called after each round with its number
    """
    for what, count in (("rounds", rounds), ("episodes", episodes)):
        if count < 1:
            raise ValueError(f"{what} is {count}; expected a whole number >= 1")
    training, began = build(config), time.monotonic()
    try:
        network = PolicyNetwork(
            training.envs.space,
            hidden_size=config.hidden_size,
            num_lstm_layers=config.num_lstm_layers,
            seed=config.seed,
        )
        pairs, said = cycle(training.pool.pairs()), list[Advised]()
        for number in range(rounds):
            student = LearnedPlayer(network.to("cpu").actor) if number else None
            wanted = list(islice(pairs, episodes))
            lessons, utilities = record_advised(
                teacher_of, student, training.envs.episodes, wanted, policy=name
            )
            training.envs.episodes.telemetry.take()  # what was played here is not a learner's
            said += lessons
            if not said:
                raise CloningError(f"all {episodes} hosts were lost; nothing was learned from {name}")
            report = network.to(config.device).fit(_together(said), passes=passes)
            progress(number, Lesson(float(np.mean(utilities)), report.training.joint, report.training.acting))
        network.notes = {
            "config": config.to_dict(),
            "rule": name,
            "episodes": sum(len(lesson) for lesson in said),
            "env_steps": sum(lesson.steps for lesson in said),
            "seconds": round(time.monotonic() - began, 1),
        }
        return network.to("cpu")
    finally:
        training.envs.close()


def _together(lessons: Sequence[Advised]) -> Advised:
    return joined(lessons).advised(torch.cat([lesson.advice for lesson in lessons]))
