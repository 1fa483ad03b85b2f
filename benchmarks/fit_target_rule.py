"""Fit the cheapest controller of `adapt_stream` that its teacher can teach: a linear rule for each base.

In the first round the teacher plays drawn streams, in the next ones the rule that was fitted so far; what hosts show
after each epoch, and what the teacher expects of each seed then, is what the rule is fitted to:

    python benchmarks/fit_target_rule.py --lives benchmarks/evidence/adapt_stream/target_lives.json \\
        --workers 2 --streams 48 --out target_rule.json
"""

import argparse
from pathlib import Path

import numpy as np

from esper.leyline import DecisionSettings, Situation
from esper.simic.env.making import make_world, use_one_thread
from esper.simic.evaluation import RulePlayer, play_cases
from esper.simic.reward import RewardConfig
from esper.tolaria.tasks import suite, task
from harness import RESULTS
from spreading import Job, Spread
from target_rules import (
    LinearPolicy,
    LinearRule,
    Note,
    TargetTable,
    TargetTeacher,
    TeacherPolicy,
    Worths,
    fit_linear,
    fit_target_teacher,
)

DRAWS, FIRST_HOST = 525_252, 7000
BY_TEACHER = ""
"""Instead of a rule, as JSON."""

Played = tuple[list[Note], list[float]]
"""What was noted, and what each life was worth."""


class NotingPolicy(LinearPolicy):
    """Notes what the teacher expects, and does as the rule does; without a rule, as the teacher does."""

    def __init__(self, teacher: TeacherPolicy, rule: LinearRule | None, notes: list[Note]) -> None:
        self._teacher, self._notes = teacher, notes
        super().__init__(rule)

    def plants(self, situation: Situation) -> bool:
        """When it does."""
        return super().plants(situation) if self.rule else self._teacher.plants(situation)

    def worths(self, situation: Situation) -> Worths:
        """By the rule, or the teacher."""
        own, expected = super().worths(situation), self._teacher.expected(situation)
        if self.seen is not None and situation.signals.epoch > 0:
            self._notes.append(Note(situation.signals.host_parameters, self.seen, expected))
        return own if self.rule else self._teacher.worths(situation)


class Playing:
    """Plays jobs; can be sent to other processes."""

    def __init__(self, teacher: TargetTeacher) -> None:
        self._teacher = teacher

    def __call__(self, job: Job) -> list[Played]:
        """What was noted on these hosts."""
        rule = LinearRule.read(job.arm) if job.arm != BY_TEACHER else None
        setting = make_world("adapt_stream", len(job.hosts), device=job.device, horizon=job.epochs)
        reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
        episodes = setting.episodes(reward=reward, on_illegal="noop", decisions=DecisionSettings(retire=True))
        notes: list[Note] = []
        player = RulePlayer(
            lambda env_idx: NotingPolicy(TeacherPolicy(self._teacher, job.hosts[env_idx][0]), rule, notes)
        )
        played = play_cases(player, episodes, list(job.hosts))
        return [(notes, [life.utility or 0.0 for life in played])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lives", type=Path, required=True, help="what target_lives.py wrote")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--streams", type=int, default=48, help="of each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the first is the teacher's (%(default)s)")
    parser.add_argument("--group", type=int, default=4, help="streams played side by side (%(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS / "target_rule.json", help="file (%(default)s)")
    chosen = parser.parse_args()
    use_one_thread()
    rng, notes, epochs = np.random.default_rng(DRAWS), list[Note](), task("adapt_stream").epochs
    teacher, rule = fit_target_teacher(TargetTable.read(chosen.lives)), BY_TEACHER
    with Spread(Playing(teacher), chosen.workers, float("inf")) as spread:
        for number in range(chosen.rounds):
            hosts = [
                (str(suite("adapt_stream").draw(rng)), FIRST_HOST + number) for _ in range(chosen.streams)
            ]
            groups = (tuple(hosts[at : at + chosen.group]) for at in range(0, len(hosts), chosen.group))
            found = spread.results(
                [Job(rule, one, chosen.device, epochs) for one in groups], f"round {number + 1}"
            )
            notes += [note for noted, _ in found for note in noted]
            rule = fit_linear(notes).written()
            life = np.mean([worth for _, worths in found for worth in worths])
            print(f"  life {life:.4f}; {len(notes):,} epochs", flush=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(rule + "\n")


if __name__ == "__main__":
    main()
