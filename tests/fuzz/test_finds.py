"""What the fuzzer and newcomers found, one case each."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

import esper
from bench_rows import GROWN
from esper.benchmark import BenchRequest, plan_bench
from esper.benchmark.bench import only_bench
from esper.benchmark.rows import RowsError, write_rows
from esper.cli import main
from esper.grower import Grower
from esper.kasmina.persistence import ModelFileError
from esper.nissa import RunError
from esper.nissa.event_file import BrokenLine, decode
from esper.simic.agent.checkpoint import CheckpointError, optimizer_state
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.env.making import make_env
from esper.tolaria.data import DatasetCorrupt
from esper.tolaria.data.files import load_table
from esper.tolaria.tasks import Instance
from esper.tolaria.tasks.task import ParameterError
from grower.loops import Loop, net


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"menu": "\ud800"}, r"menu is '\\ud800'; expected names of blueprints"),
        ({"num_envs": 10**12}, "num_envs is 1000000000000; expected a whole number >= 1 and <= 100,000"),
        ({"rounds": 10**400}, "rounds is 10+; expected a whole number >= 1"),
        ({7: 1}, "there is no setting 7"),
        (["toy"], r"settings are \['toy'\]; expected them by name"),
    ],
)
def test_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig.of(settings)


def test_a_setting_without_a_name() -> None:
    with pytest.raises(
        ConfigError, match="'toy' has no name; expected settings by name, such as suite='toy'"
    ):
        TrainingConfig("toy")  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"arms": "wait"}, r"arms is 'wait'; expected names, such as \('wait',\), or None"),
        ({"suite": ["toy"]}, r"suite is \['toy'\]; expected a text"),
        ({"seeds": "2"}, "seeds is '2'; expected a whole number from 1 to 1000"),
        ({"seeds": 1001}, "seeds is 1001; expected a whole number from 1 to 1000"),
        ({"controllers": {"a": "b"}}, "controllers is {'a': 'b'}; expected name -> a list"),
        ({"controllers": {"a": ["none"]}}, "none: there is no such controller"),
        ({"device": 0}, "device is 0; expected a text"),
    ],
)
def test_requests(asked: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_bench(BenchRequest(**{"suite": "toy", **asked}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suite": 3}, "suite is 3; expected the name of a suite"),
        (
            {"suite": "toy", "num_envs": 10**9},
            "num_envs is 1000000000; expected a whole number from 1 to 100,000",
        ),
        ({"suite": "toy", "horizon": "12"}, "horizon is '12'; expected a whole number from 1"),
        ({"suite": "toy", "workers": -1}, "workers is -1; expected a whole number from 0"),
    ],
)
def test_environments(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["noise", "permutation"])
def test_a_number_too_large_for_a_parameter(name: str) -> None:
    with pytest.raises(ParameterError, match=rf"mnist1d.{name} must be a (whole )?number"):
        Instance.of("mnist1d", {name: 10**400})


def test_a_damaged_header_of_an_array(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros((8, 2)))
    (tmp_path / "a.npy").write_bytes(stream.getvalue().replace(b"}", b"("))
    with pytest.raises(DatasetCorrupt, match="NumPy arrays without objects"):
        load_table(tmp_path / "a.npy", target="0", header=True)


@pytest.mark.parametrize(
    "words", ["bench table FILE", "bench --suite toy --out FILE", "runs --directory FILE"]
)
def test_a_file_where_a_folder_is_meant(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(words.replace("FILE", str(file)).split()) == 2
    assert str(file) in capsys.readouterr().err


def test_rows_without_waiting(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.parquet", [GROWN])
    record = '"instances": ["mnist1d"], "seeds": 1, "arms": {}, "reference": "a", "treatments": [], "provenance": []'
    (tmp_path / "bench.json").write_text('{"suite": "cpu", ' + record + "}")
    with pytest.raises(RowsError, match="there are no rows of wait"):
        esper.benchmark.read_bench(tmp_path)


def test_a_second_bench_in_one_folder(tmp_path: Path) -> None:
    with only_bench(tmp_path), pytest.raises(RunError, match=r"another process \(\d+\) is writing it"):
        esper.bench(tmp_path, BenchRequest(suite="toy", arms=("wait",), seeds=1, instances=1))


def test_a_time_too_large_for_a_float() -> None:
    with pytest.raises(BrokenLine, match="time is inf; expected a number"):
        decode(b'{"kind": "run_started", "time": 1e999, "name": "a", "esper": "1"}')


def test_an_optimiser_in_a_checkpoint_that_is_none(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam([torch.zeros(2)])
    wrong: list[object] = [{"state": [], "param_groups": []}, {"state": {}, "param_groups": 3}, 5]
    for saved in wrong:
        with pytest.raises(CheckpointError, match="optimizer"):
            optimizer_state(tmp_path, optimizer, saved)


def _grower(loop: Loop, **options: object) -> Grower:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Grower(
        model,
        ["0"],
        optimizer=optimizer,
        example_input=loop.inputs,
        validate=loop.validate,
        **options,  # type: ignore[arg-type]
    )


def test_a_state_that_is_no_state() -> None:
    loop = Loop()
    with pytest.raises(ValueError, match=r"the state is a int; expected what state_dict\(\) returned"):
        _grower(loop).load_state_dict(3)  # type: ignore[arg-type]
    state = _grower(loop).state_dict()
    with pytest.raises(ModelFileError, match="the saved state is damaged: 'tracker'"):
        _grower(loop).load_state_dict({**state, "observer": {}})


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match=r"Grower\(\) got an unexpected keyword argument 'foo'"):
        _grower(Loop(), foo=1)


def test_a_step_after_the_end() -> None:
    loop = Loop()
    grower = _grower(loop)
    assert grower.model.care is not None
    optimizer = grower.model.care.optimizer
    loop.train(grower.model, optimizer)
    grower.step()
    grower.finish()
    loop.train(grower.model, optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) after finish\(\)"):
        grower.step()


def test_a_plan_of_ten_thousand_letters_is_not_repeated() -> None:
    for plan in ("a" * 10_000, f"shuffle@{'9' * 10_000}", "/".join(["labels@3"] * 5_000)):
        with pytest.raises(ValueError, match="plan") as refused:
            Instance.parse(f"stream:plan={plan}")
        assert len(str(refused.value)) < 1_000


def test_a_saved_scale_without_a_span_is_refused() -> None:
    loop = Loop()
    state = _grower(loop).state_dict()
    scale = state["scale"]
    assert isinstance(scale, dict)
    with pytest.raises(ModelFileError, match=r"unit is 0\.0"):
        _grower(loop).load_state_dict({**state, "scale": {**scale, "unit": 0.0}})
