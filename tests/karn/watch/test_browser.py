"""The page in a real browser: live runs, scrubbing, switching, deletion, a new server, hostile content."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from esper.leyline import AnomalyRaised, DecisionTaken, EpisodeFinished, RoundFinished
from run_examples import example
from synthetic_run import line_of, write_synthetic_run

CHROMIUM = shutil.which("chromium")
HOSTILE = "<img src=x onerror=alert(1)>"
PATIENCE = 40_000
"""Milliseconds that a machine with other things to do may take."""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`esper` with these arguments, until the block ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_CURRENT_TEST", None)  # the server would take itself for a test
    process = subprocess.Popen(
        [sys.executable, "-m", "esper", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def server(root: Path, port: int) -> Iterator[str]:
    address = f"http://127.0.0.1:{port}/"
    with running("watch", "--directory", str(root), "--port", str(port)):
        deadline = time.monotonic() + PATIENCE / 1000
        while True:
            try:
                with urllib.request.urlopen(address, timeout=5):
                    break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.1)
        yield address


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    write_synthetic_run(root / "alpha", rounds=25, envs=3, epochs=12)
    write_synthetic_run(root / "beta", rounds=9, envs=2, epochs=12, seed=1)
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with server(root, free_port()) as address:
        yield address


@pytest.fixture(scope="module")
def context(browser: Browser) -> BrowserContext:
    """What all pages share: scripts that were loaded once."""
    return browser.new_context(viewport={"width": 1280, "height": 720})


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    yield opened
    opened.close()


def choose(page: Page, menu: str, option: str) -> None:
    page.get_by_role("combobox", name=menu, exact=True).click()
    page.get_by_role("option", name=option, exact=True).click()


def points(page: Page, plot: str) -> int:
    """Of the longest curve of a figure; none while the page is being loaded."""
    try:
        count = page.evaluate(
            "name => Math.max(0, ...(document.querySelector(`[data-testid=${name}]`)?.data ?? [])"
            ".map(trace => trace.x?.length ?? 0))",
            plot,
        )
    except PlaywrightError:  # a machine too busy to answer: the page loads itself anew
        return 0
    assert isinstance(count, int)
    return count


def wait_for_points(page: Page, plot: str, at_least: int) -> int:
    deadline = time.monotonic() + PATIENCE / 1000
    while (count := points(page, plot)) < at_least:
        assert time.monotonic() < deadline, f"{plot} has {count} points; expected {at_least}"
        page.wait_for_timeout(100)
    return count


def test_everything_is_there_and_comes_from_here(page: Page, address: str) -> None:
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{address}?run=alpha")
    wait_for_points(page, "gain", 25)
    for question in ("Is it learning?", "Is it healthy?", "What is it doing?", "Why?", "What did it cost?"):
        expect(page.get_by_role("heading", name=question)).to_be_visible()
    expect(page.get_by_text("25 of 25")).to_be_visible()
    expect(page.get_by_test_id("warnings")).to_contain_text("Lower the learning rate")
    expect(page.get_by_role("cell", name="conv_small").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # nothing hangs over
    own = (address, address.replace("http", "ws", 1), "data:", "blob:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert wrong == []


def test_an_episode_is_scrubbed_with_the_keyboard(page: Page, address: str) -> None:
    page.goto(f"{address}?run=alpha&env=1&episode=3")
    told, network = page.get_by_test_id("epoch-told"), page.get_by_test_id("network")
    expect(told).to_have_text("epoch 12 of 12")
    slider = page.get_by_role("slider", name="epoch")
    slider.focus()
    for _ in range(7):
        slider.press("ArrowLeft")
    expect(told).to_have_text("epoch 5 of 12")
    expect(network).to_contain_text("prune")
    expect(page.get_by_test_id("decision")).to_contain_text("prune")
    page.get_by_role("button", name="one epoch back").press("Enter")
    expect(told).to_have_text("epoch 4 of 12")
    expect(page.get_by_test_id("decision")).to_contain_text("wait")
    expect(page).to_have_url(f"{address}?run=alpha&env=1&episode=3&epoch=4")
    page.reload()
    expect(told).to_have_text("epoch 4 of 12")


def test_runs_are_switched_and_put_side_by_side(page: Page, address: str) -> None:
    page.goto(f"{address}?run=alpha")
    wait_for_points(page, "gain", 25)
    choose(page, "run", "beta")
    expect(page.get_by_text("9 of 9")).to_be_visible()
    choose(page, "beside it", "alpha")
    page.keyboard.press("Escape")
    wait_for_points(page, "gain", 25)
    names = page.evaluate("document.querySelector('[data-testid=gain]').data.map(trace => trace.name)")
    assert {"alpha", "beta"} <= set(names)


def test_light_and_dark(page: Page, address: str) -> None:
    paper = "document.querySelector('[data-testid=gain]').layout.paper_bgcolor"
    page.emulate_media(color_scheme="dark")
    page.goto(f"{address}?run=alpha")
    wait_for_points(page, "gain", 25)
    page.wait_for_function(f"{paper} === '#1D2126'")
    page.get_by_role("button", name="Dark / light").press("Enter")
    page.wait_for_function(f"{paper} === '#FFFFFF'")
    page.wait_for_url("**theme=light**")


def test_the_keyboard_reaches_everything(page: Page, address: str) -> None:
    page.goto(f"{address}?run=alpha")
    wait_for_points(page, "gain", 25)
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText || ''")
        )
    order = ["Skip to the figures", "run", "beside it", "Learning", "Seeds", "DARK / LIGHT"]
    found = [
        next((at for at, each in enumerate(reached) if each.lower() == name.lower()), -1) for name in order
    ]
    assert -1 not in found, reached
    assert found == sorted(found)
    for name in ("env", "episode", "latest", "epoch"):
        assert name in reached


def test_hostile_names_and_contents_stay_text(page: Page, root: Path, address: str) -> None:
    alarms: list[str] = []

    def alarm(dialog: Dialog) -> None:
        alarms.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", alarm)
    run = root / HOSTILE
    write_synthetic_run(run, rounds=2, envs=1, finished=False)
    decision = replace(
        example(DecisionTaken),
        round=3,
        env=0,
        episode=2,
        slot=HOSTILE,
        stages={HOSTILE: HOSTILE},
        alphas={HOSTILE: 1e308},
        contributions={HOSTILE: -1e308},
        probabilities={"op": {HOSTILE: 0.5, "PRUNE": 0.5}, HOSTILE: {"a": 1.0, "b": 0.0}},
        observation={HOSTILE: None},
    )
    huge = replace(example(RoundFinished), round=3, approx_kl=1e308, grad_norm=float("nan"), mean_gain=None)
    with (run / "events.jsonl").open("ab") as file:
        file.write(line_of(replace(example(EpisodeFinished), round=3, env=0, episode=2, case=HOSTILE), 1.0))
        file.write(line_of(decision, 1.0))
        file.write(line_of(huge, 2.0))
        file.write(line_of(replace(example(AnomalyRaised), round=3, name=HOSTILE, advice=HOSTILE * 99), 3.0))
        file.write(b'not json\n{"kind":"round_fini')
    page.goto(f"{address}?run={quote(HOSTILE)}")
    expect(page.get_by_test_id("warnings")).to_contain_text(HOSTILE)
    expect(page.get_by_test_id("observation")).to_contain_text(HOSTILE)
    expect(page.get_by_test_id("network")).to_contain_text("<img src=x onerror=aler")
    page.get_by_role("combobox", name="run", exact=True).click()
    expect(page.get_by_role("option", name=HOSTILE)).to_be_visible()
    page.wait_for_timeout(300)
    assert page.locator("img[src='x']").count() == 0
    assert alarms == []
    page.goto(f"{address}?run=../../etc&beside=%2Fetc&theme={HOSTILE}&env=1e9")
    expect(page.get_by_role("alert")).to_contain_text("There is no run ../../etc")
    shutil.rmtree(run)


def test_what_is_written_is_followed_until_the_run_is_deleted(page: Page, root: Path, address: str) -> None:
    write_synthetic_run(root / "growing", rounds=2, envs=1, finished=False)
    page.goto(f"{address}?run=growing")
    wait_for_points(page, "gain", 2)
    with (root / "growing" / "events.jsonl").open("ab") as file:
        file.write(line_of(replace(example(RoundFinished), round=3), 9.0))
    wait_for_points(page, "gain", 3)
    shutil.rmtree(root / "growing")
    expect(page.get_by_role("alert")).to_contain_text("gone from the disk")
    assert points(page, "gain") == 3  # what was known is still shown


@pytest.mark.slow
def test_a_run_that_trains_is_followed_until_it_is_deleted(page: Page, root: Path, address: str) -> None:
    tiny = ["--num-envs", "4", "--num-minibatches", "2", "--hidden-size", "16", "--no-run-tensorboard"]
    live = [
        "--preset",
        "toy",
        "--rounds",
        "5000",
        "--eval-every",
        "0",
        "--run-name",
        "live",
        "--quiet",
        *tiny,
    ]
    with running("train", *live, "--run-directory", str(root)):
        deadline = time.monotonic() + PATIENCE / 1000
        while not (root / "live" / "events.jsonl").exists():
            assert time.monotonic() < deadline, "training did not start"
            time.sleep(0.1)
        page.goto(f"{address}?run=live")
        expect(page.get_by_test_id("standing")).to_have_text("running")
        seen = wait_for_points(page, "gain", 2)
        wait_for_points(page, "gain", seen + 2)  # the curve moves
        expect(page.get_by_test_id("epoch-told")).to_contain_text("of 20")
        told = page.get_by_test_id("epoch-told")
        deadline = time.monotonic() + PATIENCE / 1000
        while told.inner_text() == "epoch 20 of 20" and time.monotonic() < deadline:
            page.get_by_role("slider", name="epoch").press(
                "ArrowLeft"
            )  # lost where a round ends at that moment
            page.wait_for_timeout(500)
        expect(told).to_have_text("epoch 19 of 20")
        expect(page.get_by_test_id("network")).to_contain_text("blocks.0")
    expect(page.get_by_test_id("standing")).to_have_text("interrupted")
    shutil.rmtree(root / "live")
    expect(page.get_by_role("alert")).to_contain_text("gone from the disk")
    assert points(page, "gain") >= seen  # what was known is still shown
    choose(page, "run", "beta")
    expect(page.get_by_text("9 of 9")).to_be_visible()


@pytest.mark.slow
def test_the_page_comes_back_with_the_server(page: Page, root: Path) -> None:
    port = free_port()
    with server(root, port) as address:
        page.goto(f"{address}?run=alpha&env=1&episode=3&epoch=4")
        expect(page.get_by_test_id("epoch-told")).to_have_text("epoch 4 of 12")
        page.evaluate("window.before = true")
    write_synthetic_run(root / "gamma", rounds=2)
    with server(root, port):
        page.wait_for_function(  # it loads itself anew
            "!window.before && document.querySelector('[data-testid=gain]')?.data?.length > 0"
        )
        page.get_by_role("combobox", name="run", exact=True).click()
        expect(
            page.get_by_role("option", name="gamma", exact=True)
        ).to_be_visible()  # only a new server knows it
        page.keyboard.press("Escape")
        expect(page.get_by_test_id("epoch-told")).to_have_text("epoch 4 of 12")
