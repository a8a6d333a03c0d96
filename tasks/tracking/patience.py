"""Writes to MLflow what is useful but not needed: for a few seconds, and a failure ends no stage."""

from collections.abc import Callable

from tasks.time_limit import within
from tasks.tracking import console

PATIENCE = 5.0  # seconds
PROBE = 2.0  # seconds of these in which a server must answer at all


def try_to_send(what: str, uri: str, send: Callable[[], None]) -> bool:
    """Call `send`, which writes `what` to the tracking server at `uri`; whether it was done within PATIENCE.

    Otherwise one line on the console says that `what` may be missing in MLflow, and why. A server over HTTP is probed
    first, because MLflow's own retries take minutes and fill the console.
    """
    import mlflow.tracing.client  # noqa: F401  here, so that the time of the import does not count
    from mlflow.exceptions import MlflowException

    def probe_and_send() -> None:
        _probe(uri)
        send()

    try:
        within(PATIENCE, probe_and_send)
        return True
    except TimeoutError:
        reason = f"it took more than {PATIENCE:.0f} s"
    except (MlflowException, OSError, NotImplementedError) as error:
        reason = str(error) or type(error).__name__
    console.stage(f"{what} may be missing in MLflow: {reason.splitlines()[0][:200]}")
    return False


def _probe(uri: str) -> None:
    """Raise ConnectionError where a server over HTTP does not answer."""
    if not uri.startswith(("http://", "https://")):
        return
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        http_request(get_default_host_creds(uri), "/health", "GET", max_retries=0, timeout=PROBE)
    except Exception:
        raise ConnectionError("the tracking server does not answer") from None
