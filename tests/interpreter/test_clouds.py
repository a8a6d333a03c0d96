"""Interpreters in microVMs elsewhere, by their own packages, against servers of ours that speak their wire."""

import asyncio
from collections.abc import Iterator

import pytest

from clouds import E2B, Cloud, Together
from tasks.interpreter.e2b import E2BInterpreter
from tasks.interpreter.interface import Execution, Interpreter
from tasks.interpreter.open import open_interpreter
from tasks.interpreter.together import TogetherInterpreter
from tasks.interpreter.values import decode


@pytest.fixture(params=["e2b", "together"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    made = Cloud(E2B if request.param == "e2b" else Together)
    made.name = request.param  # type: ignore[attr-defined]
    for name, value in {
        "E2B_API_KEY": "e2b_" + "0" * 40,
        "E2B_API_URL": made.url,
        "E2B_SANDBOX_URL": made.url,
        "TOGETHER_API_KEY": "key",
        "TOGETHER_BASE_URL": made.url,
    }.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


def interpreter(cloud: Cloud) -> Interpreter:
    return E2BInterpreter() if cloud.name == "e2b" else TogetherInterpreter("python")  # type: ignore[attr-defined]


def run(cloud: Cloud, *codes: str, timeout_s: float = 30.0) -> list[Execution]:
    async def session() -> list[Execution]:
        opened = await interpreter(cloud).open()
        found = [await opened.run(code, timeout_s) for code in codes]
        await opened.close()
        await opened.close()
        return found

    return asyncio.run(session())


def test_an_execution_says_what_a_local_one_says(cloud: Cloud) -> None:
    first, second, third, fourth = run(cloud, "x = 6", "print(x, 'é'); (x * 7, b'1')", "1 / 0", "'y' * 200_000")
    assert (first.status, first.stdout) == ("ok", "")
    assert (second.stdout, decode(second.value), second.shown) == ("6 é\n", (42, b"1"), "(42, b'1')")
    assert (third.status, third.error) == ("error", "ZeroDivisionError: division by zero")
    assert 'File "<code>", line 1' in third.stderr
    assert decode(fourth.value) == "y" * 200_000 and fourth.truncated
    assert cloud.kernels == {}  # the sandbox was ended


def test_the_key_goes_to_the_service_and_sandboxes_have_an_end(cloud: Cloud) -> None:
    run(cloud, "1")
    path, headers, given = cloud.seen[0]
    if path == "/v2/sandboxes":
        assert headers["x-api-key"] == "e2b_" + "0" * 40
        assert (given["templateID"], given["timeout"]) == ("code-interpreter-v1", 3600)
        assert given["allow_internet_access"] is False
    else:
        assert (path, headers["authorization"]) == ("/v1/sandboxes", "Bearer key")
        assert (given["snapshot_alias"], given["ttl"]) == ("python", 3600)


def test_a_limit_an_exit_and_noise_end_the_session(cloud: Cloud) -> None:
    late, after = run(cloud, "while True: pass", "1", timeout_s=0.5)
    assert (late.status, late.error, after.status) == ("timeout", "the code ran longer than 0.5 s", "killed")
    assert run(cloud, "import os; os._exit(0)")[0].status in ("killed", "unavailable")
    noise = "import sys; sys.__stdout__.write('noise\\n'); sys.__stdout__.flush()"
    if cloud.name == "together":  # type: ignore[attr-defined]
        assert run(cloud, noise)[0].status == "killed"


def test_a_service_without_room_or_that_is_gone_is_unavailable(cloud: Cloud) -> None:
    cloud.full = True
    (found,) = run(cloud, "1")
    assert found.status == "unavailable" and "no session can be opened" in found.error
    cloud.full = False

    async def gone() -> Execution:
        session = await interpreter(cloud).open()
        assert (await session.run("1", 30)).status == "ok"
        for name in list(cloud.kernels):
            cloud.kill(name)
        return await session.run("1", 30)

    assert asyncio.run(gone()).status == "unavailable"


def test_a_missing_key_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting, key in (("e2b", "E2B_API_KEY"), ("together", "TOGETHER_API_KEY")):
        monkeypatch.delenv(key, raising=False)
        with pytest.raises(ValueError, match=f'^interpreter is "{setting}" and {key} is not set; it needs a key of '):
            open_interpreter(setting)
