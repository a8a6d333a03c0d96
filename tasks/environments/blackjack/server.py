"""The environment as a server: `python -m tasks.environments.blackjack.server --port 8000`.

One WebSocket session holds one game at a time; a client opens as many sessions as it plays games at once.
"""

import argparse

import uvicorn
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app

from tasks.environments.blackjack.environment import BlackJackEnvironment
from tasks.environments.blackjack.models import BlackJackAction, BlackJackObservation
from tasks.environments.open_files import allow_many_open_files

_FILES_BESIDE_SESSIONS = 64


def build_app(max_sessions: int) -> FastAPI:
    """OpenEnv's application, for this many sessions at once; one more is refused with CAPACITY_REACHED."""
    return create_app(
        BlackJackEnvironment,
        BlackJackAction,
        BlackJackObservation,
        env_name="blackjack",
        max_concurrent_envs=max_sessions,
    )


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tasks.environments.blackjack.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: %(default)s)")
    parser.add_argument("--max-sessions", type=int, default=2048, help="games at once (default: %(default)s)")
    given = parser.parse_args(arguments)
    if not 1 <= given.port <= 65535:
        parser.error(f"--port is {given.port}; allowed: 1 to 65535.")
    if given.max_sessions < 1:
        parser.error(f"--max-sessions is {given.max_sessions}; allowed: 1 or more.")
    most = allow_many_open_files() - _FILES_BESIDE_SESSIONS
    if given.max_sessions > most:
        parser.error(f"--max-sessions is {given.max_sessions}; allowed: at most {most}, by the limit on open files.")
    print(f"BlackJack at http://{given.host}:{given.port}, {given.max_sessions} games at once", flush=True)
    uvicorn.run(
        build_app(given.max_sessions),
        host=given.host,
        port=given.port,
        log_level="warning",  # a line for each session opened and closed otherwise
        ws_per_message_deflate=False,  # compressing messages of 200 bytes costs more than sending them
        ws_ping_timeout=120.0,  # a client busy with its policy may answer late, and must not lose its games
    )


if __name__ == "__main__":
    main()
