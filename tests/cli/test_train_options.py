"""Every setting is a flag; flags win over a file, a file over a preset."""

from dataclasses import fields
from pathlib import Path

import pytest

from esper.cli import main
from esper.cli.common import BadInput
from esper.cli.train import _told, parse
from esper.leyline import Style
from esper.simic.config.checks import ConfigError
from esper.simic.config.training_config import TrainingConfig
from esper.simic.trainer import TrainingResult


def settings_of(*arguments: str) -> TrainingConfig:
    return parse(arguments)[0]


def test_nothing_is_the_defaults() -> None:
    assert settings_of() == TrainingConfig()


def test_flags_file_and_preset_win_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("lr = 0.5\ngae_lambda = 0.5\n")
    settings = settings_of("--preset", "demo", "--config", str(path), "--lr", "0.25")
    assert settings == TrainingConfig.preset("demo", gae_lambda=0.5, lr=0.25)
    assert settings_of("--preset=demo") == TrainingConfig.preset("demo")


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capsys.readouterr().out
    for each in fields(TrainingConfig):
        assert f"--{each.name.replace('_', '-')}" in told, each.name
    assert told.count("None") > 1  # defaults
    assert "Adam's learning rate. (0.0003)" in told


def test_underscores_are_as_good_as_dashes() -> None:
    assert settings_of("--run_name=my_run", "--gae_lambda", "0.5") == TrainingConfig(
        run_name="my_run", gae_lambda=0.5
    )


def test_flags_of_each_kind() -> None:
    given = (
        "--gamma .99 --anomaly-max-ratio-threshold 4 --clip-value --no-run-tensorboard --freeze-style gate"
    )
    more = (
        "--freeze-tempo None --target-kl None --entropy-coef-per-head op .1 slot 0 --run-directory over/there"
    )
    settings = settings_of("--preset", "demo", *given.split(), *more.split())
    assert settings == TrainingConfig.preset(
        "demo",
        gamma=0.99,
        anomaly_max_ratio_threshold=4.0,
        clip_value=True,
        run_tensorboard=False,
        freeze_style=Style.GATE,
        freeze_tempo=None,
        target_kl=None,
        entropy_coef_per_head={"op": 0.1, "slot": 0.0},
        run_directory=Path("over/there"),
    )


def test_a_table_is_given_whole_also_over_a_presets() -> None:
    preset = TrainingConfig.preset("demo")
    assert preset.initial_op_logits.keys() > {"PRUNE"}
    settings = settings_of("--preset", "demo", "--initial-op-logits", "PRUNE", "-2")
    assert settings == TrainingConfig.preset("demo", initial_op_logits={"PRUNE": -2.0})
    assert settings_of("--preset", "demo", "--initial-op-logits").initial_op_logits == {}


def test_how_much_is_said_is_no_setting() -> None:
    settings, options = parse(["--quiet", "--json"])
    assert options.quiet
    assert options.json
    assert settings == TrainingConfig()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gama 1", "there is no option --gama; did you mean --gamma\\?"),
        ("--no-lr", "there is no option --no-lr; "),
        ("--xyzzy=1", "there is no option --xyzzy; see `esper train --help`"),
        ("--gamma 2", r"gamma is 2.0; expected a number in \(0, 1\]"),
        ("--lr x", "lr is 'x'; expected a number > 0"),
        ("--run-telemetry z", "run_telemetry is 'z'; expected one of 'off', 'rounds', 'full', 'debug'"),
        ("--entropy-coef-per-head opp 1", "entropy_coef_per_head is {'opp': 1.0}; expected head -> "),
        ("--entropy-coef-per-head op", "--entropy-coef-per-head: 'op' is one too many; expected names and"),
        (
            "--preset demo --initial-op-logits PRUN 1",
            "initial_op_logits is {'PRUN': 1.0}; expected operation",
        ),
        ("--menu mixer,", "menu is 'mixer,'; expected names of blueprints with commas between them"),
        ("--preset dmo", "no preset is named 'dmo'; .*did you mean 'demo'"),
        ("--preset", "argument --preset: expected one argument"),
        ("--config no.json", "no.json: cannot be read: No such file"),
        ("--preset demo --workers 9", "workers is 9; expected <= num_envs, which is 8"),
        ("extra", "argument 'extra' is one too many; see `esper train --help`"),
        ("--seed 1.0", "seed is '1.0'; expected a whole number >= 0"),
        ("--freeze-style gat", "freeze_style is 'gat'; expected one of .*gate"),
        ("--entropy-coef-per-head op x", r"entropy_coef_per_head\['op'\] is 'x'; expected head -> "),
    ],
)
def test_mistakes(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((BadInput, ConfigError), match=message) as caught:
        parse(arguments.split())
    assert "│" not in str(caught.value)
    assert capsys.readouterr().err == ""


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"gama": 1}')
    with pytest.raises(ConfigError, match=r"mine\.json: there is no setting 'gama'; did you mean 'gamma'"):
        parse(["--config", str(path)])


def test_a_mistake_names_the_option_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "demo", "--lr", "x", "--num_envs", "0"]) == 2
    told = capsys.readouterr().err
    assert "--lr is 'x'; expected a number > 0" in told
    assert "--num_envs is 0; expected" in told


@pytest.mark.parametrize(("baseline", "told"), [(True, "+25.00 points"), (False, "utility 0.2500")])
def test_what_the_best_checkpoint_was_chosen_by_has_its_own_unit(baseline: bool, told: str) -> None:
    result = TrainingResult(None, 1, 20, 1.0, None, 0.25, None)
    assert _told(result, TrainingConfig(reward_control_variate=baseline))["best_score"] == told
