"""A browser on the MLflow UI of one run: opens a page, waits for what is expected on it, takes a screenshot."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

SHOTS = Path(__file__).parents[2] / "dist" / "screenshots"
PATIENCE = 60  # seconds for a page, on a machine that is busy with other work
WIDTH, HEIGHT = 1500, 1150  # of the window, whose frame takes 140 of the height
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # chromium refuses to run as root otherwise, as it does in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    f"--window-size={WIDTH},{HEIGHT}",
)

# Before each page: the switch at the top left on "Model training", for which a run is a training, with its description
# first; no assistant, and none of the buttons that plotly lays over each chart.
PREPARED = """
localStorage.setItem("mlflow.workflowType_v1", '"machine_learning"');
localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true");
localStorage.setItem("mlflow.assistant.panelOpen_v1", "false");
document.addEventListener("DOMContentLoaded", () => {
  const style = document.createElement("style");
  style.textContent = ".modebar, div[data-assistant-ui] {display: none !important}";
  document.head.append(style);
});
"""


@dataclass(frozen=True)
class Page:
    """The browser, the server, and the run that it shows: by MLflow's client and by its summary.json."""

    browser: webdriver.Chrome
    server: str
    client: MlflowClient
    run: Run
    summary: dict[str, Any]
    folder: Path

    @property
    def route(self) -> str:
        return f"/experiments/{self.run.info.experiment_id}/runs/{self.run.info.run_id}"

    def open(self, route: str, texts: Sequence[str]) -> str:
        """Go to a route and wait until all of `texts` are on the page; the page's text."""
        self.browser.get("about:blank")  # a change behind the # alone loads nothing
        self.browser.get(f"{self.server}/#{route}")
        return self.wait(texts)

    def wait(self, texts: Sequence[str]) -> str:
        """The page's text, once all of `texts` are in it."""
        seen = ""

        def shown() -> str:
            nonlocal seen
            seen = self.browser.execute_script("return document.body.innerText").replace("\N{NO-BREAK SPACE}", " ")
            return seen if all(text in seen for text in texts) else ""

        try:
            return self.until(shown)
        except TimeoutException:
            missing = [text for text in texts if text not in seen]
            raise AssertionError(f"{missing} not on {self.browser.current_url}:\n{seen}") from None

    def until(self, condition: Callable[[], Any]) -> Any:
        """What `condition` returns, once that is true."""
        return WebDriverWait(self.browser, PATIENCE, poll_frequency=0.5).until(lambda _: condition())

    def save(self, name: str) -> None:
        """A screenshot, when two in a row are the same; of a page that never stops moving, the last."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        last, deadline = b"", time.monotonic() + PATIENCE / 3
        while (taken := self.browser.get_screenshot_as_png()) != last and time.monotonic() < deadline:
            last = taken
            time.sleep(1)
        (SHOTS / f"{name}.png").write_bytes(taken)


@contextlib.contextmanager
def opened(server: str, runs: Path, profile: Path) -> Iterator[Page]:
    """A browser on the newest finished run of BlackJack in the folder `runs`, whose store `server` shows."""
    summaries = {path: json.loads(path.read_text()) for path in runs.glob("*/summary.json")}
    finished = [path for path, summary in summaries.items() if summary["environment"] == "blackjack"]
    assert finished, f"no finished run of BlackJack in {runs}"
    newest = max(finished, key=lambda path: path.stat().st_mtime)
    summary = summaries[newest]
    client = MlflowClient(tracking_uri=server)
    run = client.get_run(summary["mlflow_run_id"])
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    driver = shutil.which("chromedriver")
    assert options.binary_location and driver, "install Debian's packages chromium and chromium-driver"
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PREPARED})
        yield Page(browser, server, client, run, summary, newest.parent)
    finally:
        browser.quit()
