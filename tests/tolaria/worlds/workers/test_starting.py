"""Workers are copies of one process that has imported torch, with the environment variables of their own start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.tolaria.worlds.processes import ProcessWorld
from esper.tolaria.worlds.toy.host import ToyWorld
from esper.tolaria.worlds.worker import PRELOADED
from worker_worlds import where_it_runs


def test_workers_share_the_process_that_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for value in ("one", "two"):
        monkeypatch.setenv("ESPER_CACHE", value)
        with ProcessWorld(ToyWorld, num_hosts=2, workers=2) as world:
            seen += list(world.call_all(where_it_runs, [["ESPER_CACHE"], ["ESPER_CACHE"]]))
    assert [variable for _, variable in seen] == ["one", "one", "two", "two"]
    parents = {parent for parent, _ in seen}
    if sys.platform == "linux":
        assert len(parents) == 1
        assert os.getpid() not in parents


@pytest.mark.parametrize("module", PRELOADED)
def test_what_is_imported_beforehand_exists(module: str) -> None:
    """The start of the process that imports passes over modules that it does not find."""
    __import__(module)


STARTS = """
import signal

signal.signal(signal.SIGINT, lambda *_: None)  # as a run does, which ends in order
from esper.tolaria.worlds.worker import worker_context

if __name__ == "__main__":
    context = worker_context()
    print("starting", flush=True)
    process = context.Process(target=print, args=("a worker",), kwargs={"flush": True})
    process.start()
    process.join()
    print(process.exitcode, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every worker imports for itself")
def test_ctrl_c_while_workers_start_ends_none_of_them() -> None:
    """A terminal sends it to every process; the one that workers are copied from is importing torch by then."""
    running = subprocess.Popen(
        [sys.executable, "-c", STARTS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "starting\n"
    for _ in range(3):
        time.sleep(0.2)
        os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert said.splitlines() == ["a worker", "0"]


@pytest.mark.parametrize(
    "begins",
    [
        "esper.make_env('toy', 4, workers=2).reset(seed=0)",
        pytest.param(
            "esper.train(esper.TrainingConfig.preset('toy', workers=2, rounds=1, run_name='mine'))",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_script_without_a_guard_is_told_so(tmp_path: Path, begins: str) -> None:
    (tmp_path / "script.py").write_text(f"import esper\n{begins}\n")
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.count("Traceback") == 1
    named = "esper.tolaria.worlds.processes.UnguardedScript: "
    (told,) = [line for line in ran.stderr.splitlines() if line.startswith(named)]
    assert told.startswith(f"{named}workers import the script that starts")
    assert told.endswith('put what it does below `if __name__ == "__main__":`, or take workers=0')
    assert not (tmp_path / "runs" / "mine").exists()


BENCHES = (
    "esper.bench('mine', esper.BenchRequest(suite='toy', arms=('wait',), seeds=1, instances=1), workers=2)"
)


@pytest.mark.parametrize(
    "script",
    [
        "import esper\nesper.make_env('toy', 4, workers=2) if __name__ != '__main__' else None\n"
        "if __name__ == '__main__':\n    import multiprocessing as mp\n"
        "    child = mp.get_context('spawn').Process(target=print)\n    child.start()\n    child.join()\n",
        pytest.param(f"import esper\nprint({BENCHES})\n", marks=pytest.mark.slow),
    ],
    ids=["its own process", "bench"],
)
def test_a_process_that_ends_because_of_it_says_why(tmp_path: Path, script: str) -> None:
    (tmp_path / "script.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    told = "A process of the script ends: workers import the script that starts them"
    assert any(line.startswith(told) for line in ran.stderr.splitlines())
