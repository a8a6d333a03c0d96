"""Checks every input of a training before any work, and opens its run: folder, identity, MLflow run."""

import ipaddress
import json
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks.config import GrpoConfig, Run, require
from tasks.environments.catalog import ENVIRONMENT_NAMES, get_environment
from tasks.folders import atomic_directory, run_folder
from tasks.policy import hub, machine, named
from tasks.policy.architectures import check_head_size, check_shares
from tasks.policy.checkpoint import check_checkpoint
from tasks.policy.memory import GIB, expected
from tasks.policy.tiny import shape
from tasks.tracking import mlflow_run
from tasks.tracking.provenance import EXECUTION


def check_inputs(
    *,
    run_name: str,
    policy: str,
    environment: str,
    environment_url: str,
    iterations: int,
    seed: int,
    lag: int,
    config: GrpoConfig,
    here: bool = True,
    files: named.Files = named.files_of,
) -> dict[str, Any]:
    """The config.json of the policy; ValueError, in one sentence, for an input that a training cannot work with.

    `policy` is the uri of a `named.Source`, `files` gives the file system of one in object storage. `here`: all
    stages will run on this machine, as in `check_memory`.
    """
    name = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
    require(
        run_name == "" or re.fullmatch(name, run_name) is not None,
        "run_name",
        run_name,
        "letters, digits, dots, dashes and underscores, at most 64, or nothing for a name made from the date",
    )
    require(iterations >= 1, "iterations", iterations, "1 or more")
    require(0 <= seed < 2**31, "seed", seed, "0 to 2147483647")
    require(lag in (0, 1), "lag", lag, "0 or 1")
    require(
        config.buffer.max_age >= lag,
        "buffer.max_age",
        config.buffer.max_age,
        f"{lag} or more with lag {lag}, every batch is that old when it is trained on",
    )
    known = check_task(
        policy=policy, environment=environment, environment_url=environment_url, hub_names=True, here=here, files=files
    )
    known = known or shape(config.tiny)
    check_shares(known, config.training.tensor_parallel)
    return known


def check_task(
    *,
    policy: str,
    environment: str,
    environment_url: str,
    hub_names: bool = False,
    here: bool = True,
    files: named.Files = named.files_of,
) -> dict[str, Any]:
    """The config.json of a policy: a directory, a URI, a name on the hub; empty for `tiny`, which is yet to be made.

    Raises ValueError for a policy or an environment that is not there. On a cluster a server on the loopback interface
    is a container of the rollout's pod, which is not this one: nobody is asked.
    """
    require(environment in ENVIRONMENT_NAMES, "environment", environment, ", ".join(ENVIRONMENT_NAMES))
    known: dict[str, Any] = {}
    if hub_names and hub.is_hub_name(policy):
        folder, weights = hub.look(policy)
        known = check_checkpoint(folder, name=policy, weights=weights)
    elif named.is_remote(policy):
        folder, weights = named.look(policy, files)
        known = check_checkpoint(folder, name=policy, weights=weights)
    elif policy != "tiny":
        known = check_checkpoint(Path(policy))
    if known and here:
        check_head_size(known)
    if environment_url and (here or not _loopback(environment_url)):
        games = get_environment(environment).connect(environment_url)
        try:
            games.reset([0])
        finally:
            games.close()
    return known


def _loopback(url: str) -> bool:
    """Whether this is the http(s) URL of a server on the machine, or in the pod, that asks."""
    found = urlsplit(url)
    if found.scheme not in ("http", "https") or not found.hostname:
        return False
    try:
        return ipaddress.ip_address(found.hostname).is_loopback
    except ValueError:  # a name
        return found.hostname == "localhost"


