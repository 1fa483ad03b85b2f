"""`esper grow`: grow a model on one of our tasks, watch it, export it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.common import BadInput, VerbParser, as_json, table

if TYPE_CHECKING:
    from argparse import Namespace

    from esper.simic.held_out import GrownEpoch, GrownTask


def run(arguments: list[str]) -> int:
    parser = VerbParser(
        "grow",
        "Grow the host of a task under a controller, and compare it with the same host without growth.\n"
        "A controller is one that comes with Esper, a folder (`esper controllers`), or a rule: wait, random,\n"
        "periodic, plateau, fit_ratio, probe_and_keep, detect_then_probe.",
        "esper grow mnist1d:shuffled=1.0 --controller cpu-v1 --export grown.onnx",
    )
    parser.add_argument("task", metavar="TASK", help="a task or an instance of one (`esper tasks`)")
    parser.add_argument(
        "--controller", default="probe_and_keep", metavar="WHO", help="who decides (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="by default the task's own")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the host and its data's order (%(default)s)"
    )
    parser.add_argument(
        "--budget", type=int, metavar="N", help="parameters that may be added; by default any"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument(
        "--sample", action="store_true", help="let a controller sample instead of its first choice"
    )
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write the grown model: .safetensors, .onnx or .pt2"
    )
    parser.add_quiet()
    parser.add_json()
    chosen = parser.parse_args(arguments)
    for name in ("epochs", "budget"):
        value = getattr(chosen, name)
        if value is not None and value < 1:
            raise BadInput(f"{name} is {value}; expected a whole number >= 1")
    if chosen.seed < 0:
        raise BadInput(f"seed is {chosen.seed}; expected a whole number >= 0")
    return _grow(chosen)


def _grow(chosen: "Namespace") -> int:
    case = chosen.task
    from esper.cli.tasks import require_suite
    from esper.tolaria.tasks import all_tasks

    tasks = [row.name for row in all_tasks()]
    if case.partition(":")[0] not in tasks:
        raise BadInput(f"task is {case!r}; expected one of {', '.join(tasks)}, with parameters if you like")
    require_suite(case)
    import torch

    from esper.grower.wrapping import too_short
    from esper.kasmina.export import require_writable, write_model
    from esper.simic.held_out import grow_case
    from esper.tamiyo.deciders import decider

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(chosen.seed) if chosen.sample else None
    try:
        if chosen.export is not None:
            require_writable(chosen.export)
        who = decider(chosen.controller, seed=chosen.seed, generator=generator)
    except ValueError as error:  # a ControllerError is one
        raise BadInput(str(error)) from None
    if chosen.device != "cpu" and not torch.cuda.is_available():
        raise BadInput(f"device is {chosen.device!r}, and torch finds no CUDA device; `esper doctor` tells")
    silent = chosen.quiet or chosen.json
    doubt = too_short(who, chosen.epochs)
    if doubt is not None:
        print(f"note: {doubt}", file=sys.stderr)

    def tell(epoch: "GrownEpoch") -> None:
        if not silent:
            print(_line(epoch), flush=True)

    if not silent:
        print(f"{'epoch':>5}  {'accuracy':>8}  {'without growth':>14}  {'added':>7}  decision before it")

    grown = grow_case(
        case,
        who,
        seed=chosen.seed,
        epochs=chosen.epochs,
        device=chosen.device,
        parameter_budget=chosen.budget,
        tell=tell,
    )
    result = _result(who.name, grown)
    if chosen.json:
        print(as_json(result))
    elif not chosen.quiet:
        print()
        print(grown.host.model.draw())
        print(table(("result", ""), list(result.items())))
    if chosen.export is not None:
        if grown.summary.rolled_back is not None:
            raise BadInput(f"the governor ended it ({grown.summary.rolled_back}): there is nothing to export")
        write_model(
            grown.host.model.cpu(), chosen.export, grown.host.data.source.phases[0].train.inputs[:2].cpu()
        )
        if not silent:
            print(f"exported to {chosen.export}")
    return 0


def _line(epoch: "GrownEpoch") -> str:
    from esper.grower.history import described

    sure = "" if epoch.probability is None else f" (p {epoch.probability:.2f})"
    accuracies = (epoch.report.validation_accuracy, epoch.control_accuracy)
    ours, theirs = ("-" if value is None else f"{value:.3f}" for value in accuracies)
    back = "" if epoch.report.rolled_back is None else f"; the governor: {epoch.report.rolled_back}"
    decision = f"{described(epoch.action)}{sure}{back}"
    return f"{epoch.report.epoch:>5}  {ours:>8}  {theirs:>14}  {epoch.added_parameters:>7,}  {decision}"


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
