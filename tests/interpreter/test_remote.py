"""The interpreter as an OpenEnv server: OpenEnv's own checks, sessions over it, servers that are none or go away."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from openenv.cli.commands.validate import validate_running_environment
from openenv.core.generic_client import GenericEnvClient

from servers import Server
from tasks.interpreter.interface import Execution
from tasks.interpreter.open import open_interpreter
from tasks.interpreter.remote import RemoteInterpreter, read_execution
from tasks.interpreter.values import decode

ROOT = str(Path(__file__).parents[2])


def make_server(folder: Path, *arguments: str) -> Server:
    line = [sys.executable, "-m", "tasks.interpreter.serve", "--port", "{port}", *arguments]
    return Server(line, folder, PYTHONPATH=ROOT)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = make_server(tmp_path_factory.mktemp("interpreter"), "--max-sessions", "12")
    yield server.start().url
    server.kill()


def test_openenv_finds_it_valid(url: str) -> None:
    report = validate_running_environment(url, timeout_s=30)
    assert report["passed"], report
    assert len(report["criteria"]) >= 6


def test_sessions_over_a_server(url: str) -> None:
    interpreter = open_interpreter(f"openenv:{url}")
    assert interpreter is open_interpreter(f"openenv:{url}")
    assert interpreter.description == f"the OpenEnv server at {url}"

    async def one(number: int) -> tuple[Execution, ...]:
        session = await interpreter.open()
        found = [await session.run(code, 20) for code in (f"x = {number}", "print(x); (x, b'1')", "1 / 0")]
        await session.close()
        await session.close()
        return (*found, await session.run("1", 20))

    async def several() -> list[tuple[Execution, ...]]:
        return await asyncio.gather(*map(one, range(10)))

    for number, (first, second, third, closed) in enumerate(asyncio.run(several())):
        assert first.status == "ok" and second.stdout == f"{number}\n" and decode(second.value) == (number, b"1")
        assert third.error == "ZeroDivisionError: division by zero" and "line 1" in third.stderr
        assert (closed.status, closed.error) == ("killed", "the session was closed")


def test_a_limit_and_an_exit_end_the_session(url: str) -> None:
    async def both() -> list[Execution]:
        found = []
        for code in ("while True: pass", "import os; os._exit(0)"):
            session = await RemoteInterpreter(url).open()
            found += [await session.run(code, 0.3), await session.run("1", 1)]
        return found

    assert [each.status for each in asyncio.run(both())] == ["timeout", "killed", "killed", "killed"]


def test_a_full_server_is_unavailable_and_closed_sessions_make_room(url: str) -> None:
    async def fill() -> tuple[list[str], str]:
        interpreter = RemoteInterpreter(url)
        sessions = [await interpreter.open() for _ in range(13)]
        statuses = [(await session.run("1", 20)).status for session in sessions]
        for session in sessions:
            await session.close()
        for _ in range(100):  # the server sees the end of a session a moment later
            again = await interpreter.open()
            found = await again.run("1", 20)
            await again.close()
            if found.status == "ok":
                break
            await asyncio.sleep(0.1)
        return statuses, found.status

    statuses, again = asyncio.run(fill())
    assert sorted(statuses) == ["ok"] * 12 + ["unavailable"] and again == "ok"


def test_a_stock_client_runs_code(url: str) -> None:
    async def run() -> tuple[dict, dict]:
        async with GenericEnvClient(url) as client:
            with pytest.raises(RuntimeError, match="no session is open; call reset first"):
                await client.step({"code": "1"})
            await client.reset()
            with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
                await client.step({"code": "1", "timeout_s": -1})
            return (await client.step({"code": "6 * 7"})).observation, await client.state()

    seen, state = asyncio.run(run())
    assert (seen["status"], seen["value"], state["step_count"]) == ("ok", "42", 1)


def test_a_server_that_goes_away_is_unavailable(tmp_path: Path) -> None:
    server = make_server(tmp_path).start()

    async def whole() -> list[Execution]:
        interpreter = RemoteInterpreter(server.url)
        session = await interpreter.open()
        running = asyncio.create_task(session.run("import time; time.sleep(60)", 60))
        await asyncio.sleep(0.3)
        server.kill()
        return [await running, await session.run("1", 1), await (await interpreter.open()).run("1", 1)]

    assert {each.status for each in asyncio.run(whole())} == {"unavailable"}


class Other(BaseHTTPRequestHandler):
    """Another server, whose schema is of a game."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"action": {"properties": {"message": {}}}}).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""


def test_what_is_no_interpreter_is_refused(closed_port: int) -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{other.server_port}"
    with pytest.raises(
        ValueError, match=f'^interpreter is "openenv:{address}": what answers there is no interpreter; '
    ):
        open_interpreter(f"openenv:{address}")
    other.shutdown()
    other.server_close()
    with pytest.raises(ConnectionError, match="nobody answers there; start one with python -m"):
        open_interpreter(f"openenv:http://127.0.0.1:{closed_port}")
    for wrong in ("openenv", "openenv:", "openenv:localhost:8000", "openenv:ws://localhost"):
        with pytest.raises(ValueError, match="it needs the form openenv:http://host:port"):
            open_interpreter(wrong)


def test_what_a_server_says_is_checked() -> None:
    good = {"status": "ok", "stdout": "7\n", "value": "42", "seconds": 0.5, "truncated": False, "reward": 1}
    assert read_execution(good) == Execution("ok", stdout="7\n", value="42", seconds=0.5)
    wrong = ({"status": "great"}, {"stdout": 7}, {"stdout": "x" * 20_000}, {"seconds": float("nan")}, {"seconds": "1"})
    for change in (*wrong, {"truncated": 1}, {"cpu_seconds": -1.0}, {"value": None}):
        with pytest.raises(ValueError, match="the server's answer is no execution"):
            read_execution(good | change)


def test_server_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    from tasks.interpreter.serve import main

    for arguments in (["--port", "0"], ["--max-sessions", "0"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert f"{arguments[0]} is 0; allowed: 1 to" in capsys.readouterr().err
