"""`esper grow`: grow a model on one of the tasks, and export it."""

from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.common import BadInput, VerbParser, as_json, as_typed, note, table

if TYPE_CHECKING:
    from argparse import Namespace

    from esper.simic.held_out import GrownEpoch, GrownTask

_SUMMARY = """Grow the host of a task under a controller, and compare it with the same host without growth.
A controller is one that comes with Esper, a folder (`esper controllers`), or a rule: wait, random,
periodic, plateau, fit_ratio, probe_and_keep, detect_then_probe, by_layout, frozen_spread,
live_on."""


_ABOUT_EPOCHS = "accuracy is of validation, on the half of it by which nothing is decided"
_ABOUT_SEEDS = (
    "HOLDING: blended in; FOSSILIZED: kept for good; EMBARGOED: taken out, at the end if it did not earn its rent; "
    "alpha: how much of a seed is added, of what is to be"
)


_OPTIONS = {"controller": "--controller", "device": "--device", "horizon": "--epochs", "suite": "task"}
"""Field -> its option."""


def run_grow(arguments: list[str]) -> int:
    """Grow one host, print its epochs and export it; returns the exit code."""
    example = "esper grow mnist1d:shuffled=1.0 --controller cpu-v1 --export grown.pt2"
    parser = VerbParser("grow", _SUMMARY, example, "quiet", "json")
    parser.add_argument("task", metavar="TASK", help="a task or an instance of one (`esper tasks`)")
    who_help = (
        "controller or rule; by default the controller that comes with Esper for the task, "
        "or else what a Grower takes: frozen_spread on frozen networks, by_layout on others"
    )
    parser.add_argument("--controller", metavar="WHO", help=who_help)
    parser.add_count("--epochs", "by default the task's own")
    parser.add_seed("rng seed of the host and its data's order (%(default)s)")
    parser.add_count("--budget", "parameters that may be added; by default any number")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--sample", action="store_true", help="let a controller sample its choices")
    endings = "write the grown model: .safetensors, .onnx or .pt2"
    parser.add_argument("--export", type=Path, metavar="FILE", help=endings)
    chosen = parser.parse(arguments)
    if chosen.export is not None:
        from esper.leyline.files import require_exportable

        try:
            require_exportable(chosen.export)
        except ValueError as error:
            raise BadInput(str(error).replace("the file to export is", "--export is")) from None
    with as_typed(_OPTIONS):
        return _grow(chosen)


def _grow(chosen: "Namespace") -> int:
    from esper.leyline.errors import nearest
    from esper.simic.env.making import require_device, require_suite, use_one_thread
    from esper.tolaria.tasks import all_tasks, suite_names
    from esper.tolaria.worlds.toy.instance import TOY_SUITES

    tasks = [row.name for row in all_tasks()]
    if chosen.controller == "schedule":
        raise BadInput(
            "--controller is 'schedule', a rule that needs its text, which is given in Python only"
        )
    if chosen.task.partition(":")[0] not in tasks:
        known = ", ".join(tasks)
        suite = ", a suite: it draws instances of tasks" if chosen.task in suite_names() else ""
        suite = ", a suite in which no network trains" if chosen.task in TOY_SUITES else suite
        raise BadInput(
            f"task is {chosen.task!r}{suite}; expected one of {known}, with parameters if you like"
            f"{nearest(chosen.task.partition(':')[0], tasks)}"
        )
    require_suite(chosen.task)
    require_device(chosen.device, chosen.task)
    import torch

    from esper.grower.checks import too_short
    from esper.kasmina.export import write_model
    from esper.simic.held_out import grow_case
    from esper.tamiyo.deciders import decider

    use_one_thread()
    generator = torch.Generator().manual_seed(chosen.seed) if chosen.sample else None
    who = decider(chosen.controller or usual(chosen.task), seed=chosen.seed, generator=generator)
    silent = chosen.quiet or chosen.json
    doubt = too_short(who, chosen.epochs, first_decision=0)
    if doubt is not None:
        note(f"note: {doubt}")

    if not silent:
        print(f"{chosen.task} under {who.name}; {_ABOUT_EPOCHS}")
        print(f"{'epoch':>5}  {'accuracy':>8}  {'without growth':>14}  {'added':>7}  decision before it")
    grown = grow_case(
        chosen.task,
        who,
        seed=chosen.seed,
        epochs=chosen.epochs,
        device=chosen.device,
        parameter_budget=chosen.budget,
        progress=(lambda _: None) if silent else _show_epoch,
    )
    result = _result(who.name, grown)
    if chosen.json:
        print(as_json(result))
    elif not chosen.quiet:
        print(f"\n{grown.host.model.draw()}")
        print(_ABOUT_SEEDS)
        print(f"\n{table(('result', ''), list(_told(result).items()))}")
        if (grown.summary.gain or 0.0) < 0.0:
            print(f"{who.name} cost more than it gave here; `esper controllers` lists who else may decide")
    if chosen.export is not None:
        if grown.summary.rolled_back is not None:
            raise BadInput(f"the governor ended it ({grown.summary.rolled_back}): there is nothing to export")
        example = grown.host.data.source.phases[0].train.inputs[:2].cpu()
        there = chosen.export.exists()
        write_model(grown.host.model.cpu(), chosen.export, example)
        if not silent:
            seeds = ", seeds at the strength drawn above" if grown.summary.added_parameters else ""
            print(f"exported to {chosen.export}{', in place of what was there' if there else ''}{seeds}")
    return 0


