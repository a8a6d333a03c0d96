"""Whole small trainings, started as a user starts them."""

import base64
import json
import math
import os
import re
import signal
import subprocess
import time
from html import escape
from pathlib import Path

import pandas as pd
import pytest
from flytekit import FlyteContextManager
from safetensors.torch import load_file

from small import SMALL
from tasks.history import read_history
from tasks.policy.checkpoint import read_manifest
from tasks.records import SAMPLE, read_batch

ROOT = Path(__file__).parents[2]
KEYS = {
    "expected_reward",
    "win_rate",
    "regret",
    "regret_ci95",
    "invalid_rate",
    "iterations",
    "games",
    "seconds",
    "mlflow_run_id",
    "policy",
}
PICTURES = {f"pictures/{name}.png" for name in ("learning_curve", "choices", "distributions", "stage_times")}
OF_ONE_RUN = ("seconds", "mlflow_run_id", "policy")


def weights(run: Path, version: int) -> bytes:
    return (run / "policies" / f"{version:05d}" / "model.safetensors").read_bytes()


def summary(run: Path) -> dict:
    found = json.loads((run / "summary.json").read_text())
    return {key: value for key, value in found.items() if key not in OF_ONE_RUN}


def measured(run: Path, stage: str, *numbers: int) -> dict[str, float]:
    """The metrics beside a batch or a policy."""
    return json.loads(Path(run, stage, *(f"{number:05d}" for number in numbers), "_metrics.json").read_text())


def of_the_seed(metrics: dict[str, float]) -> dict[str, float]:
    """Those that tell nothing of the hour or of the machine's speed."""
    return {
        name: value
        for name, value in metrics.items()
        if not (name.startswith(("time/", "stage/", "memory/")) or name.endswith("_per_s") or name == "started")
    }


def logged(run: Path) -> dict[str, list[tuple[int, float]]]:
    """All metrics in MLflow as (step, value)."""
    from tasks.tracking.mlflow_store import client

    mlflow = client(f"sqlite:///{run.parent / 'mlflow.db'}")
    run_id = json.loads((run / "summary.json").read_text())["mlflow_run_id"]
    names = mlflow.get_run(run_id).data.metrics
    return {name: [(m.step, m.value) for m in mlflow.get_metric_history(run_id, name)] for name in names}


def test_a_training_from_the_command_line_moves_the_policy_and_leaves_its_results(reference_run: Path, home: Path):
    assert weights(reference_run, 0) != weights(reference_run, 1) != weights(reference_run, 2)
    infos = [read_manifest(reference_run / "policies" / f"{v:05d}") for v in range(3)]
    assert [info.version for info in infos] == [0, 1, 2]
    assert [info.parent for info in infos] == ["", infos[0].digest, infos[1].digest]

    found = json.loads((reference_run / "summary.json").read_text())
    assert set(found) >= KEYS
    assert (found["iterations"], found["games"], found["evaluation_games"]) == (2, 2 * 24 * 4, 128)
    assert Path(found["policy"]) == reference_run / "policies" / "00002"
    for picture in PICTURES:
        assert (reference_run / picture).read_bytes().startswith(b"\x89PNG")
    page = (reference_run / "report.html").read_text()
    for value in (found["expected_reward"], found["before"]["expected_reward"]):
        assert f"{value:+.3f}".replace("-", "\N{MINUS SIGN}") in page
    info = json.loads((reference_run / "policies" / "00002" / "policy.json").read_text())
    assert info["digest"] in page and "<code>rollout.max_groups</code></th><td>24</td><td>4096</td>" in page
    assert page.count("data:image/png;base64,") == 2 * len(PICTURES) and str(home) not in page

    batch = read_batch(reference_run / "trajectories" / "00001")
    assert batch.num_rows == 24 * 4
    assert set(batch["policy_version"].to_pylist()) == {1}
    assert {"reference_logprobs", "advantage"} <= set(batch.column_names)

    shown = (home / "reference.txt").read_text()
    assert "expected reward" in shown and "runs/reference/policies/00002" in shown and "make ui" in shown
    assert "\x1b" not in shown


