"""Settings survive a file of each kind, and what is not strictly right in one is refused by name."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper.leyline import HEAD_NAMES, Style
from esper.simic import TrainingConfig
from esper.simic.config.checks import ConfigError
from esper.simic.config.presets import PRESETS

EXTENSIONS = ("json", "toml", "yaml", "yml")


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_survive_a_file(tmp_path: Path, preset: str, extension: str) -> None:
    config, path = TrainingConfig.preset(preset), tmp_path / f"config.{extension}"
    config.save(path)
    assert TrainingConfig.load(path) == config


names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z").filter(lambda name: name != "none")


@pytest.mark.parametrize("extension", EXTENSIONS[:3])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lr=st.floats(1e-300, 1e300),
    target_kl=st.none() | st.floats(1e-9, 10),
    lr_anneal_steps=st.none() | st.integers(0, 10**12),
    per_head=st.dictionaries(st.sampled_from(HEAD_NAMES), st.floats(0, 1e6)),
    style=st.none() | st.sampled_from(Style),
    run_name=st.none() | names | st.sampled_from(["1e5", "0", "null", "true", "12", "1.5", "off"]),
    path=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
)
def test_any_setting_survives_a_file(
    tmp_path: Path,
    extension: str,
    lr: float,
    target_kl: float | None,
    lr_anneal_steps: int | None,
    per_head: dict[str, float],
    style: Style | None,
    run_name: str | None,
    path: str,
) -> None:
    config = replace(
        TrainingConfig(),
        lr=lr,
        target_kl=target_kl,
        lr_anneal_steps=lr_anneal_steps,
        entropy_coef_per_head=per_head,
        freeze_style=style,
        run_name=run_name,
        run_directory=Path(path),
    )
    file = tmp_path / f"config.{extension}"
    config.save(file)
    assert TrainingConfig.load(file) == config


@pytest.mark.parametrize(
    ("extension", "text"),
    [
        (
            "json",
            '{"lr": 3e-4, "target_kl": null, "run_telemetry": "off", "entropy_coef_per_head": {"op": 1}}',
        ),
        ("toml", 'lr = 3e-4\ntarget_kl = "none"\nrun_telemetry = "off"\n[entropy_coef_per_head]\nop = 1\n'),
        ("yaml", "lr: 3e-4\ntarget_kl: null\nrun_telemetry: off\nentropy_coef_per_head:\n  op: 1\n"),
    ],
)
def test_files_as_people_write_them(tmp_path: Path, extension: str, text: str) -> None:
    path = tmp_path / f"config.{extension}"
    path.write_text(text)
    expected = TrainingConfig(lr=3e-4, target_kl=None, run_telemetry="off", entropy_coef_per_head={"op": 1.0})
    assert TrainingConfig.load(path) == expected


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    for extension, text in (("json", "{}"), ("toml", ""), ("yaml", "# nothing\n")):
        path = tmp_path / f"config.{extension}"
        path.write_text(text)
        assert TrainingConfig.load(path) == TrainingConfig()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"gama": 1}', "there is no setting 'gama'; did you mean 'gamma'"),
        ("a.json", '{"gamma": 2}', "gamma is 2; expected a number in"),
        ("a.json", '{"gamma": NaN}', "gamma is nan; expected a number in"),
        ("a.json", '{"gamma": "1"}', "gamma is '1'; expected a number in"),
        ("a.json", '{"lr": 1, "lr": 2}', "is not valid json: 'lr' is given twice"),
        ("a.json", "{", "is not valid json: "),
        ("a.json", "[1]", r"holds \[1\]; expected settings by name"),
        ("a.json", "[" * 100_000, "is not valid json: "),
        ("a.toml", "lr = 1\nlr = 2", "is not valid toml: "),
        ("a.toml", "lr = 2020-01-01", "lr is .*expected a number > 0"),
        ("a.toml", 'num_envs = "none"', "num_envs is None; expected a whole number >= 1"),
        ("a.yaml", "lr: 1\nlr: 2", "is not valid yaml: 'lr' is given twice"),
        ("a.yaml", "lr: '1'", "lr is '1'; expected a number > 0"),
        ("a.yaml", "lr: !!python/object/apply:os.system [ls]", "the tag .* is not allowed"),
        ("a.yaml", "lr: !mine 1", "the tag '!mine' is not allowed"),
        ("a.yaml", "a: &a {b: *a}", "nested too deep"),
        ("a.yaml", "a: [", "is not valid yaml: "),
        ("a.yaml", "a: 1\n---\nb: 2", "is not valid yaml: "),
        ("a.ini", "lr=1", "ends in '.ini'; expected one of .json, .toml"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        TrainingConfig.load(path)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.json: cannot be read: No such file"):
        TrainingConfig.load(tmp_path / "missing.json")
    (tmp_path / "latin.json").write_bytes(b'{"run_name": "\xe9"}')
    with pytest.raises(ConfigError, match=r"latin\.json: is not valid json: .*utf-8"):
        TrainingConfig.load(tmp_path / "latin.json")
    with pytest.raises(ConfigError, match="expected one of"):
        TrainingConfig().save(tmp_path / "config.txt")
