"""`esper bench`: from a command to rows, a table and a page; mistakes before any work."""

import json
import sys
from pathlib import Path

import pytest

import esper.cli.bench
from bench_rows import rows_of
from esper.benchmark import BenchProgress, BenchRequest, RowStore, read_bench
from esper.benchmark.suites import PlanError
from esper.cli import main
from esper.cli.common import BadInput

TOY = ["bench", "--suite", "toy", "--instances", "2", "--seeds", "2", "--workers", "0"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_bench_is_played_tabled_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TOY, "--arms", "probe_and_keep", "from_birth", "blind"]) == 0
    told = capsys.readouterr().out
    counting, begins = told.split("\n", 1)
    assert counting == "counting what is to be played..."
    assert begins.startswith("     0 of 16 episodes are there\n     2 of 16 episodes")
    assert 0 < told.index("probe_and_keep over wait: ") < told.index("Not measured: the headroom")
    assert (
        "points on 2 instances of toy with 2 hosts each: too few to say more, which takes 4 hosts of each."
        in told
    )
    assert "better" not in told
    assert told.count("the headroom") == 1
    assert len(RowStore(Path("bench")).read()) == 16
    provenance = json.loads(Path("bench/bench.json").read_text())["provenance"]
    assert len(provenance) == 1
    assert provenance[0]["device"] == "cpu"
    # From the rows alone:
    assert main(["bench", "table", "bench"]) == 0
    assert capsys.readouterr().out.strip() in told
    assert main(["bench", "table", "bench", "--json"]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert [arm["arm"] for arm in made["arms"]] == ["wait", "probe_and_keep", "from_birth", "blind"]
    assert main(["bench", "report", "bench"]) == 0
    assert capsys.readouterr().out == "bench/report.html\n"
    assert Path("bench/report.html").stat().st_size > 1_000_000
    # More seeds go on from there:
    assert main([*TOY, "--arms", "probe_and_keep", "--seeds", "3", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert len(RowStore(Path("bench")).read()) == 16 + 4
    # Now the other arms lack a seed, so that no instance is complete:
    assert main([*TOY, "--arms", "probe_and_keep", "--seeds", "3"]) == 0
    assert "there is no table yet" in capsys.readouterr().out
    assert main(["bench", "table", "bench"]) == 2
    assert "no instance was played by every arm with every seed" in capsys.readouterr().err


def test_the_same_from_python() -> None:
    request = BenchRequest(suite="toy", arms=("plateau",), seeds=2, instances=2)
    stopped = esper.bench("mine", request, minutes=0.0)
    assert (stopped.directory, stopped.interrupted) == (Path("mine"), "the clock")
    assert (stopped.rows, stopped.tables) == ((), ())
    result = esper.bench("mine", request)
    assert result.interrupted is None
    assert [arm.arm for arm in result.tables[0].arms] == ["wait", "plateau"]
    assert result == read_bench(Path("mine"))


def test_a_suite_is_not_taken_for_a_folder() -> None:
    for suite in ("toy", "cpu"):
        with pytest.raises(PlanError, match=rf"directory is '{suite}', .*BenchRequest\(suite='{suite}'\)"):
            esper.bench(suite)
        assert not Path(suite).exists()


def test_a_planted_copy_and_a_planted_point(capsys: pytest.CaptureFixture[str]) -> None:
    """The command over rows that were made up: what it says of them is what was planted."""
    assert main([*TOY, "--arms", "probe_and_keep", "--out", "planted", "--quiet"]) == 0
    record = json.loads(Path("planted/bench.json").read_text())
    from dataclasses import replace

    rows = rows_of({"wait": lambda *_: 0.5, "static": lambda rng, *_: 0.52 + 0.01 * rng.standard_normal()})
    noisy = rows_of({"better": lambda rng, *_: 0.53 + 0.01 * rng.standard_normal()})
    rows += noisy + [replace(row, arm="copy") for row in rows if row.arm == "static"]
    Path("planted/rows.parquet").unlink()
    RowStore(Path("planted")).append(rows)
    instances = list(dict.fromkeys(row.instance for row in rows))
    arms = dict.fromkeys(("wait", "static", "copy", "better"), "planted")
    changed = {
        **record,
        "suite": "cpu",
        "instances": instances,
        "arms": arms,
        "treatments": ["copy", "better"],
    }
    Path("planted/bench.json").write_text(json.dumps(changed))
    assert main(["bench", "table", "planted"]) == 0
    told = capsys.readouterr().out
    assert "copy is better than wait" in told
    assert "no different from static, +0.00 [+0.00, +0.00] points" in told
    assert "better than static" in told


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_answers_at_once_saves_and_says_how_to_go_on(
    times: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import signal

    show = esper.cli.bench.show_progress

    def interrupt(progress: BenchProgress) -> None:
        show(progress)
        if progress.done == 4 and not progress.stopping:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("esper.cli.bench.show_progress", interrupt)
    assert main([*TOY, "--arms", "plateau"]) == 130
    told = capsys.readouterr()
    assert told.err == ("esper: stopping after the hosts that are being played; Ctrl-C again stops now\n")
    last = "esper: stopped by Ctrl-C; 4 episodes are kept in bench, and the same command goes on from there"
    assert told.out.splitlines()[-1] == last
    assert len(RowStore(Path("bench")).read()) == 4


def test_much_is_told_before_it_is_planned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BadInput("planned")

    monkeypatch.setattr("esper.benchmark.bench.bench", refuse)
    assert main(["bench"]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == (
        "5,600 episodes (28 arms on 25 instances with 8 hosts each), which may take hours; `--instances 2 --seeds 4` "
        "plays 224 of them, which takes minutes"
    )
    assert main(["bench", "--help"]) == 0
    assert "esper bench --instances 2 --seeds 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "nothing"], "esper: --suite is 'nothing'"),
        (["--arms", "nobody"], "no arm is named 'nobody'"),
        (["--arms", "static"], "static needs hosts that are trained"),
        (["--arms", "sbs"], "sbs needs the outcomes of schedules on toy, and none are shipped"),
        (["--seeds", "0"], "esper: --seeds is 0"),
        (["--seeds", "9999"], "esper: --seeds is 9999; expected a whole number from 1 to 1000"),
        (["--cluster", "nowhere"], "esper: --cluster is 'nowhere'"),
        (["--instances", "0"], "esper: --instances is 0"),
        (["--instances", "1", "--arms", "blind"], "blind copies decisions from another instance"),
        (["--workers", "-1"], "--workers is -1"),
        (["--minutes", "-3"], "--minutes is -3; expected a number > 0"),
        (["--minutes", "x"], "esper: --minutes is x; expected a number > 0"),
        (["--arms", "learned"], "arm 'learned' is a trained controller; say which with --controller"),
        (
            ["--controller", "missing"],
            "esper: --controller missing: there is no such controller, run or checkpoint; `esper controllers` lists",
        ),
        (["--controller", "a b=missing"], "--controller names 'a b'"),
        (["--controller", "wait=missing"], "a controller is named 'wait', which is another arm's name"),
        (["--match", "nobody"], "esper: --match is 'nobody'"),
        (["--outcomes", "missing.parquet", "--arms", "sbs"], "missing.parquet: no outcomes of schedules"),
        (["--device", "tpu"], "esper: --device is 'tpu'; expected cpu"),
        (["--frobnicate"], "there is no option --frobnicate"),
    ],
)
def test_mistakes_are_told_before_any_work(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TOY, *arguments]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("esper: ")
    assert message in told.err
    assert told.err.count("\n") == 1
    assert not Path("bench").exists()


def test_a_run_is_named_by_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/config.json").write_text("{}")
    assert main([*TOY, "--controller", "mine"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean runs/mine?\n")


def test_folders_without_rows_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("table", "report"):
        assert main(["bench", verb, "nowhere"]) == 2
        assert "nowhere holds no benchmark" in capsys.readouterr().err
    main([*TOY, "--arms", "plateau", "--quiet"])
    assert main([*TOY, "--suite", "toy_shift", "--arms", "plateau"]) == 2
    assert (
        "holds a benchmark of toy, not of toy_shift: choose another folder with --out"
        in capsys.readouterr().err
    )


def test_outcomes_are_made_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import make_outcomes

    monkeypatch.setattr(make_outcomes, "RESULTS", tmp_path / "results")
    small = [
        "--suite",
        "toy",
        "--small",
        "--draws",
        "3",
        "--seeds",
        "2",
        "--instances",
        "2",
        "--workers",
        "0",
    ]
    out = tmp_path / "toy.parquet"
    monkeypatch.setattr(sys, "argv", ["make_outcomes.py", *small, "--out", str(out), "--minutes", "0"])
    with pytest.raises(SystemExit, match="stopped by the clock; --resume goes on"):
        make_outcomes.main()
    monkeypatch.setattr(sys, "argv", ["make_outcomes.py", *small, "--out", str(out), "--resume"])
    make_outcomes.main()
    assert "21 outcomes in" in capsys.readouterr().out
    assert main([*TOY, "--outcomes", str(out), "--arms", "sbs", "vbs", "plateau", "--match", "plateau"]) == 0
    told = capsys.readouterr().out
    assert "Headroom: the best of 3 schedules for each instance, chosen on other hosts, scores" in told
    assert "plateau over wait: " in told