def test_nothing_is_left_in_the_temporary_folder(reference_run: Path, home: Path):
    assert list((home / "tmp").iterdir()) == []
    left = [path.name for path in (home / "runs" / ".tmp").iterdir()]
    assert [name for name in left if f"-{os.getpid()}." not in name] == []  # this process's commands are not over


def test_the_mlflow_run_has_parameters_metrics_of_every_stage_and_pictures(reference_run: Path, home: Path):
    from tasks.tracking.mlflow_store import client

    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    run_id = json.loads((reference_run / "summary.json").read_text())["mlflow_run_id"]
    run = mlflow.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "reference"
    assert run.data.params["rollout.groups"] == run.data.params["rollout.max_groups"] == "24"
    assert len(run.data.tags["git.commit"]) == 40
    for name in (
        "rollout/reward_mean",
        "rollout/raw_reward",
        "rollout/error_share",
        "environment/agreement",
        "rollout/sampled_tokens_per_s",
        "train/kl",
        "train/mismatch_mean",
        "train/ratio_mean",
        "train/ratio_max",
        "train/clip_share",
        "train/ess_share",
        "train/grad_norm",
        "train/dropped_tokens",
        "train/entropy",
        "train/tokens_per_s",
        "advantage/dropped_share",
        "buffer/groups",
        "buffer/staleness_mean",
        "time/rollout_s",
        "time/reference_s",
        "time/train_s",
        "time/overhead_s",
        "memory/rollout_gib",
        "memory/train_gib",
        "stage/rollout_s",
        "stage/score_reference_s",
        "stage/compute_advantages_s",
        "stage/select_training_batch_s",
        "stage/train_s",
    ):
        assert [m.step for m in mlflow.get_metric_history(run_id, name)] == [0, 1], name
    for name in ("regret", "reward", "reward_low", "reward_high", "optimum", "random"):
        assert [m.step for m in mlflow.get_metric_history(run_id, f"eval/{name}")] == [0, 2], name
    for name, steps in (("initial_policy", [0]), ("evaluate", [0, 2]), ("report", [2])):
        assert [m.step for m in mlflow.get_metric_history(run_id, f"stage/{name}_s")] == steps
    assert all(name.count("/") == 1 for name in run.data.metrics)
    assert len([name for name in run.data.metrics if not name.startswith("environment/")]) < 59
    for end, version in (("initial_digest", 0), ("digest", 2)):
        assert run.data.tags[f"policy.{end}"] == read_manifest(reference_run / "policies" / f"{version:05d}").digest
    artifacts = {artifact.path for artifact in mlflow.list_artifacts(run_id)}
    assert {"config.json", "summary.json", "report.html"} <= artifacts
    assert {artifact.path for artifact in mlflow.list_artifacts(run_id, "pictures")} == PICTURES


def test_a_policy_brings_the_story_of_its_run(reference_run: Path):
    history = read_history(reference_run / "policies" / "00002")
    assert [iteration.iteration for iteration in history] == [0, 1]
    for iteration in history:
        sampled = measured(reference_run, "trajectories", iteration.iteration)
        assert iteration.episodes == sampled["rollout/episodes"] == 96
        assert iteration.raw_reward == pytest.approx(sampled["rollout/raw_reward"], rel=1e-4)
        assert iteration.turns.mean == pytest.approx(sampled["rollout/turns_mean"], rel=1e-4)
        assert sum(count for _, count in iteration.rewards.counts) == 96
        assert set(iteration.seconds) >= {"rollout", "reference", "train", "overhead"}


def test_an_iterations_line_tells_the_last_evaluation_and_the_time_left(home: Path, reference_run: Path):
    lines = [
        line for line in (home / "reference.txt").read_text().splitlines() if re.match(r" +\d+:\d\d  policy +\d", line)
    ]
    first = json.loads((reference_run / "evaluations" / "00000" / "evaluation.json").read_text())
    assert len(lines) == 2 and all(f"evaluated {first['reward']['mean']:+.3f} at 0" in line for line in lines)
    assert lines[1].endswith("left 0:00")


