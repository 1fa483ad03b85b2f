"""Nodes of a cluster: what each did, on the page, at the terminal and in the line of a round; nothing without one."""

from dataclasses import replace

from rich.console import Console

from esper.karn.console import round_line
from esper.karn.drawing import LIGHT
from esper.karn.watch.sheet import run_contents
from esper.karn.watch.state import Watched
from esper.karn.watch.terminal import picture
from esper.karn.watch.verdicts import NODE_COLUMNS, work_by_node
from esper.leyline import RoundFinished
from run_examples import example

ALONE = replace(example(RoundFinished), epochs_by_worker=None, lost_by_worker=None, replayed_by_worker=None)
FIRST, SECOND, MOVED = "worker 0 on 10.0.0.1 (a1)", "worker 1 on 10.0.0.2 (b2)", "worker 1 on 10.0.0.1 (a1)"
ROUND = replace(
    ALONE,
    seconds=10.0,
    epochs_by_worker={FIRST: 40, SECOND: 20},
    lost_by_worker={FIRST: 0, SECOND: 3},
    replayed_by_worker={FIRST: 0, SECOND: 0},
    seconds_by_part={
        "round/hosts/epoch": 9.0,
        f"round/hosts/epoch/{FIRST}": 8.0,
        f"hosts/epoch/{SECOND}": 2.0,
    },
)
NEXT = replace(
    ROUND,
    epochs_by_worker={FIRST: 40, MOVED: 30},
    lost_by_worker={FIRST: 0, MOVED: 0},
    replayed_by_worker={FIRST: 0, MOVED: 7},
    seconds_by_part={f"hosts/epoch/{FIRST}": 8.0, f"hosts/epoch/{MOVED}": 4.0},
)


def watched(*rounds: RoundFinished) -> Watched:
    run = Watched("run")
    run.state.rounds.extend(rounds)
    return run


def test_each_node_has_its_workers_throughput_and_losses() -> None:
    first, second = ([pick(row) for pick in NODE_COLUMNS.values()] for row in work_by_node([ROUND, NEXT]))
    assert first == ["10.0.0.1 (a1)", "worker 0, worker 1", "110", "5.5", "50%", "0", "7"]
    assert second == ["10.0.0.2 (b2)", "worker 1", "20", "1.0", "10%", "3", "0"]


def test_time_without_a_cluster_does_not_count() -> None:
    assert [row.seconds for row in work_by_node([ALONE, ROUND])] == [10.0, 10.0]
    assert work_by_node([ALONE]) == work_by_node([]) == []


def test_the_page_and_the_terminal_show_nodes_of_a_cluster_alone() -> None:
    shown = run_contents([watched(replace(ROUND, epochs_by_worker={"worker 0 on <b>": 1}))], LIGHT)["nodes"]
    assert isinstance(shown, str)
    assert "<td>&lt;b&gt;</td><td>worker 0</td><td>1</td>" in shown
    assert run_contents([watched(ALONE)], LIGHT)["nodes"] == ""

    def at_the_terminal(run: Watched) -> str:
        console = Console(width=160)
        with console.capture() as captured:
            console.print(picture(run))
        return captured.get()

    assert "10.0.0.2 (b2)" in at_the_terminal(watched(ROUND))
    assert "epochs replayed" not in at_the_terminal(watched(ALONE))


def test_the_line_of_a_round_names_what_was_lost() -> None:
    assert round_line(ROUND).endswith("nodes 2  workers 2  lost 3")
    assert round_line(NEXT).endswith("nodes 1  workers 2  replayed 7")
    assert "workers" not in round_line(ALONE)
