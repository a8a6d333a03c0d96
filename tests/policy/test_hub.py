"""Policies by their name on the hub, from a server on the loopback interface that answers like the hub."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from checkpoints import make_checkpoint
from tasks.policy.checkpoint import digest, read_manifest
from tasks.policy.hub import is_hub_name

ROOT = Path(__file__).parents[2]
SHA = {"main": "0" * 40, "v1": "1" * 40}
LOOK = """
from tasks.config import GrpoConfig
from tasks.run.create import check_inputs
options = dict(run_name="", environment="blackjack", environment_url="", iterations=1, seed=0, lag=0)
print(check_inputs(dict(options, policy={policy!r}), GrpoConfig())[1]["model_type"])
"""
FETCH = """
from runs import a_run
from tasks.config import GrpoConfig
from tasks.policy.task import initial_policy
print(initial_policy(run=a_run(uri="sqlite:///mlflow.db", policy={policy!r}), config=GrpoConfig()).path)
"""


class Hub:
    """Repositories as folders of files, and which files were asked for."""

    def __init__(self, folder: Path):
        self.repositories = folder
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def answer(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_GET(self) -> None:
                parts = self.path.split("?")[0].strip("/").split("/")
                api = parts[:2] == ["api", "models"]
                owner, name, *rest = parts[2:] if api else parts
                repository = hub.repositories / owner / name
                if not repository.is_dir():
                    return self.answer(404, b"", X_Error_Code="RepoNotFound")
                files = {str(f.relative_to(repository)): f for f in repository.rglob("*") if f.is_file()}
                if not api:  # resolve, revision, file
                    if owner == "gated":
                        return self.answer(403, b"", X_Error_Code="GatedRepo")
                    hub.asked.append(f"{self.command} {'/'.join(rest[2:])}")
                    body = files["/".join(rest[2:])].read_bytes()
                    etag = f'"{hashlib.sha1(body).hexdigest()}"'
                    return self.answer(200, body, ETag=etag, X_Repo_Commit=rest[1])
                if rest[:1] == ["tree"]:
                    listing = [
                        {"type": "file", "path": p, "size": f.stat().st_size, "oid": p} for p, f in files.items()
                    ]
                    return self.answer(200, json.dumps(listing).encode())
                sha = SHA.get(rest[1] if rest else "main")
                if sha is None:
                    return self.answer(404, b"", X_Error_Code="RevisionNotFound")
                known = {"id": f"{owner}/{name}", "sha": sha, "siblings": [{"rfilename": path} for path in files]}
                return self.answer(200, json.dumps(known).encode())

            do_HEAD = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def hub(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    whole = make_checkpoint(tiny_policy, folder / "people" / "whole", {"model_type": "llama"})
    (whole / "policy.json").unlink()
    for useless in ("pytorch_model.bin", "README.md", "original/consolidated.safetensors", "original/params.json"):
        (whole / useless).parent.mkdir(exist_ok=True)
        (whole / useless).write_text("{}")
    shutil.copytree(whole, folder / "gated" / "whole")
    unsafe = shutil.copytree(whole, folder / "people" / "unsafe")
    (unsafe / "model.safetensors").unlink()
    other = shutil.copytree(whole, folder / "people" / "other")
    (other / "config.json").write_text('{"model_type": "gemma3_text"}')
    served = Hub(folder)
    yield served
    served.server.shutdown()


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a process of its own, since huggingface_hub reads its settings once; its cache is new each test."""

    def run(code: str, endpoint: str, **settings: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "FLYTE", "MLFLOW"))}
        settings = {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "PYTHONPATH": f"{ROOT}:{ROOT}/tests",
            **settings,
        }
        environment = {**kept, "FLYTE_LOCAL_CACHE_ENABLED": "false", **settings}
        line = [sys.executable, "-c", code]
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    return run


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


Python = Callable[..., subprocess.CompletedProcess[str]]


def test_before_any_work_only_the_small_files_are_looked_at(hub: Hub, python: Python) -> None:
    hub.asked.clear()
    done = python(LOOK.format(policy="people/whole"), hub.endpoint)
    assert done.stdout.split() == ["llama"], done.stderr
    assert {asked.split()[1] for asked in hub.asked} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }


def test_a_policy_from_the_hub_is_its_checkpoint(hub: Hub, python: Python, tmp_path: Path) -> None:
    hub.asked.clear()
    # In a process that has opened an engine, where transformers and vLLM do not ask the hub.
    engine_first = "from tasks.rollout import engine\nengine._set_environment(engine.RolloutConfig())\n"
    engine_first += "import huggingface_hub.constants as c; assert c.HF_HUB_OFFLINE\n"
    done = python(engine_first + FETCH.format(policy="people/whole@v1"), hub.endpoint)
    folder = Path(done.stdout.split()[-1])
    assert folder == tmp_path / "runs" / "monday" / "policies" / "00000", done.stderr
    assert read_manifest(folder).digest == digest(hub.repositories / "people" / "whole")
    assert not (folder / "model.safetensors").is_symlink()
    assert sum(asked == "GET model.safetensors" for asked in hub.asked) == 1
    assert not any("bin" in asked or "original" in asked or "README" in asked for asked in hub.asked)

    again = "from tasks.policy.hub import fetch\nprint(fetch('people/whole@v1', weights=True)[0])"
    for settings in ({"HF_HUB_OFFLINE": "1"}, {}):  # again without a network, by the user's wish or not
        done = python(again, hub.endpoint if settings else "http://127.0.0.1:9", **settings)
        assert done.returncode == 0, done.stderr
        assert digest(Path(done.stdout.strip())) == read_manifest(folder).digest


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("people/nobody", 'policy is "people/nobody", which is no directory, and no repository that {hub} shows you; '),
        ("people/whole@v9", 'policy is "people/whole@v9", and {hub} has no revision v9 of it; allowed: '),
        ("gated/whole", 'policy is "gated/whole", which is gated: accept its terms at {hub}/gated/whole and set HF_TO'),
        ("people/unsafe", 'policy is "people/unsafe", which has no *.safetensors weights; allowed: '),
        ("people/other", 'policy is "people/other" of architecture gemma3_text; allowed: '),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence(hub: Hub, python: Python, policy: str, sentence: str) -> None:
    done = python(LOOK.format(policy=policy), hub.endpoint)
    assert last_line(done).startswith(f"ValueError: {sentence.format(hub=hub.endpoint)}"), done.stderr
    assert "allowed: " in last_line(done) and last_line(done).endswith(".")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://nowhere.invalid"])
def test_without_a_network_it_takes_seconds_to_say_so(python: Python, endpoint: str) -> None:
    started = time.monotonic()
    done = python(LOOK.format(policy="people/whole"), endpoint)
    assert time.monotonic() - started < 30  # some of it for Python's imports
    assert last_line(done).startswith(
        f'ValueError: policy is "people/whole", which is no directory, and {endpoint} does not answer'
    )


def test_which_names_are_names_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("Qwen/Qwen2.5-1.5B-Instruct") and is_hub_name("people/whole@v1")
    for other in ("tiny", "runs/monday/policies/00032", "/people/whole", "../whole", "people/", "people/a b"):
        assert not is_hub_name(other)
    (tmp_path / "people" / "whole").mkdir(parents=True)
    assert not is_hub_name("people/whole")
