"""What is nice to have in MLflow is tried for a few seconds: no stage fails, or waits long, for want of it."""

import threading
from collections.abc import Callable

from tasks.tracking import console

PATIENCE = 5.0  # seconds
PROBE = 2.0  # seconds of these in which a server says that it is there


def try_to_send(what: str, uri: str, send: Callable[[], None]) -> bool:
    """Call `send`, which writes `what` to the tracking server at `uri`; whether it came to its end within PATIENCE.

    Where it did not, one line on the console says that `what` may be missing in MLflow, and why. A server over HTTP
    is asked first whether it is there, because MLflow's own retries take minutes and fill the console.
    """
    # The time that an import takes says nothing of the server.
    import mlflow.tracing.client  # noqa: F401
    from mlflow.exceptions import MlflowException

    errors: list[Exception] = []

    def attempt() -> None:
        try:
            _probe(uri)
            send()
        except Exception as error:
            errors.append(error)

    # In a thread, because nothing else bounds the time that a name server or a locked database takes.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not thread.is_alive() and not errors:
        return True
    if errors and not isinstance(errors[0], MlflowException | OSError | NotImplementedError):
        raise errors[0]  # our own mistake, no server's
    said = str(errors[0]) or type(errors[0]).__name__ if errors else f"it took more than {PATIENCE:.0f} s"
    console.stage(f"{what} may be missing in MLflow: {said.splitlines()[0][:200]}")
    return False


def _probe(uri: str) -> None:
    if not uri.startswith(("http://", "https://")):
        return
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        http_request(get_default_host_creds(uri), "/health", "GET", max_retries=0, timeout=PROBE)
    except Exception:
        raise ConnectionError("the tracking server does not answer") from None