def check_memory(
    config_json: Mapping[str, Any], policy: str, config: GrpoConfig, *, lag: int, here: bool
) -> dict[str, float]:
    """Bytes that each role of the run is expected to take.

    `here`: all stages run on this machine, one by one, and stay warm. Then ValueError, in one sentence, when they do
    not fit in it, or the ranks do not. On a cluster each stage asks the machine that it gets, when it begins.
    """
    gpu = machine.gpu_bytes() if here else 0
    needs = expected(config_json, config, lag=lag, gpu=gpu)
    if here:
        require(config.training.nodes == 1, "training.nodes", config.training.nodes, "1 on a single machine")
        machine.check_ranks(config.training)
        machine.check_room(needs, policy)
        machine.check_cache(config_json, config.rollout, gpu=gpu)
    return needs


def start_of(policy: str, run_name: str, files: named.Files = named.files_of) -> named.Source:
    """What `policy` names; for a run that goes on, what it named when the run began, however aliases moved since."""
    record = run_folder(run_name) / "run.json"
    if run_name and record.is_file():
        known = json.loads(record.read_text())
        if known["inputs"]["policy"] == policy and "source" in known:
            return named.Source.from_dict(known["source"])
    return named.find(policy, files)


def open_run(
    inputs: dict[str, object],
    config: GrpoConfig,
    needs: Mapping[str, float],
    source: named.Source,
    execution: Mapping[str, str],
) -> Run:
    """The identity of a training: a new one, or that of the run of the same name that it goes on with.

    `needs`, bytes by role, become parameters of the MLflow run, and so does what the registry says of its `source`;
    `execution`, what names the Flyte execution, becomes its tags. On a cluster an attempt at `create_run` finds nothing on
    its disk: there the execution's name is the run's token, and gives it a name where the user gave none. Elsewhere
    `execution` is empty.

    Raises ValueError when a run of this name was started with other inputs, and on a cluster without an MLflow server.
    A run may go on with other ranks.
    """
    unique = execution.get(EXECUTION, "")
    date = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    name = str(inputs["run_name"]) or f"{inputs['environment']}-{unique.rpartition('/')[2] or date}"
    wanted = {**inputs, "run_name": name, "config": config.on_one_rank().to_dict()}
    folder = run_folder(name)
    record = folder / "run.json"
    if record.is_file():
        known = json.loads(record.read_text())
        for key, value in wanted.items():
            if known["inputs"].get(key) != value:
                raise ValueError(
                    f'run_name is "{name}", a run with another {key}; allowed: the same inputs, to go on with it, '
                    f"or a new run_name."
                )
        token = known["token"]
    else:
        require(not folder.exists(), "run_name", name, f"a name that is not taken, and {folder} is there and no run")
        token = unique or uuid.uuid4().hex
    uri, given = mlflow_run.tracking_uri(), {**wanted, "config": config.to_dict()}
    server = "on a cluster, whose pods share no disk, the http(s) address of an MLflow server"
    require(not (unique and uri.startswith("sqlite:")), "MLFLOW_TRACKING_URI", uri, server)
    run_id = mlflow_run.open_run(
        uri=uri,
        name=name,
        token=token,
        parameters={
            **_flat(given),
            **({"policy.version": source.version, "policy.digest": source.digest} if source.version else {}),
            **{f"memory.expected_{k}_gib": f"{v / GIB:.2f}" for k, v in needs.items()},
        },
        tags={"grpo.environment": str(inputs["environment"]), **execution},
    )
    mlflow_run.keep_config(uri, run_id, config.to_dict())
    run = Run(
        name=name,
        token=token,
        seed=int(str(inputs["seed"])),
        environment=str(inputs["environment"]),
        environment_url=str(inputs["environment_url"]),
        mlflow_run_id=run_id,
        tracking_uri=uri,
        iterations=int(str(inputs["iterations"])),
        started=mlflow_run.start_time(uri, run_id),
        policy=source.uri,
    )
    if not record.is_file():
        kept = {"token": token, "inputs": wanted, "source": source.to_dict()}
        with atomic_directory(folder) as new:
            (new / "run.json").write_text(json.dumps(kept, indent=1) + "\n")
    return run


def _flat(record: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}." if key != "config" else "")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
