"""A task that only moves a directory, to measure what object storage costs in memory."""

from flytekit import task
from flytekit.types.directory import FlyteDirectory


@task
def copy(source: FlyteDirectory) -> FlyteDirectory:
    """Download a directory, and upload it again elsewhere."""
    return FlyteDirectory(source.download())
