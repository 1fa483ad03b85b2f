"""`esper controllers`: list the shipped controllers, or export a run's controller to a folder."""

from pathlib import Path
from typing import TYPE_CHECKING

from esper.cli.common import BadInput, VerbParser, as_json, find_run, table

if TYPE_CHECKING:
    from esper.tamiyo.controller import ControllerCard

COLUMNS = (
    "controller",
    "trained on suite",
    "steps",
    "gain over waiting",
    "best rule",
    "licence",
    "what it is",
)
_EXAMPLE = "esper controllers export my-run --to my-controller --episodes 24"


def run(arguments: list[str]) -> int:
    """List the controllers, or export one; returns the exit code."""
    if arguments[:1] == ["export"]:
        return _export(arguments[1:])
    summary = (
        "List the controllers that come with Esper. `esper controllers export RUN --to FOLDER` makes another."
    )
    chosen = VerbParser("controllers", summary, _EXAMPLE, "json").parse(arguments)
    from esper.tamiyo.controller import read_card, shipped_controllers

    cards = [read_card(folder) for folder in shipped_controllers().values()]
    if chosen.json:
        print(as_json(cards))
    elif not cards:
        print("none comes with this version; `esper controllers export RUN --to FOLDER` makes one of a run")
    else:
        print(table(COLUMNS, [_row(card) for card in cards]))
    return 0


def _row(card: "ControllerCard") -> tuple[object, ...]:
    own = [row for row in card.evidence if row.policy == card.name]
    gain = f"{own[0].gain:+.3f} on {own[0].suite}" if own else None
    others = [row for row in card.evidence if own and row.policy != card.name and row.suite == own[0].suite]
    best = max(others, key=lambda row: row.gain, default=None)
    rule = None if best is None else f"{best.gain:+.3f} {best.policy}"
    return card.name, card.training.suite, card.training.env_steps, gain, rule, card.licence, card.summary


def _export(arguments: list[str]) -> int:
    summary = "Turn the best checkpoint of a run into a controller: a folder with weights and a card."
    parser = VerbParser("controllers export", summary, _EXAMPLE, "run", "json")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where to write it")
    parser.add_argument("--name", help="its name; by default the folder's")
    parser.add_argument("--summary", default="", metavar="TEXT", help="one line on what it is")
    parser.add_argument("--licence", default="MIT", metavar="TEXT", help="its terms of use (%(default)s)")
    parser.add_count("--episodes", "held-out episodes to put on its card (none)", least=0, default=0)
    chosen = parser.parse(arguments)
    path = find_run(chosen.run, chosen.directory)
    from pydantic import ValidationError

    from esper.runs.ship import controller_of_run, require_checkpoint, with_evidence
    from esper.simic.held_out import evaluate_controller

    checkpoint = require_checkpoint(path)
    try:
        names = {"name": chosen.name or chosen.to.name, "summary": chosen.summary, "licence": chosen.licence}
        controller = controller_of_run(path, checkpoint, **names)
        if chosen.episodes:
            scores = evaluate_controller(controller, episodes=chosen.episodes)
            controller = with_evidence(controller, controller.card.training.suite, scores)
        controller.save(chosen.to)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from None
    except OSError as error:
        raise BadInput(str(error)) from None
    done = f"{checkpoint.stem} checkpoint of {path.name} is now the controller {chosen.to}"
    print(as_json(controller.card) if chosen.json else done)
    return 0