def usual(case: str) -> str:
    """Who decides where nobody is named: the controller that was trained on the task, or the Grower's rule."""
    from esper.benchmark.rivals import BASED
    from esper.tamiyo.controller import read_card, shipped_controllers
    from esper.tolaria.tasks import Instance, suite

    task = Instance.parse(case).task
    for name, folder in shipped_controllers().items():
        if task in {instance.task for instance in suite(read_card(folder).training.suite).held_out}:
            return name
    return "frozen_spread" if task in BASED else "by_layout"


def _show_epoch(epoch: "GrownEpoch") -> None:
    from esper.grower.history import described

    sure = "" if epoch.probability is None else f" (probability {epoch.probability:.2f})"
    accuracies = (epoch.report.judged[1], epoch.control_accuracy)
    ours, theirs = ("-" if value is None else f"{value:.3f}" for value in accuracies)
    back = "" if epoch.report.rolled_back is None else f"; the governor: {epoch.report.rolled_back}"
    decision = f"{described(epoch.action)}{sure}{back}"
    added = f"{epoch.added_parameters:>7,}"
    print(f"{epoch.report.epoch:>5}  {ours:>8}  {theirs:>14}  {added}  {decision}", flush=True)


def _told(result: "dict[str, object]") -> dict[str, object]:
    """A result for people: what is not known is left out, and the gain is in points, with what it is made of."""
    known = {name.replace("_", " "): value for name, value in result.items() if value is not None}
    accuracy, without, gain = (result[name] for name in ("validation_accuracy", "without_growth", "gain"))
    if not isinstance(gain, float):
        return known
    from esper.tolaria.tasks import Instance

    told = f"{100 * gain:+.1f} points"
    if Instance.parse(str(result["task"])).row.counts == "life":
        told += " over the whole life, less rent"
    elif isinstance(accuracy, float) and isinstance(without, float):
        more = accuracy - without
        told += (
            f": {100 * more:+.1f} of accuracy, less {100 * (more - gain):.1f} of rent for added parameters"
        )
    return {**known, "gain": told}


def _result(controller: str, grown: "GrownTask") -> dict[str, object]:
    summary = grown.summary
    return {
        "task": summary.case,
        "controller": controller,
        "epochs": summary.epochs,
        "validation_accuracy": summary.validation_accuracy,
        "without_growth": summary.control_accuracy,
        "gain": summary.gain,
        "test_accuracy": grown.test_accuracy,
        "host_parameters": grown.host_parameters,
        "added_parameters": summary.added_parameters,
        "rolled_back": summary.rolled_back,
    }
