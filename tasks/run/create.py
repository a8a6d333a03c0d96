"""Checks every input of a training before any work, and opens its run: folder, identity, MLflow run."""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tasks.config import GrpoConfig, RolloutConfig, Run
from tasks.environments.catalog import get_environment
from tasks.environments.check import check_environment, first_messages
from tasks.evaluation.sequential import reward_range
from tasks.folders import RUNS, atomic_directory, file_name, remove_leftovers, run_folder
from tasks.json_files import read_object
from tasks.policy import hub, machine, named
from tasks.policy.architectures import check_head_size, check_shares
from tasks.policy.checkpoint import check_checkpoint
from tasks.policy.conversation import check_conversation, has_clock
from tasks.policy.memory import GIB, expected
from tasks.policy.tiny import shape
from tasks.rollout import processes
from tasks.run import names
from tasks.settings import flat, require
from tasks.tracking import mlflow_run
from tasks.tracking.mlflow_store import client
from tasks.tracking.provenance import EXECUTION

Config = TypeVar("Config", GrpoConfig, RolloutConfig)


def check_inputs(
    inputs: Mapping[str, Any], config: GrpoConfig, *, here: bool = True, files: named.Files = named.files_of
) -> tuple[GrpoConfig, dict[str, Any]]:
    """The resolved settings, and the config.json of the policy; ValueError, in one sentence, for a bad input.

    `inputs` are those of the workflow beside its settings; their policy is the uri of a `named.Source`, and `files`
    gives the file system of one in object storage. `here`: all stages will run on this machine, as in `check_memory`.
    """

    def check(name: str, holds: bool, allowed: str) -> None:
        require(holds, name, inputs[name], allowed)

    lag = inputs["lag"]
    allowed = "letters, digits, dots, dashes and underscores, at most 64, or nothing for a name made from the date"
    check("run_name", re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})?", inputs["run_name"]) is not None, allowed)
    check("iterations", inputs["iterations"] >= 1, "1 or more")
    check("seed", 0 <= inputs["seed"] < 2**31, "0 to 2147483647")
    check("lag", 0 <= lag <= 1000, "0 or more")
    policy, url = inputs["policy"], inputs["environment_url"]
    if here:
        check_folder(RUNS.absolute())
    began_with = run_folder(inputs["run_name"]) / "policies" / "00000"
    if inputs["run_name"] and policy != "tiny" and (began_with / "policy.json").is_file():
        policy = str(began_with)  # the run has its own copy, and goes on without the one that it was made from
    folder, known = look(policy, hub_names=True, here=here, files=files)
    config = resolve(config, inputs["environment"], url, here=here)
    allowed = f"{lag} or more with lag {lag}, every batch is that old when it is trained on"
    require(config.buffer.max_age >= lag, "buffer.max_age", config.buffer.max_age, allowed)
    last = max(config.retention.last, lag + 2)  # a rollout samples from a version so old
    if config.evaluation.comparison == "sequential":
        options, thinking = config.rollout.environment_options, config.rollout.thinking
        reward_range(get_environment(inputs["environment"], options, thinking=thinking), inputs["environment"])
    per_pod = config.cluster.per_pod(config, lag)
    cluster, retention = config.cluster.replace(iterations_per_pod=per_pod), config.retention.replace(last=last)
    config = config.replace(cluster=cluster, retention=retention)
    known = known or shape(config.tiny)
    check_shares(known, config.training.tensor_parallel)
    check_shares(known, config.rollout.tensor_parallel, "rollout")
    check_length(known, config.rollout)
    if folder is not None:
        check_episode(folder, policy, config.rollout, inputs["environment"], url, here=here)
        if config.rollout.date is None and has_clock(folder):
            config = config.replace(rollout=config.rollout.replace(date=_day(inputs["run_name"])))
    return config, known


def _day(run_name: str) -> str:
    """The day that a run goes on with, today for a new one."""
    record = run_folder(run_name) / "run.json"
    known = _record(record)["config"]["rollout"] if run_name and record.is_file() else {}
    return known.get("date") or f"{datetime.now(UTC):%Y-%m-%d}"


