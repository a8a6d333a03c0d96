"""Servers that speak the wire of E2B and of Together as their packages do, over kernels that are processes here.

They run what the tests send them, without a wall, and so only what the tests themselves wrote.
"""

import json
import re
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_KERNEL = """
import contextlib, io, json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    out, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(out):
            exec(json.loads(line), names)
    except BaseException as raised:
        error = [type(raised).__name__, str(raised)]
    print(json.dumps([out.getvalue(), error]), flush=True)
"""


class Cloud:
    """A server on a free port, with the processes of its sandboxes. `full`: no new sandbox is to be had."""

    def __init__(self, handler: type["Handler"]) -> None:
        self.kernels: dict[str, subprocess.Popen[str]] = {}
        self.full, self.seen = False, []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (handler,), {"cloud": self}))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def start(self, name: str, code: str) -> None:
        """A Python that runs `code`, as the sandbox `name`."""
        line = [sys.executable, "-u", "-c", code]
        self.kernels[name] = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def kill(self, name: str) -> None:
        """End it."""
        if kernel := self.kernels.pop(name, None):
            kernel.kill()
            kernel.wait()

    def close(self) -> None:
        """End all."""
        for name in list(self.kernels):
            self.kill(name)
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    """What both have in common."""

    cloud: Cloud
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""

    def body(self) -> Any:
        """The request's JSON."""
        length = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(length)) if length else {}

    def answer(self, status: int, content: Any = None) -> None:
        """A whole response."""
        data = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, lines: Any) -> None:
        """A response whose lines come one by one, until the connection ends."""
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for line in lines:
            self.wfile.write(line.encode())
            self.wfile.flush()
        self.close_connection = True


class E2B(Handler):
    """api.e2b.dev and a sandbox's own address in one."""

    def do_GET(self) -> None:
        self.answer(204 if self.path == "/health" and self.cloud.kernels else 502)

    def do_POST(self) -> None:
        given = self.body()
        self.cloud.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}, given))
        if self.path == "/v2/sandboxes" and self.cloud.full:
            self.answer(429, {"code": 429, "message": "no more sandboxes"})
        elif self.path == "/v2/sandboxes":
            name = uuid.uuid4().hex[:20]
            self.cloud.start(name, _KERNEL)
            made = {"templateID": given["templateID"], "sandboxID": name, "clientID": "1", "envdVersion": "0.6.2"}
            self.answer(201, made | {"envdAccessToken": "token", "domain": None})
        elif self.path == "/execute" and self.headers["E2b-Sandbox-Id"] in self.cloud.kernels:
            self.stream(self.executed(self.headers["E2b-Sandbox-Id"], given["code"]))
        else:
            self.answer(502, {"message": "The sandbox was not found", "code": 502})

    def executed(self, name: str, code: str):
        """The events of an execution, as lines of JSON."""
        kernel = self.cloud.kernels[name]
        assert kernel.stdin and kernel.stdout
        kernel.stdin.write(json.dumps(code) + "\n")
        out, error = json.loads(kernel.stdout.readline() or '["", ["KernelDied", ""]]')
        for at in range(0, len(out), 50_000):
            yield json.dumps({"type": "stdout", "text": out[at : at + 50_000], "timestamp": 1}) + "\n"
        if error:
            yield json.dumps({"type": "error", "name": error[0], "value": error[1], "traceback": ""}) + "\n"
        yield json.dumps({"type": "number_of_executions", "execution_count": 1}) + "\n"

    def do_DELETE(self) -> None:
        self.cloud.kill(self.path.rpartition("/")[2])
        self.answer(204)


class Together(Handler):
    """The management of sandboxes, under /v1, and the agent in a sandbox, under /api/v1."""

    def sandbox(self, name: str, status: str) -> dict[str, Any]:
        """A sandbox as the service describes it."""
        given = {"id": name, "status": status, "snapshot_id": name, "cpu": 1, "memory_bytes": 2**31, "tags": {}}
        now, rest = "2026-01-01T00:00:00+00:00", ("organization_id", "ttl", "termination_policy", "terminated_at")
        given |= {
            "project_id": "1",
            "created_at": now,
            "started_at": now,
            "updated_at": now,
            "status_reason": "cold_started",
        }
        given |= dict.fromkeys((*rest, "resized_at", "recovery_at"))
        return given | {"agent": {"url": self.cloud.url, "token": "token", "version": "1"}}

    def do_GET(self) -> None:
        if found := re.fullmatch(r"/api/v1/stream/execs/(.+)/io", self.path):
            self.stream(self.output(found[1]))
        elif self.path == "/api/v1/execs" and self.cloud.kernels:
            self.answer(200, {"execs": []})
        else:
            self.answer(500, {"code": 500, "message": "gone"})

    def output(self, name: str):
        """What the process writes, as server-sent events in pieces that end anywhere."""
        kernel = self.cloud.kernels[name]
        assert kernel.stdout
        while line := kernel.stdout.readline():
            for at in range(0, len(line), 30_000):
                yield f"data: {json.dumps({'type': 'stdout', 'output': line[at : at + 30_000], 'sequence': 1})}\n\n"
        yield f"data: {json.dumps({'type': 'exit', 'output': '', 'sequence': 2, 'exitCode': kernel.wait()})}\n\n"

    def do_POST(self) -> None:
        given = self.body()
        self.cloud.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}, given))
        if self.path == "/v1/sandboxes" and self.cloud.full:
            self.answer(403, {"code": "forbidden", "message": "no more sandboxes", "errors": []})
        elif self.path == "/v1/sandboxes":
            self.answer(201, self.sandbox(str(uuid.uuid4()), "running"))
        elif found := re.fullmatch(r"/v1/sandboxes/(.+)/(terminate|wait)", self.path):
            for name in list(self.cloud.kernels):
                self.cloud.kill(name)
            self.answer(200, self.sandbox(found[1], "terminated"))
        elif self.path == "/api/v1/execs":
            name = uuid.uuid4().hex
            assert (given["command"], given["args"][:2], given["autostart"]) == ("python3", ["-u", "-c"], True)
            self.cloud.start(name, given["args"][2])
            self.answer(201, self.process(name))
        elif found := re.fullmatch(r"/api/v1/execs/(.+)/io", self.path):
            kernel = self.cloud.kernels[found[1]]
            assert kernel.stdin and given["type"] == "stdin"
            kernel.stdin.write(given["input"])
            self.answer(200, self.process(found[1]))

    def process(self, name: str) -> dict[str, Any]:
        """A process as the agent describes it."""
        return {
            "id": name,
            "command": "python3",
            "args": [],
            "status": "RUNNING",
            "pid": 7,
            "pty": False,
            "exitCode": 0,
        }
