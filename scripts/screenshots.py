"""The pictures of `esper watch` in docs/, from a run that is trained here: python scripts/screenshots.py

It needs Chromium and about two minutes. A run that is there already is taken instead: --directory runs --run my-run
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import esper

DOCS = Path(__file__).parent.parent / "docs" / "pictures"
SIZES = ((1280, 720), (1440, 900))
PORT = 8391
_PATIENCE = 30_000


def train(directory: Path, name: str) -> None:
    """A world without training, long enough to see it learn; with what the policy saw."""
    config = esper.TrainingConfig.preset(
        "toy",
        rounds=60,
        num_envs=32,
        eval_every=10,
        eval_episodes=48,
        run_telemetry="debug",
        run_tensorboard=False,
        run_directory=directory,
        run_name=name,
    )
    esper.train(config)


def take(page: Page, address: str, run: str, theme: str) -> None:
    """The top of the page and the episode, in both sizes."""
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{address}?run={run}&theme={theme}")
        page.wait_for_function("document.querySelector('[data-testid=memory]')?.data?.length > 0")
        page.get_by_text("dependence, not gain").wait_for()
        page.get_by_role("button", name="best gain").click()
        page.wait_for_timeout(800)
        page.evaluate("window.scrollTo(0, 0)")
        page.mouse.move(2, 2)
        page.wait_for_timeout(700)
        page.screenshot(path=DOCS / f"watch-{theme}-{width}x{height}.png")
        scrubber = page.get_by_role("slider", name="epoch")
        scrubber.focus()
        for _ in range(8):
            scrubber.press("ArrowLeft")
        page.wait_for_timeout(700)
        page.evaluate("document.activeElement.blur()")
        page.evaluate("document.querySelector('#doing').scrollIntoView()")
        page.wait_for_timeout(500)
        page.screenshot(path=DOCS / f"episode-{theme}-{width}x{height}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="where the run is; by default one is trained")
    parser.add_argument("--run", default="toy-first")
    chosen = parser.parse_args()
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    DOCS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        directory = chosen.directory
        if directory is None:
            directory = Path(place) / "runs"
            train(directory, chosen.run)
        command = [sys.executable, "-m", "esper", "watch", "--directory", str(directory), "--port", str(PORT)]
        server = subprocess.Popen(command)
        try:
            time.sleep(5.0)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
                page = browser.new_page()
                page.set_default_timeout(_PATIENCE)
                for theme in ("light", "dark"):
                    take(page, f"http://127.0.0.1:{PORT}/", chosen.run, theme)
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
