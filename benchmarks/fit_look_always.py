"""Fit `look_always`: the cheapest controller that the teacher of streams can teach, a linear rule.

In the first round the teacher plays drawn streams, in the next ones the rule that was fitted so far; what hosts show
after each epoch, and whether the teacher would want a mixer then, is what the rule is fitted to. It prints what
`esper.benchmark.stream_rivals.WISH` is made of:

    python benchmarks/fit_look_always.py --workers 2 --streams 20
"""

import argparse
import json

import numpy as np

from esper.benchmark.stream_rules import ForesightPolicy, LinearWish, LookAlwaysPolicy, fit_wish
from esper.leyline import DecisionSettings, Situation
from esper.simic.env.making import make_world, use_one_thread
from esper.simic.evaluation import RulePlayer, play_cases
from esper.simic.reward import RewardConfig
from esper.tolaria.tasks import suite, task
from spreading import Job, Spread

DRAWS, FIRST_HOST = 424_242, 7000
TEACHER = "null"
"""Instead of a rule, as JSON."""

Notes = list[tuple[tuple[float, ...], bool]]
"""What was seen, and whether the teacher wanted a mixer."""


class NotingPolicy(LookAlwaysPolicy):
    """Notes what the teacher wants, and does what the rule wants; without a rule what the teacher wants."""

    def __init__(self, case: str, wish: LinearWish | None, notes: Notes) -> None:
        self._teacher, self._notes = ForesightPolicy(case), notes
        super().__init__(wish)

    def wants(self, situation: Situation) -> bool:
        """By the rule, or the teacher."""
        own, taught = super().wants(situation), self._teacher.wants(situation)
        if self.seen is not None:
            self._notes.append((self.seen, taught))
        return taught if self.wish is None else own


def play(job: Job) -> list[tuple[Notes, list[float]]]:
    """What was noted, and what each life was worth."""
    written = json.loads(job.arm)
    wish = None if written is None else LinearWish(written[0], tuple(written[1]))
    setting = make_world("stream", len(job.hosts), device=job.device, horizon=job.epochs)
    reward = RewardConfig(rent=setting.rent, counts=setting.counts, control_variate=False)
    episodes = setting.episodes(reward=reward, on_illegal="noop", decisions=DecisionSettings())
    notes: Notes = []
    player = RulePlayer(lambda env_idx: NotingPolicy(job.hosts[env_idx][0], wish, notes))
    played = play_cases(player, episodes, list(job.hosts))
    return [(notes, [life.utility or 0.0 for life in played])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is this one (%(default)s)")
    parser.add_argument("--streams", type=int, default=20, help="of each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the first is the teacher's (%(default)s)")
    parser.add_argument("--epochs", type=int, default=task("stream").epochs, help="of a life (%(default)s)")
    chosen = parser.parse_args()
    use_one_thread()
    rng, arm, notes = np.random.default_rng(DRAWS), TEACHER, Notes()
    share = -(-chosen.streams // max(chosen.workers, 1))
    with Spread(play, chosen.workers, float("inf")) as spread:
        for number in range(chosen.rounds):
            hosts = [(str(suite("stream").draw(rng)), FIRST_HOST + number) for _ in range(chosen.streams)]
            groups = (tuple(hosts[start : start + share]) for start in range(0, len(hosts), share))
            jobs = [Job(arm, group, chosen.device, chosen.epochs) for group in groups]
            found = spread.results(jobs, f"round {number + 1}")
            notes += [note for noted, _ in found for note in noted]
            seen, wanted = np.array([seen for seen, _ in notes]), np.array([taught for _, taught in notes])
            wish = fit_wish(seen, wanted)
            arm = json.dumps((wish.constant, wish.weights))
            agreed = np.mean([wish.wants(each) == taught for each, taught in notes])
            life = np.mean([worth for _, worths in found for worth in worths])
            print(f"  life {life:.4f}; the rule agrees on {agreed:.3f} of {len(notes):,} epochs", flush=True)
    print(f"LinearWish({wish.constant:.5g}, ({', '.join(f'{weight:.5g}' for weight in wish.weights)}))")


if __name__ == "__main__":
    main()
