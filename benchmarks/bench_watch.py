"""Watching: opening a run of a million events, what one look a second costs, SQL over it, and training beside it.

python benchmarks/bench_watch.py [--quick]
"""

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import esper
from esper.karn.drawing import LIGHT
from esper.karn.sql import query
from esper.karn.watch.runs import COUNT_ALL, Hub, RunsFolder
from esper.karn.watch.sheet import run_contents
from esper.karn.watch.state import Watched
from harness import Row, arguments, interleaved_seconds, ratio, report
from synthetic_run import round_lines, write_synthetic_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

ENVS, EPOCHS = 32, 20
EVENTS_A_ROUND = ENVS * (EPOCHS + 1) + 1
SQL = "select epoch, count(*) filter (op = 'GERMINATE') as births, avg(value) from decisions group by epoch"


def draw(watched: Watched) -> int:
    """Everything the page shows, as it is sent; returns its size in bytes."""
    contents = run_contents([watched], LIGHT)
    watched.state.seed_counts()
    return len(json.dumps(contents))


def opening(root: Path, events: int, repeats: int) -> list[Row]:
    rounds = events // EVENTS_A_ROUND
    written = write_synthetic_run(root / "long", rounds=rounds, envs=ENVS, epochs=EPOCHS)
    megabytes = (root / "long" / "events.jsonl").stat().st_size / 2**20
    seconds, cpu = [], []
    for _ in range(repeats):
        began, began_cpu = time.perf_counter(), time.process_time()
        draw(Hub(RunsFolder(root)).look("long"))
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    hub = Hub(RunsFolder(root), counting_seconds=COUNT_ALL)
    began = time.perf_counter()
    hub.look("long")
    whole = time.perf_counter() - began
    began = time.perf_counter()
    query(root / "long", SQL)
    sql = time.perf_counter() - began
    return [
        {
            "events": written,
            "MiB": megabytes,
            "open and draw, s": statistics.median(seconds),
            "of that CPU, s": statistics.median(cpu),
            "with every seed counted, s": whole,
            "SQL over decisions, s": sql,
        }
    ]


def looking(root: Path, seconds: int) -> list[Row]:
    """A round is added every second; every second somebody looks."""
    hub, rng = Hub(RunsFolder(root), counting_seconds=COUNT_ALL), random.Random(0)
    number = len(hub.look("long").state.rounds)
    used, sizes = [], []
    for beat in range(seconds):
        with (root / "long" / "events.jsonl").open("ab") as file:
            file.write(b"".join(round_lines(number + beat + 1, number + seconds, ENVS, EPOCHS, rng)))
        began = time.process_time()
        sizes.append(draw(hub.look("long")))
        used.append(time.process_time() - began)
        time.sleep(max(0.0, 1.0 - used[-1]))
    return [
        {
            "looks": seconds,
            "CPU of a look, ms": 1e3 * statistics.median(used),
            "share of a core": sum(used) / seconds,
            "sent, KiB": statistics.median(sizes) / 1024,
        }
    ]


def serving(root: Path, seconds: int) -> list[Row]:
    """The same with the real server and a page open in Chromium: the CPU time of the server's process."""
    browser, port = shutil.which("chromium"), 8399
    if browser is None:
        return [{"seconds": seconds, "share of a core": "no Chromium on this machine"}]
    from playwright.sync_api import sync_playwright

    rng = random.Random(1)
    number = len(Hub(RunsFolder(root)).look("long").state.rounds)
    command = [sys.executable, "-m", "esper", "watch", "--directory", str(root), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = opened.new_page(viewport={"width": 1280, "height": 720})
            _go(page, f"http://127.0.0.1:{port}/?run=long&theme=light")
            page.get_by_text("dependence, not gain").wait_for(timeout=120_000)  # every seed is counted
            page.wait_for_timeout(2000)
            before = _cpu_seconds(server.pid)
            for beat in range(seconds):
                with (root / "long" / "events.jsonl").open("ab") as file:
                    file.write(b"".join(round_lines(number + beat + 1, number + seconds, ENVS, EPOCHS, rng)))
                page.wait_for_timeout(1000)
            used = _cpu_seconds(server.pid) - before
            opened.close()
    finally:
        server.kill()
        server.wait()
    return [{"seconds": seconds, "share of a core": used / seconds}]


def _go(page: "Page", address: str) -> None:
    for _ in range(100):
        try:
            page.goto(address)
            return
        except Exception:  # not there yet
            page.wait_for_timeout(200)
    raise RuntimeError(f"nothing answers at {address}")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def watcher(root: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that looks at the run written last, once a second."""
    process = subprocess.Popen([sys.executable, __file__, "--watch", str(root)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def training(root: Path, rounds: int) -> list[Row]:
    """The same short training again and again, with the watcher at work or halted, in turns."""
    names = count()

    def train() -> None:
        config = esper.TrainingConfig.preset(
            "toy",
            rounds=6,
            num_envs=32,
            eval_every=0,
            run_tensorboard=False,
            run_directory=root / "training",
            run_name=f"run-{next(names)}",
        )
        esper.train(config)

    with watcher(root / "training") as process:

        def alone() -> None:
            process.send_signal(signal.SIGSTOP)
            train()

        def watched() -> None:
            process.send_signal(signal.SIGCONT)
            train()

        seconds = interleaved_seconds({"alone": alone, "watched": watched}, rounds=rounds, warmup=1)
    median, low, high = ratio(seconds["watched"], seconds["alone"])
    return [
        {
            "trainings": 2 * rounds,
            "alone, s": statistics.median(seconds["alone"]),
            "watched, s": statistics.median(seconds["watched"]),
            "watched / alone": median,
            "low": low,
            "high": high,
        }
    ]


def watch(root: Path) -> None:
    """What the watcher's process does, until it is killed."""
    hub = Hub(RunsFolder(root))
    while True:
        for name in hub.names()[:1]:
            draw(hub.look(name))
        time.sleep(1.0)


def main() -> None:
    quick = arguments(__doc__ or "").quick
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        report(
            "watch_opening",
            "Opening a run, and drawing everything",
            opening(root, 100_000 if quick else 1_000_000, 1 if quick else 5),
        )
        report(
            "watch_looking", "One look a second at that run while it grows", looking(root, 3 if quick else 20)
        )
        report("watch_serving", "The server with a page open on it", serving(root, 3 if quick else 20))
        report("watch_training", "Training with and without a watcher", training(root, 2 if quick else 8))


if __name__ == "__main__":
    if "--watch" in sys.argv:
        watch(Path(sys.argv[-1]))
    main()
