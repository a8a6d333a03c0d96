"""Checkpoints by their name on the Hugging Face hub, into the user's ordinary cache.

    look ─► config.json, tokenizer, names of the weight files ─► checked in `create_run` ─► fetch ─► weights too

Whoever was fetched before is found again without a network. HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are the
user's, as huggingface_hub reads them.
"""

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 10.0
NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
SMALL = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
WEIGHTS = "*.safetensors"
FOLDERS = "*/*"  # of a repository: the same weights in other formats
ALLOWED = (
    'the name of a public repository, or of one that your HF_TOKEN opens, such as "Qwen/Qwen2.5-1.5B-Instruct", '
    "or a directory with a checkpoint"
)

_offline_by_us = False


def stay_offline() -> None:
    """From here on transformers and vLLM ask no hub about policies, which are directories; `fetch` still does.

    A user's own HF_HUB_OFFLINE stays, for `fetch` too.
    """
    global _offline_by_us
    if "HF_HUB_OFFLINE" not in os.environ:
        os.environ["HF_HUB_OFFLINE"] = "1"
        _offline_by_us = True


def is_hub_name(policy: str) -> bool:
    """Whether `policy` is written as `owner/name` or `owner/name@revision`, and no directory is called so."""
    return NAME.fullmatch(policy) is not None and not Path(policy).exists()


def look(policy: str) -> tuple[Path, list[str]]:
    """A folder with all of a repository's checkpoint but its weights, and the names of those.

    Raises ValueError, in one sentence, for what `fetch` refuses.
    """
    with _hub(policy) as (repo, revision):
        found = _ask(repo, revision)
        if found is None:  # nobody answers: perhaps all is here already
            folder = _download(repo, revision, (*SMALL, WEIGHTS), here=True)
            return folder, [path.name for path in folder.glob(WEIGHTS)]
        names = [file.rfilename for file in found.siblings or []]
        weights = [name for name in names if Path(name).match(WEIGHTS) and "/" not in name]
        return _download(repo, revision, SMALL), weights


def fetch(policy: str) -> Path:
    """A folder with a repository's config.json, tokenizer and safetensors, downloaded where they are not there yet.

    Raises ValueError, in one sentence and within about 10 s, for a hub that does not answer, a repository or revision
    that is not there, and one that asks for a token.
    """
    with _hub(policy) as (repo, revision):
        found = _ask(repo, revision)
        if found is None:
            return _download(repo, revision, (*SMALL, WEIGHTS), here=True)
        return _download(repo, revision, (*SMALL, WEIGHTS))


def _ask(repo: str, revision: str | None) -> Any:
    """What the hub says of a repository, None where there is no answer; once, as its own retries take a minute."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(HfApi().model_info(repo, revision=revision, timeout=ANSWER_SECONDS / 2))
        except Exception as error:
            answers.append(error)

    # In a thread, because nothing else bounds the time that a name server takes.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    answer = answers[0] if answers else None
    if isinstance(answer, httpx.TransportError | OfflineModeIsEnabled):
        return None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _download(repo: str, revision: str | None, patterns: tuple[str, ...], *, here: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            repo, revision=revision, allow_patterns=list(patterns), ignore_patterns=FOLDERS, local_files_only=here
        )
    )


@contextlib.contextmanager
def _hub(policy: str) -> Iterator[tuple[str, str | None]]:
    """Repository and revision of a name, and for the block the hub as the user set it; its errors as one sentence."""
    import httpx
    from huggingface_hub import constants, errors

    match = NAME.fullmatch(policy)
    assert match is not None
    was = constants.HF_HUB_OFFLINE
    if _offline_by_us:  # huggingface_hub reads the variable once, when it is imported
        constants.HF_HUB_OFFLINE = False
    try:
        yield match["repo"], match["revision"]
    except errors.GatedRepoError:
        told = f"which is gated: accept its terms at {constants.ENDPOINT}/{match['repo']} and set HF_TOKEN"
    except errors.RevisionNotFoundError:
        told = f"and {constants.ENDPOINT} has no revision {match['revision']} of it"
    except errors.RepositoryNotFoundError:
        told = f"which is no directory, and no repository that {constants.ENDPOINT} shows you"
    except errors.LocalEntryNotFoundError:
        told = f"which is no directory, and {constants.ENDPOINT} does not answer (HF_HUB_OFFLINE, or no network)"
    except (errors.HfHubHTTPError, httpx.HTTPError) as error:
        told = f"and {constants.ENDPOINT} did not hand it out ({str(error).splitlines()[0]})"
    else:
        return
    finally:
        constants.HF_HUB_OFFLINE = was
    raise ValueError(f'policy is "{policy}", {told}; allowed: {ALLOWED}.')