def check_folder(runs: Path) -> None:
    """Raise ValueError, in one sentence, for a folder whose name MLflow's database, or Flyte, would read as something
    else than a path."""
    path = str(runs)
    odd = [part for part in ("%", "?", "#", "*", "[", "]", "::") if part in path]
    odd += [character for character in path if not character.isprintable()]
    if odd:
        said = f"{path!a} is where the runs would be, with {odd[0]!a} in its path"
        raise ValueError(f"{said}; allowed: a folder without % ? # * [ ] :: and control characters in its path.")
    there = next(parent for parent in (runs, *runs.parents) if parent.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{path} is where the runs would be, and {there} is read-only; allowed: a folder to write in.")


def check_episode(
    folder: Path, policy: str, rollout: RolloutConfig, environment: str, environment_url: str, *, here: bool = True
) -> None:
    """Raise ValueError, in one sentence, where the chat template in `folder` cannot tell an episode of the environment,
    or where its first prompt leaves no room for a reply."""
    spec = get_environment(environment, rollout.environment_options, thinking=rollout.thinking)
    first = first_messages(spec, environment_url, timeout_s=rollout.environment_timeout_s, here=here)
    if first:
        taken = check_conversation(folder, policy, first, thinking=rollout.thinking, tools=spec.tools)
        longest = rollout.max_episode_tokens
        allowed = f"more than the {taken} tokens of a first prompt of {environment}; by default it is training.seq_len"
        require(longest is None or longest > taken, "rollout.max_episode_tokens", longest, allowed)


def resolve(config: Config, environment: str, environment_url: str, *, here: bool = True) -> Config:
    """The settings with the defaults of the environment, which is checked too."""
    given = config.rollout if isinstance(config, GrpoConfig) else config
    spec = get_environment(environment, given.environment_options, thinking=given.thinking)
    resolved = config.resolved(spec.defaults)
    rollout = resolved.rollout if isinstance(resolved, GrpoConfig) else resolved
    training = isinstance(resolved, GrpoConfig)
    check_environment(spec, environment_url, timeout_s=rollout.environment_timeout_s, here=here, training=training)
    return resolved


def check_policy(
    policy: str, *, hub_names: bool = False, here: bool = True, files: named.Files = named.files_of
) -> dict[str, Any]:
    """The config.json of a policy: a directory, a URI, a name on the hub; empty for `tiny`, which is yet to be made.

    Raises ValueError for a policy that is not there, or that cannot be trained.
    """
    return look(policy, hub_names=hub_names, here=here, files=files)[1]


def look(
    policy: str, *, hub_names: bool = False, here: bool = True, files: named.Files = named.files_of
) -> tuple[Path | None, dict[str, Any]]:
    """As `check_policy`, with a folder that has all of the policy but perhaps its weights; None for `tiny`."""
    require(policy != "", "policy", policy, '"tiny", a directory with a checkpoint, or the name of one')
    if policy == "tiny":
        return None, {}
    from_hub = hub_names and hub.is_hub_name(policy)
    if from_hub or named.is_remote(policy):
        folder, weights = hub.fetch(policy, weights=False) if from_hub else named.look(policy, files)
    else:
        folder, weights = Path(policy), None
    known = check_checkpoint(folder, name=policy, weights=weights)
    if here:
        check_head_size(known)
    return folder, known


def check_length(config_json: Mapping[str, Any], rollout: RolloutConfig) -> None:
    """Raise ValueError where an episode may have more tokens than the policy has positions."""
    longest, positions = rollout.max_episode_tokens, config_json["max_position_embeddings"]
    allowed = f"at most the policy's max_position_embeddings, {positions}; by default it is training.seq_len"
    require(longest is None or longest <= positions, "rollout.max_episode_tokens", longest, allowed)


def check_memory(
    config_json: Mapping[str, Any], policy: str, config: GrpoConfig, *, lag: int, here: bool
) -> dict[str, float]:
    """Bytes that each role of the run is expected to take.

    `here`: all stages run on this machine, one by one, and stay warm. Then ValueError, in one sentence, when they do
    not fit in it, or the ranks do not. On a cluster each stage checks its own machine when it begins.
    """
    gpu = machine.gpu_bytes() if here else 0
    needs = expected(config_json, config, lag=lag, gpu=gpu)
    if here:
        number = processes.count(config_json, config.rollout)
        needs |= {name: number * needs[name] for name in ("generator", "libraries") if name in needs}
        require(config.training.nodes == 1, "training.nodes", config.training.nodes, "1 on a single machine")
        machine.check_ranks(config.training)
        machine.check_gpus(config.rollout)
        machine.check_room(needs, policy)
        machine.check_cache(config_json, config.rollout, gpu=gpu)
    return needs


def start_of(policy: str, run_name: str, files: named.Files = named.files_of) -> named.Source:
    """What `policy` names; for a run that goes on, what it named when the run began, however aliases moved since."""
    record = run_folder(run_name) / "run.json"
    if run_name and record.is_file():
        known = read_object(record)
        if known["inputs"]["policy"] == policy and "source" in known:
            return named.Source.from_dict(known["source"])
    return named.find(policy, files)


def open_run(
    inputs: Mapping[str, Any],
    given: GrpoConfig,
    config: GrpoConfig,
    needs: Mapping[str, float],
    source: named.Source,
    execution: Mapping[str, str],
) -> Run:
    """The identity of a training: a new one, or that of the run of the same name that it goes on with.

    `inputs` are those of the workflow beside its `given` settings, `config` is these resolved, `needs` is bytes by
    role. `execution` has the tags that name the Flyte execution. On a cluster that is the token of the run, since an
    attempt finds nothing on its disk, and its name where the user gave none. Elsewhere it is empty.

    Raises ValueError when a run of this name was started with other inputs, but for its ranks, and on a cluster without
    an MLflow server.
    """
    unique = execution.get(EXECUTION, "")
    date = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if unique:
        name = inputs["run_name"] or f"{file_name(inputs['environment'])}-{unique.rpartition('/')[2]}"
    elif name := inputs["run_name"]:
        names.take(name)
    else:
        name = names.take_new(f"{file_name(inputs['environment'])}-{date}")
    inputs = {**inputs, "run_name": name}
    kept = {"inputs": {**inputs, "config": given.on_one_rank().to_dict()}, "config": config.on_one_rank().whole()}
    folder = run_folder(name)
    record = folder / "run.json"
    if folder.is_dir():
        remove_leftovers(folder)
    if record.is_file():
        known = _record(record)
        if other := _differences(known, kept):
            allowed = "allowed: the same inputs, to go on with it, or a new run_name."
            raise ValueError(f'run_name is "{name}", a run with another {other}; {allowed}')
        given, token = GrpoConfig.from_dict(known["inputs"]["config"]), known["token"]
    else:
        require(not folder.exists(), "run_name", name, f"a name that is not taken, and {folder} is there and no run")
        token = unique or names.token(name)
    uri = mlflow_run.tracking_uri()
    server = "on a cluster, whose pods share no disk, the http(s) address of an MLflow server"
    require(not (unique and uri.startswith("sqlite:")), "MLFLOW_TRACKING_URI", uri, server)
    run_id = mlflow_run.open_run(
        uri=uri,
        name=name,
        token=token,
        parameters={
            **flat({**inputs, **config.whole()}),
            **({"policy.version": source.version, "policy.digest": source.digest} if source.version else {}),
            **{f"memory.expected_{k}_gib": f"{v / GIB:.2f}" for k, v in needs.items()},
        },
        tags={"grpo.environment": inputs["environment"], **execution},
    )
    mlflow_run.keep_config(uri, run_id, given.to_dict())
    if not record.is_file():
        with atomic_directory(folder) as new:
            record = {"token": token, **kept, "source": source.to_dict()}
            (new / "run.json").write_text(json.dumps(record, indent=1) + "\n")
    names.forget_token(name)
    return Run(
        name=name,
        token=token,
        **{key: inputs[key] for key in ("seed", "environment", "environment_url", "iterations")},
        mlflow_run_id=run_id,
        tracking_uri=uri,
        started=client(uri).get_run(run_id).info.start_time / 1000,
        policy=source.uri,
        given=given.on_one_rank(),
    )


def another_of_that_name(run: Run) -> str:
    """On a cluster the same command begins another run: a sentence about what goes on with the one before; "" without
    one."""
    before = next((token for token in mlflow_run.others_of_that_name(run) if token.count("/") == 2), "")
    if not before:
        return ""
    project, domain, name = before.split("/")
    command = f"flytectl create execution -p {project} -d {domain} --recover {name}"
    return f"a new run; to go on with {run.name} of execution {name} instead: {command}"


def _record(path: Path) -> dict[str, Any]:
    """A run.json. Raises ValueError, in one sentence, for a broken one."""
    known = read_object(path)
    if missing := {"token", "inputs", "config"} - known.keys():
        raise ValueError(f"{path} has no {min(missing)}; allowed: the file of a run, or a new run_name.")
    return known


def _differences(known: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """The inputs and settings with other values than those on record: `seed (0 there, 1 here) and lag (…)`."""
    there, here = (flat({**record["inputs"], "config": {}, **record["config"]}) for record in (known, kept))
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    said = [f"{name} ({json.dumps(there.get(name))} there, {json.dumps(here.get(name))} here)" for name in names]
    return " and ".join([*said[:2], *([f"{len(said) - 2} more"] if said[2:] else [])])
