"""Object storage on the loopback interface: moto's S3, in a process of its own.

    python tests/rehearsal/storage.py PORT FOLDER

While FOLDER/hold is there, a PUT of an object whose key contains the text in it waits, and FOLDER/held is written: a
test can then kill the pod in the middle of an upload. What was held is never stored.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def holding(serve: Wsgi, folder: Path) -> Wsgi:
    """`serve`, but for what FOLDER/hold names."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        hold = folder / "hold"
        if environ["REQUEST_METHOD"] == "PUT" and hold.exists() and hold.read_text() in environ["PATH_INFO"]:
            (folder / "held").touch()
            while hold.exists():
                time.sleep(0.02)
            start_response("503 Service Unavailable", [])
            return []
        return serve(environ, start_response)

    return answer


def main() -> None:
    """Serve until killed."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each request
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    serve = holding(DomainDispatcherApplication(create_backend_app), folder)
    run_simple("127.0.0.1", port, serve, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