def test_every_optimizer_step_leaves_a_row(reference_run: Path):
    for version in (1, 2):
        steps = pd.read_csv(reference_run / "policies" / f"{version:05d}" / "_steps.csv")
        metrics = measured(reference_run, "policies", version)
        # Two epochs of minibatches near 32 trajectories; equal rewards teach nothing, their groups are left out.
        advantages = read_batch(reference_run / "trajectories" / f"{version - 1:05d}", ["group_id", "advantage"])
        teaching = advantages.to_pandas().groupby("group_id")["advantage"].transform(lambda a: a.abs().max()) > 0
        assert len(steps) == metrics["train/steps"] == 2 * round(teaching.sum() / 32)
        assert sorted(set(steps["epoch"])) == [0, 1]
        for name in ("loss", "entropy", "kl", "ratio_mean", "clip_share", "ess_share", "grad_norm"):
            assert steps[name].mean() == pytest.approx(metrics[f"train/{name}"]), name
        assert steps["ratio_max"].max() == pytest.approx(metrics["train/ratio_max"])
        assert (steps["ratio_max"] >= steps["ratio_mean"]).all() and (steps["grad_norm"] > 0).all()
        # Before the first step trainer and generator are one policy: every ratio is 1, and nothing is clipped.
        first = steps.iloc[0]
        assert [first["ratio_mean"], first["ratio_max"], first["ess_share"]] == pytest.approx([1, 1, 1], abs=1e-4)
        assert first["clip_share"] == 0


def test_the_same_seed_gives_the_same_summary_weights_and_metrics_in_another_process(reference_run: Path, train):
    again = train("again")
    assert summary(again) == summary(reference_run)
    for version in range(3):
        assert weights(again, version) == weights(reference_run, version)
    for iteration in range(2):
        first, second = (read_batch(run / "trajectories" / f"{iteration:05d}") for run in (reference_run, again))
        assert first.equals(second)
        for stage, number in (("trajectories", iteration), ("policies", iteration + 1)):
            metrics = of_the_seed(measured(reference_run, stage, number))
            assert len(metrics) > 10 and all(math.isfinite(value) for value in metrics.values())
            assert of_the_seed(measured(again, stage, number)) == metrics


def test_another_seed_gives_other_weights_trajectories_and_metrics(reference_run: Path, train):
    other = train("other", seed=1)
    for version in range(3):
        assert weights(other, version) != weights(reference_run, version)
    for iteration in range(2):
        rows = [read_batch(run / "trajectories" / f"{iteration:05d}") for run in (reference_run, other)]
        assert not rows[0].equals(rows[1])
        assert set(rows[0]["seed"].to_pylist()).isdisjoint(rows[1]["seed"].to_pylist())
        for stage, number in (("trajectories", iteration), ("policies", iteration + 1)):
            assert of_the_seed(measured(other, stage, number)) != of_the_seed(measured(reference_run, stage, number))


def test_a_killed_training_goes_on_where_it_was_and_ends_the_same(reference_run: Path, home: Path, command):
    line, environment = command("--run_name", "killed")
    with open(home / "killed.txt", "w") as shown:
        process = subprocess.Popen(line, cwd=home, env=environment, stdout=shown, stderr=shown)
        run = home / "runs" / "killed"
        deadline = time.monotonic() + 300
        # Killed while the second iteration is under way: the first one's policy is there, the second's not yet.
        while not (run / "policies" / "00001").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (run / "summary.json").exists()
    written = (run / "policies" / "00000" / "policy.json").stat().st_mtime_ns

    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (run / "policies" / "00000" / "policy.json").stat().st_mtime_ns == written
    assert summary(run) == summary(reference_run)
    assert weights(run, 2) == weights(reference_run, 2)
    for stage, number in (("trajectories", 1), ("policies", 2)):
        assert of_the_seed(measured(run, stage, number)) == of_the_seed(measured(reference_run, stage, number))


