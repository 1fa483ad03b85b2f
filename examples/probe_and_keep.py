"""One episode of growth on digits, by the rule that a learned controller has to beat: probe and keep, cheap first.

python examples/probe_and_keep.py [--suite digits] [--seed 0]
"""

import argparse

import gymnasium

from esper.simic.env import GrowthEnv
from esper.tamiyo.rules import rule_policy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", default="digits", help="digits, mnist1d, shift, cpu or toy")
    parser.add_argument("--seed", type=int, default=0, help="of the host, its data order and its case")
    options = parser.parse_args()
    env = gymnasium.make(f"esper.envs:esper/Growth-{options.suite}-v0", render_mode="ansi").unwrapped
    assert isinstance(env, GrowthEnv)
    policy, over = rule_policy("probe_and_keep"), False
    env.reset(
        seed=options.seed
    )  # also trains the same host without growth, to compare with; once, it is kept
    while not over:
        situation = env.situation()
        action = policy.act(situation)
        _, reward, over, _, info = env.step(env.encode(action))
        accuracy = situation.signals.validation_accuracy
        what = f"{action.op.name} {action.blueprint or ''}@{action.slot}" if action.slot else "wait"
        print(f"epoch {situation.signals.epoch:2}  accuracy {accuracy:.3f}  {what:32}  reward {reward:+.3f}")
    print(env.render())
    summary = info["summary"]
    if summary.rolled_back is not None:
        print(f"the governor ended it: {summary.rolled_back}")
    else:
        print(f"utility {summary.utility:.3f}, {summary.gain:+.3f} over the same host without growth")


if __name__ == "__main__":
    main()
