"""The MLflow UI over a real BlackJack training, looked at in a browser: `make browse`.

    make browse              trains a small policy first
    RUNS=runs make browse    looks at the newest finished ones there, as `make run` and `make run-tools` leave them

Needs Debian's packages chromium and chromium-driver. Screenshots are left in dist/screenshots/.
"""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from mlflow.entities import Trace
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from browser.page import WIDTH, Page

CHARTS = {  # name of the screenshot: what is typed into the search, and the charts that are left then
    "results": (
        "eval/(reward|optimum|regret|won)",
        ["optimum", "regret", "reward", "reward_high", "reward_low", "won"],
    ),
    "training": (
        "train/(clip_share|entropy|ess_share|grad_norm|kl|mismatch_mean)",
        ["clip_share", "entropy", "ess_share", "grad_norm", "kl", "mismatch_mean"],
    ),
}
PLOTTED = """
return Object.fromEntries([...document.querySelectorAll(".js-plotly-plot")].flatMap(
  plot => (plot.data || []).filter(line => line.metricKey).map(line => [line.metricKey, [line.x, line.y]])))
"""
PAGED = 100  # traces at most that the list shows at once, and then it counts no more
ASSESSMENTS = '[data-component-id="shared.model-trace-explorer.assessments-pane-toggle"]'
ASSESSMENTS_CLOSE = '[data-component-id="shared.model-trace-explorer.close-assessments-pane"]'
IMAGE_WIDTHS = "return [...document.images].map(image => image.naturalWidth)"


def signed(number: float) -> str:
    return f"{number:+.3f}"


def test_the_run_page_shows_the_results_and_what_made_them(page: Page) -> None:
    summary, data = page.summary, page.run.data
    results = [
        f"Expected reward {signed(summary['reward'])} ±{summary['reward_ci95']:.3f}",
        f"the policy before training gets {signed(summary['before']['reward'])}",
        f"regret {summary['metrics']['regret']['mean']:.3f} ±{summary['metrics']['regret']['ci95']:.3f}",
        f"{summary['episodes']:,} episodes",
        "pyflyte run workflows/grpo.py grpo",
        summary["policy"],
    ]
    by = [data.tags["mlflow.user"], "grpo.py"]
    inputs = page.run.inputs.dataset_inputs
    assert inputs
    datasets = [inputs[0].dataset.name, *([f"+{len(inputs) - 1}"] if inputs[1:] else [])]
    versions = page.client.search_model_versions(f"run_id = '{page.run.info.run_id}'")
    models = [versions[0].name, *(["+1"] if len(versions) == 2 else [])]
    text = page.open(page.route, ["Finished", page.run.info.run_name, *results, *by, *datasets, *models])
    page.save("run")
    about = page.browser.find_element(By.XPATH, "//*[text()='About this run']")
    assert about.rect["x"] + about.rect["width"] < WIDTH  # nothing on its left is too wide
    shown = text.splitlines()
    assert f"Parameters ({len(data.params)})" in shown and f"Metrics ({len(data.metrics)})" in shown
    tags = {key: value for key, value in data.tags.items() if not key.startswith("mlflow.")}
    assert tags.keys() >= {"git.commit", "version.torchtitan", "policy.digest"}
    after_name = {name: shown[i + 1] for i, name in enumerate(shown[:-1])}
    for name, value in tags.items():
        assert after_name[name] == f": {value}", name
    for name, value in data.params.items():
        assert value in ("", after_name[name]), name
    for name in ("eval/reward", "eval/regret", "train/kl"):
        assert float(after_name[name]) == data.metrics[name]
    assert float(after_name["eval/reward"]) == summary["reward"]


@pytest.mark.parametrize("name", CHARTS)
def test_the_charts_draw_what_was_measured(page: Page, name: str) -> None:
    search, charts = CHARTS[name]
    names = {f"{search.partition('/')[0]}/{chart}" for chart in charts}
    page.open(f"{page.route}/model-metrics", ["Step"])
    box = page.browser.find_element(By.CSS_SELECTOR, 'input[placeholder="Search metric charts"]')
    box.send_keys(Keys.CONTROL, "a")  # what was searched for before is still there
    box.send_keys(search)

    def plotted() -> Any:
        found = page.browser.execute_script(PLOTTED)
        return found if set(found) == names else None

    lines = page.until(plotted)
    page.save(name)
    for metric, (steps, values) in lines.items():
        points = page.client.get_metric_history(page.run.info.run_id, metric)
        assert list(zip(steps, values, strict=True)) == sorted((point.step, point.value) for point in points), metric
    if name == "results":
        assert lines["eval/reward"][1][-1] == page.summary["reward"]


def test_pictures_are_shown(page: Page) -> None:
    page.open(f"{page.route}/artifacts/pictures/learning_curve.png", ["pictures/learning_curve.png"])
    png = (page.folder / "pictures" / "learning_curve.png").read_bytes()
    (width,) = struct.unpack(">I", png[16:20])
    page.until(lambda: width in page.browser.execute_script(IMAGE_WIDTHS))
    page.save("picture")


def test_the_report_is_shown(page: Page) -> None:
    page.open(f"{page.route}/artifacts/report.html", ["report.html", "Path:"])
    frame = page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, "iframe.mlflow-html-iframe"))[0]
    page.browser.switch_to.frame(frame)
    try:
        reward = signed(page.summary["reward"]).replace("-", "\N{MINUS SIGN}")
        text = page.wait([f"{page.run.info.run_name}: GRPO in blackjack", reward])
        assert f"{page.summary['episodes']:,} episodes" in text
        page.until(lambda: all(width > 0 for width in page.browser.execute_script(IMAGE_WIDTHS)))
    finally:
        page.browser.switch_to.default_content()
    page.save("report")


