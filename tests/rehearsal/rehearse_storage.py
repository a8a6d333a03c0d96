"""The memory that a large directory costs a pod that downloads it from object storage and uploads it again."""

import hashlib
import random
from collections import OrderedDict
from pathlib import Path

from flyteidl.core.literals_pb2 import LiteralMap
from flyteidl.core.tasks_pb2 import TaskTemplate
from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.tools.translator import get_serializable
from flytekit.types.directory import FlyteDirectory

from rehearsal.cluster import Cluster, Storage
from rehearsal.large import copy
from rehearsal.values import BUCKET, literal, uri_of

MIB = 2**20
SIZES = {"small": MIB, "large": 512 * MIB}
# flytekit sends a file in parts, ten at a time, and each is held twice: by default of 25 MiB, 500 MiB a file. Parts of
# 5 MiB, the least that S3 takes, show with a smaller file that it is the parts that count.
PART = 5 * MIB


def put_directory(storage: Storage, name: str, size: int, folder: Path) -> str:
    """A file of random bytes and a small one beside it, in object storage; returns the digest of the former."""
    path, draw, digest = folder / name, random.Random(0), hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(0, size, MIB):
            block = draw.randbytes(MIB)
            digest.update(block)
            file.write(block)
    storage.client.upload_file(str(path), BUCKET, f"{name}/weights")
    storage.put(f"{name}/beside/config", b"{}")
    path.unlink()
    return digest.hexdigest()


def test_a_large_directory_needs_little_memory(cluster: Cluster, tmp_path: Path) -> None:
    settings = SerializationSettings(ImageConfig.auto(img_name="registry.invalid/it:1"), "grpo", "development", "1")
    template: TaskTemplate = get_serializable(OrderedDict(), settings, copy).template.to_flyte_idl()
    own = {"PYTHONPATH": str(Path(__file__).parents[1]), "_F_P_WRITE_CHUNK_SIZE": str(PART)}
    cluster.settings = {**cluster.settings, **own}
    peaks = {}
    for name, size in SIZES.items():
        digest = put_directory(cluster.storage, name, size, tmp_path)
        source = literal(FlyteDirectory.from_source(f"s3://{BUCKET}/{name}"))
        outputs = cluster.execution(name).run(template, LiteralMap(literals={"source": source}), "n0")
        folder = cluster.storage.fetch(uri_of(outputs.literals["o0"]), tmp_path / name)
        with (folder / "weights").open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest
        assert (folder / "beside" / "config").read_bytes() == b"{}"
        (done,) = (d for d in cluster.done if d.inputs.literals["source"] == source)
        peaks[name] = done.attempts[0].peak
    grown = peaks["large"] - peaks["small"]
    print(f"{SIZES['large'] / MIB:.0f} MiB down and up: {grown / MIB:.0f} MiB of memory")
    assert grown < 25 * PART
