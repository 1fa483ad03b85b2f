"""Teach a network what the outcomes of schedules know, for PPO to start from or to be judged itself.

`look_up`, the best schedule for each layout of hosts on training draws, is played on the training pool and cloned.
Beside the network a controller is written, in a folder of the same name:

    python benchmarks/teach_outcomes.py --preset hosts --outcomes hosts.parquet --out runs/taught.safetensors
    esper train --preset hosts --warm-start runs/taught.safetensors
    esper bench --suite hosts --seeds 1 --controller runs/taught
"""

import argparse
from pathlib import Path

from esper.benchmark.outcomes import Outcomes
from esper.benchmark.rivals import LOOK_UP, LookUpPolicy, fit_look_up, met_hosts
from esper.runs.ship import controller_of_network
from esper.simic.cloning import clone_player
from esper.simic.config.training_config import TrainingConfig
from esper.simic.evaluation import RulePlayer
from study_learning import setting_of


def main() -> None:
    options = _options()
    config = TrainingConfig.preset(options.preset, **dict(setting_of(text) for text in options.set))
    drawn = Outcomes.read(options.outcomes).part(held_out=False)
    _, layouts = met_hosts(drawn.cases, config.suite)
    schedules, otherwise = fit_look_up(drawn, layouts), drawn.single_best()
    for layout, schedule in schedules.items():
        print(f"{layout}: {schedule or 'wait'}", flush=True)
    player = RulePlayer(lambda _: LookUpPolicy(schedules, otherwise))
    network, report = clone_player(
        config, player, LOOK_UP, episodes=options.episodes, held_out=options.episodes // 8
    )
    network.save(options.out)
    controller_of_network(network, name=options.out.stem).save(options.out.with_suffix(""))
    for what, agreement in (("taught", report.training), ("held out", report.held_out)):
        if agreement is not None:
            acting = (
                "nothing was done" if agreement.acting is None else f"{agreement.acting:.3f} where it acts"
            )
            print(f"agreement on episodes {what}: {agreement.joint:.3f} of {agreement.steps} steps, {acting}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--preset", default="hosts", help="the training that is to start from it (%(default)s)"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="settings to change")
    parser.add_argument("--outcomes", type=Path, required=True, help="what make_outcomes.py wrote")
    parser.add_argument(
        "--episodes", type=int, default=256, help="to record; an eighth only judges (%(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, help="a .safetensors file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