def traces(page: Page) -> list[Trace]:
    found = page.client.search_traces(
        locations=[page.run.info.experiment_id], run_id=page.run.info.run_id, max_results=500
    )
    assert found
    return list(found)


def test_the_traces_list_episodes_with_prompts_replies_and_rewards(page: Page) -> None:
    episodes = traces(page)
    counted = [f"{len(episodes)} of {len(episodes)}"] if len(episodes) < PAGED else []
    text = page.open(f"{page.route}/traces", [*counted, "Cards ", "advantage", "reward", "age"])
    page.save("traces")
    listed = [episode for episode in episodes if episode.info.trace_id in text]
    assert len(listed) >= min(10, len(episodes))
    for episode in listed:
        assert episode.info.request_preview.startswith("Cards ") and episode.info.request_preview in text
        assert " ".join(episode.info.response_preview.split()) in " ".join(text.split())  # an invalid reply is any text


def test_a_trace_shows_an_episode_turn_by_turn(page: Page) -> None:
    readable = [trace for trace in traces(page) if trace.info.tags["outcome"] != "invalid"]
    episode = max(readable, key=lambda trace: len(trace.data.spans))
    root, *turns = sorted(episode.data.spans, key=lambda span: (span.start_time_ns, span.parent_id is not None))
    feedback = {given.name: f"{given.value:g}" for given in episode.info.assessments}
    assert {"reward", "advantage"} <= set(feedback)
    page.open(f"{page.route}/traces?selectedEvaluationId={episode.info.trace_id}", [root.name, "finish_reason"])
    page.browser.find_element(By.CSS_SELECTOR, ASSESSMENTS).click()
    text = page.wait(["Feedback", *(turn.name for turn in turns)])
    page.save("trace")
    outputs = ["reward", f"{root.outputs['reward']:g}", "outcome", root.outputs["outcome"]]
    assert_in_order(text, ["Spans", root.name, *(turn.name for turn in turns), root.name, *outputs])
    for name, value in feedback.items():
        assert_in_order(text, ["Assessments", name, value])

    page.browser.find_element(By.CSS_SELECTOR, ASSESSMENTS_CLOSE).click()
    page.browser.find_element(By.XPATH, f"//*[text()='{turns[-1].name}']").click()
    messages = [message["content"] for message in turns[-1].inputs["messages"]]
    reply = turns[-1].outputs["choices"][0]["message"]["content"]
    text = page.wait(messages)
    page.save("turn")
    assert_in_order(text, ["Inputs", *messages, "Outputs", reply])


def test_the_trace_of_a_tool_episode_has_its_code_and_output(page: Page) -> None:
    found = page.client.search_traces([page.run.info.experiment_id], "tags.outcome = 'right after a call'")
    if not found:
        found = page.client.search_traces([page.run.info.experiment_id], "tags.outcome = 'wrong after a call'")
    assert found, "no run there has an episode with a call of the calculator"
    episode = found[0]
    root, *spans = sorted(episode.data.spans, key=lambda span: (span.start_time_ns, span.parent_id is not None))
    (tool,) = [span for span in spans if span.span_type == "TOOL"]
    route = f"/experiments/{page.run.info.experiment_id}/runs/{episode.info.trace_metadata['mlflow.sourceRun']}"
    text = page.open(f"{route}/traces?selectedEvaluationId={episode.info.trace_id}", [root.name, "finish_reason"])
    assert_in_order(text, ["Spans", root.name, "turn 1", tool.name, "turn 2"])
    page.browser.find_element(By.XPATH, f"//*[text()='{tool.name}']").click()
    text = page.wait([tool.inputs["code"], tool.outputs])
    page.save("tool")
    assert_in_order(text, ["Inputs", tool.inputs["code"], "Outputs", tool.outputs])


def assert_in_order(text: str, wanted: Sequence[str]) -> None:
    """All of `wanted` are lines of the text, one after another."""
    lines = iter(text.splitlines())
    for line in wanted:
        assert line in lines, f"{line!r}, after those before it, in:\n{text}"


def test_the_registry_names_the_policies(page: Page) -> None:
    (name,) = {v.name for v in page.client.search_model_versions(f"run_id = '{page.run.info.run_id}'")}
    versions = page.client.search_model_versions(f"name = '{name}'")
    model = page.client.get_registered_model(name)
    aliases = [f"@ {alias}" for alias in model.aliases]
    assert "@ challenger" in aliases
    newest = max(versions, key=lambda version: int(version.version))
    tags = {key: newest.tags[key] for key in ("reward", "regret", "policy_version", "run", "uri")}
    assert float(tags["reward"]) == float(f"{page.summary['reward']:.6g}")
    text = page.open(f"/models/{name}", [f"Version {newest.version}", *aliases, *tags.values()])
    page.save("registry")
    lines = text.splitlines()
    block = lines[lines.index(f"Version {newest.version}") :]
    for key, value in tags.items():
        assert block[block.index(key) + 1] == f": {value}"
    page.open(f"/models/{name}/versions/{newest.version}", [f"Version {newest.version}", newest.tags["digest"]])
    page.save("version")
