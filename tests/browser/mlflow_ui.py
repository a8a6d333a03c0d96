"""The MLflow UI over a real training, looked at in a browser: `make browse`.

    make browse              trains a small policy first
    make browse RUNS=runs    looks at the newest finished run there

Wants Debian's packages chromium and chromium-driver. Screenshots are left in dist/screenshots/.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from small import SMALL

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SHOTS = ROOT / "dist" / "screenshots"
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # chromium refuses to run as root otherwise, as it does in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1500,1300",
)


@dataclass(frozen=True)
class Page:
    """A browser on the MLflow UI of one run."""

    browser: webdriver.Chrome
    server: str
    run: dict[str, str]  # run_id, experiment_id, name
    summary: dict
    folder: Path

    def open(self, route: str, *texts: str, seconds: float = 60) -> str:
        """Go to a route and wait until all of `texts` are on the page; the page's text."""
        self.browser.get(f"{self.server}/#{route}")
        self.browser.refresh()  # a change behind the # alone loads nothing
        return self.wait(*texts, seconds=seconds)

    def wait(self, *texts: str, seconds: float = 60) -> str:
        """The page's text, once all of `texts` are in it."""

        def shown(_browser: object) -> str | bool:
            text = self.browser.execute_script("return document.body.innerText")
            return text if all(wanted in text for wanted in texts) else False

        told = f"{texts} on {self.browser.current_url}"
        return WebDriverWait(self.browser, seconds, poll_frequency=0.5).until(shown, told)

    def save(self, name: str) -> None:
        """A screenshot, once what is drawn has come to rest."""
        time.sleep(3)
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.browser.save_screenshot(str(SHOTS / f"{name}.png"))

    def close_assistant(self) -> None:
        """Shut the panel that covers a third of each page."""
        for label in ("Close", "Close Assistant"):
            try:
                self.browser.find_element(By.CSS_SELECTOR, f'[aria-label="{label}"]').click()
            except NoSuchElementException:
                continue


def run_route(page: Page, tab: str = "") -> str:
    return f"/experiments/{page.run['experiment_id']}/runs/{page.run['run_id']}{tab}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs to look at: RUNS, or that of a small training made for this."""
    given = os.environ.get("RUNS", "")
    if given:
        return Path(given).absolute()
    home = tmp_path_factory.mktemp("home")
    line = [str(BIN / "pyflyte"), "run", str(ROOT / "workflows/grpo.py"), "grpo", "--run_name", "monday"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLYTE", "MLFLOW", "VLLM"))}
    done = subprocess.run(
        [*line, "--iterations", "3", "--config", json.dumps(SMALL)], cwd=home, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return home / "runs"


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[str]:
    """The address of MLflow's server over these runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [str(BIN / "mlflow"), "server", "--backend-store-uri", f"sqlite:///{runs / 'mlflow.db'}"]
    process = subprocess.Popen(
        [*line, "--port", str(port), "--workers", "1"],
        cwd=runs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "MLflow's server did not start"
                time.sleep(0.5)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # its workers too
        process.wait()


@pytest.fixture(scope="module")
def page(runs: Path, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    from mlflow import MlflowClient

    summaries = sorted(runs.glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
    assert summaries, f"no finished run in {runs}"
    summary = json.loads(summaries[-1].read_text())
    info = MlflowClient(tracking_uri=server).get_run(summary["mlflow_run_id"]).info
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    driver = shutil.which("chromedriver")
    assert options.binary_location and driver, "install Debian's packages chromium and chromium-driver"
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    run = {"run_id": info.run_id, "experiment_id": info.experiment_id, "name": info.run_name}
    found = Page(browser, server, run, summary, summaries[-1].parent)
    try:
        found.open(run_route(found), info.run_name)
        found.close_assistant()
        yield found
    finally:
        browser.quit()


def test_the_run_page_says_what_was_trained_and_with_what(page: Page) -> None:
    page.open(run_route(page), page.run["name"], "Finished", "version.torchtitan", "git.commit", "grpo.environment")
    page.save("run")


def test_the_charts_tell_the_story(page: Page) -> None:
    page.open(run_route(page, "/model-metrics"), "Step")
    search = page.browser.find_element(By.CSS_SELECTOR, 'input[placeholder="Search metric charts"]')
    search.send_keys("(expected_reward|regret|invalid_share|kl$|entropy$|mismatch|staleness_mean|_s$)")
    time.sleep(8)
    page.save("charts")
    print(page.wait("Step"))
    page.save("charts")


def test_an_artifact_is_shown(page: Page) -> None:
    page.open(run_route(page, "/artifacts/choices.png"), "choices.png")
    image = WebDriverWait(page.browser, 60).until(
        lambda browser: browser.find_element(By.CSS_SELECTOR, "img[src^=blob], img[src*=artifact]")
    )
    assert image.size["width"] > 100
    page.save("artifact")
