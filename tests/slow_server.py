"""A server that answers late: it stands before another one, passes requests on, and holds answers back."""

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OF_ONE_CONNECTION = {"connection", "transfer-encoding", "content-length", "date", "server"}


class SlowServer(ThreadingHTTPServer):
    """Before the server at `url`; answers to requests whose path has `part` in it come `seconds` late."""

    def __init__(self, url: str):
        super().__init__(("127.0.0.1", 0), _Late)
        self.behind, self.url = url, f"http://127.0.0.1:{self.server_port}"
        self.part, self.seconds = "", 0.0
        self.passed: list[str] = []  # paths of requests that the server behind has answered


class _Late(BaseHTTPRequestHandler):
    server: SlowServer

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        given = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "accept-encoding")}
        request = urllib.request.Request(self.server.behind + self.path, body or None, given, method=self.command)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            status, headers, content = answer.status, answer.headers.items(), answer.read()
        self.server.passed.append(self.path)
        if self.server.part in self.path:
            time.sleep(self.server.seconds)
        with contextlib.suppress(ConnectionError):  # whoever asked may have gone
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in OF_ONE_CONNECTION:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def slow_server(url: str) -> Iterator[SlowServer]:
    """One that runs until the block ends."""
    with SlowServer(url) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