def test_two_workers_train_as_one_does(reference_run: Path, train):
    run = train("workers", config={"rollout": {"workers": 2}})
    for iteration in range(2):
        one, two = (read_batch(r / "trajectories" / f"{iteration:05d}") for r in (reference_run, run))
        assert two.drop(["logprobs", "reference_logprobs"]).equals(one.drop(["logprobs", "reference_logprobs"]))
        # The first starts first and says for both when that was; what they share out is played once.
        starts = [measured(run, "shards", iteration, shard)["started"] for shard in range(2)]
        assert measured(run, "trajectories", iteration)["started"] == starts[0] < starts[1]
    for version in range(3):
        kept, found = (load_file(r / "policies" / f"{version:05d}" / "model.safetensors") for r in (reference_run, run))
        assert found.keys() == kept.keys()
        # Log-probabilities of other batches of prompts may differ by rounding, and so may the steps.
        assert max(float((found[name] - kept[name]).abs().max()) for name in kept) < 1e-4
    assert weights(run, 2) != weights(run, 1)
    metrics, others = logged(run), logged(reference_run)
    assert metrics["rollout/episodes"] == others["rollout/episodes"] == [(0, 96.0), (1, 96.0)]
    assert metrics["rollout/lost_shards"] == metrics["rollout/joined_share"] == [(0, 0.0), (1, 0.0)]
    assert "rollout/lost_shards" not in others
    assert {name for name in metrics if metrics[name] and len(metrics[name]) > 2} == set()  # each step once


def test_a_run_name_in_use_with_other_inputs_is_refused(reference_run: Path, train):
    with pytest.raises(
        ValueError, match=r'run_name is "reference", a run with another seed \(0 there, 5 here\); allowed:'
    ):
        train("reference", seed=5)


def test_with_lag_one_a_rollout_samples_from_the_version_before(train):
    run = train("lagged", lag=1)
    versions = [set(read_batch(run / "trajectories" / f"{v:05d}")["policy_version"].to_pylist()) for v in range(2)]
    assert versions == [{0}, {0}]
    assert weights(run, 2) != weights(run, 1)
    metrics = logged(run)
    # Policy 1 is trained on what policy 0 sampled, and it is policy 0 that is compared with its own log-probabilities.
    assert metrics["buffer/staleness_mean"] == [(0, 0.0), (1, 1.0)]
    assert [step for step, _ in metrics["train/mismatch_mean"]] == [0, 1]
    assert all(0 <= gap < 1e-5 for _, gap in metrics["train/mismatch_mean"])
    assert abs(pd.read_csv(run / "policies" / "00002" / "_steps.csv")["ratio_mean"][0] - 1) > 1e-4


def test_without_a_kl_nothing_is_scored(train):
    config = {"algorithm": {"kl_coefficient": 0}, "buffer": {"max_age": 0}}
    run = train("free", config=config)
    assert not (run / "scored").exists()
    assert len({weights(run, version) for version in range(3)}) == 3
    metrics = logged(run)
    assert not {"train/kl", "time/reference_s", "reference/scored"} & set(metrics)
    assert [step for step, _ in metrics["train/loss"]] == [0, 1]
    assert "kl" not in pd.read_csv(run / "policies" / "00002" / "_steps.csv")

    # With max_age 0 the first batch is out of the second window; it stays on disk as it was written.
    assert [measured(run, "policies", v)["buffer/groups_in_reach"] for v in (1, 2)] == [24, 24]
    (part,) = (run / "trajectories" / "00000").rglob("*.arrow")
    assert part.stat().st_mtime_ns < (run / "policies" / "00001" / "policy.json").stat().st_mtime_ns
    for iteration in range(2):
        kept, sampled = (read_batch(run / stage / f"{iteration:05d}") for stage in ("trajectories", "rollouts"))
        assert kept.column_names == [*SAMPLE.names, "advantage"]
        assert kept.select(SAMPLE.names).equals(sampled)


