"""Flyte shell of the stage that makes policy 0 of a run."""

from pathlib import Path

from flytekit import task
from flytekit.types.directory import FlyteDirectory

from tasks.config import GrpoConfig, Run
from tasks.here import is_here
from tasks.resources import pod
from tasks.stages import CACHE_VERSION, stage, stage_folder


@task(cache=True, cache_version=CACHE_VERSION, **pod("policy"))
def initial_policy(run: Run, config: GrpoConfig) -> FlyteDirectory:
    """Policy 0: `tiny`, made on the spot, or a copy of the checkpoint that the run's `policy` names."""
    from tasks.lineage.training import record_initial
    from tasks.policy import hub
    from tasks.policy.checkpoint import import_checkpoint
    from tasks.policy.contents import taken
    from tasks.tracking import console, mlflow_run, outbox
    from tasks.tracking.provenance import library_versions

    with stage(run, "initial_policy") as s:
        if run.policy == "tiny":
            from tasks.training.cold_start import tiny_policy  # takes seconds, and only `tiny` needs it

            console.stage("policy tiny: cold start")
            _start_others(config)
            thinking, options = config.rollout.thinking, config.rollout.environment_options
            source = tiny_policy(
                config.tiny, config.training, run.environment, run.seed, thinking=thinking, options=options
            )
        elif hub.is_hub_name(run.policy):
            console.stage(f"policy {run.policy}: from the hub")
            source = hub.fetch(run.policy, weights=True)[0]
        else:
            source = fetched(run.policy)
        folder = stage_folder(run, "policies", 0)
        manifest = import_checkpoint(source, folder)
        if left := [path.name for path in taken(source)[1]]:
            console.stage(f"policy 0 is without {', '.join(left[:8])}{' …' if left[8:] else ''}, which no stage reads")
        record_initial(run, folder, run.policy, source, manifest)
        outbox.send(run, tags={"policy.initial_digest": manifest.digest, **library_versions()})
        mlflow_run.log_metrics(run, s.seconds(), 0)
        outbox.save_pending(run, folder)
    return FlyteDirectory(str(folder))


def _start_others(config: GrpoConfig) -> None:
    """On one machine the processes that will sample start while the cold start takes one core."""
    from tasks.policy.tiny import shape
    from tasks.rollout import processes
    from tasks.rollout.engine import load_libraries

    if is_here():
        processes.start(processes.count(shape(config.tiny), config.rollout) - 1, load_libraries, config.rollout)


def fetched(uri: str) -> Path:
    """The directory of a policy on this machine; one in object storage is downloaded, and must be complete."""
    from tasks.policy.checkpoint import read_manifest
    from tasks.policy.named import is_remote

    if not is_remote(uri):
        return Path(uri)
    folder = Path(FlyteDirectory.from_source(uri).download())
    if (folder / "policy.json").is_file():
        read_manifest(folder)
    return folder