def test_adapters_in_bfloat16_with_shared_prefixes_and_few_versions_kept(train):
    training = {"lora": {"rank": 4}, "dtype": "bfloat16"}
    config = {"training": training, "rollout": {"dtype": "bfloat16"}, "retention": {"last": 3, "every": 4}}
    run = train("adapters", iterations=4, config=config)
    whole = [(run / "policies" / f"{version:05d}" / "policy.json").exists() for version in range(5)]
    assert whole == [True, False, True, True, True]
    assert measured(run, "policies", 1)["train/steps"] > 0  # what was measured stays
    for version in (2, 3, 4):
        assert (run / "policies" / f"{version:05d}" / "adapter" / "adapter_model.safetensors").is_file()
    assert weights(run, 2) != weights(run, 3) != weights(run, 4)
    # The generator samples what the trainer merged: within the limit of bfloat16, version after version.
    assert all(0 < measured(run, "policies", v)["train/mismatch_mean"] < 0.1 for v in (2, 3, 4))
    assert len(list((run / "states").glob("*/step-*"))) == 3


def test_a_failed_training_leaves_its_mlflow_run_failed_with_the_reason(train, home: Path):
    from tasks.tracking.mlflow_store import client

    with pytest.raises(ValueError, match="policy version 0"):
        train("failing", iterations=1, config={"algorithm": {"max_mismatch": 1e-12}})
    mlflow = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}")
    (run,) = mlflow.search_runs(
        [mlflow.get_experiment_by_name("grpo").experiment_id], "attributes.run_name = 'failing'"
    )
    assert run.info.status == "FAILED"
    assert "mismatch between generator and trainer on policy version 0" in run.data.tags["failure"]
    assert not (home / "runs" / "failing" / "policies" / "00001").exists()


def test_a_run_that_learned_nothing_ends_with_an_error_and_says_why(home: Path, here):
    # At this temperature a group's replies are all the same, and so are its rewards.
    config = json.dumps({**SMALL, "rollout": {**SMALL["rollout"], "temperature": 1e-3}})
    inputs = ["--run_name", "nothing", "--iterations", "2", "--config", config]
    status, shown = here("run", str(ROOT / "workflows/grpo.py"), "grpo", *inputs)
    run = home / "runs" / "nothing"
    kept = json.loads((run / "summary.json").read_text())
    assert status == 1 and kept["iterations"] == 2  # it is whole, and all of its numbers are there
    assert "policy 2 has the weights of policy 1: no rewards of a group differ" in shown
    said = "no optimizer step was taken in 2 iterations, the policy has the weights that it began with: no group had "
    assert said in shown.strip().splitlines()[-1]
    assert weights(run, 2) == weights(run, 0)
    from tasks.tracking.mlflow_store import client

    found = client(f"sqlite:///{home / 'runs' / 'mlflow.db'}").get_run(kept["mlflow_run_id"])
    assert found.info.status == "FAILED" and found.data.tags["failure"].startswith(said)


def test_evaluate_prints_the_numbers_of_any_policy_directory(reference_run: Path, home: Path, here):
    inputs = ["--policy", str(reference_run / "policies" / "00002"), "--tasks", "128", "--seed", "0"]
    status, shown = here("run", str(ROOT / "workflows/evaluation.py"), "evaluate", *inputs)
    assert status == 0, shown[-3000:]
    (folder,) = (home / "runs" / "evaluations").iterdir()
    found = json.loads((folder / "evaluation.json").read_text())
    known = summary(reference_run)
    assert found["metrics"]["regret"]["mean"] == known["regret"] == known["metrics"]["regret"]["mean"]
    assert found["reward"]["mean"] == known["expected_reward"] == known["reward"]
    assert "regret" in shown and "optimum" in shown


def test_evaluation_and_report_have_decks(train):
    sandbox = Path(FlyteContextManager.current_context().file_access.local_sandbox_dir)
    before = set(sandbox.rglob("deck.html"))
    run = train("decks", iterations=1)
    decks = [path.read_text() for path in sorted(set(sandbox.rglob("deck.html")) - before, key=os.path.getmtime)]
    assert len(decks) == 3  # of the first and the last policy, and of the whole run
    assert escape((run / "report.html").read_text()) in decks[-1] and ">Report</li>" in decks[-1]
    for version, deck in enumerate(decks[:2]):
        assert f"&lt;h1&gt;Evaluation of policy {version}&lt;/h1&gt;" in deck
        picture = (run / "evaluations" / f"{version:05d}" / "choices.png").read_bytes()
        assert base64.b64encode(picture).decode() in deck
        assert ">Source Code<" not in deck and ">Dependencies<" not in deck
