"""Checkpoints by their name on the Hugging Face hub, through the user's ordinary cache.

    fetch ─► config.json, tokenizer, names of the weight files ─► checked in `create_run` ─► fetch with weights

What was fetched before is found again without a network. HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are the
user's, as huggingface_hub reads them.
"""

import os
import re
from pathlib import Path

from tasks.policy import refuse
from tasks.time_limit import within

ANSWER_SECONDS = 10.0
NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
SMALL = ("*.json", "*.jinja", "tokenizer.model", "merges.txt")
WEIGHTS = "*.safetensors"
FOLDERS = "*/*"  # of a repository: the same weights in other formats
ALLOWED = (
    'the name of a public repository, or of one that your HF_TOKEN opens, such as "Qwen/Qwen2.5-1.5B-Instruct", '
    "or a directory with a checkpoint"
)

_set_offline = False


def stay_offline() -> None:
    """From here on transformers and vLLM, whose policies are directories, do not ask the hub; `fetch` still does.

    A user's own HF_HUB_OFFLINE stays, for `fetch` too.
    """
    global _set_offline
    if "HF_HUB_OFFLINE" not in os.environ:
        os.environ["HF_HUB_OFFLINE"] = "1"
        _set_offline = True


def is_hub_name(policy: str) -> bool:
    """Whether `policy` is written as `owner/name` or `owner/name@revision`, and is no directory."""
    return NAME.fullmatch(policy) is not None and not Path(policy).exists()


def fetch(policy: str, *, weights: bool) -> tuple[Path, list[str]]:
    """A folder with a repository's config.json and tokenizer, and with `weights` its safetensors, and their names.

    What is not there yet is downloaded; where the hub does not answer, all of it must be there, with the weights.
    Raises ValueError, within about 10 s, for a hub, a repository or a revision that is not there or not open.
    """
    import httpx
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    match = NAME.fullmatch(policy)
    assert match is not None
    repo, revision, patterns = match["repo"], match["revision"], [*SMALL, *([WEIGHTS] if weights else [])]
    was = constants.HF_HUB_OFFLINE
    if _set_offline:  # huggingface_hub reads the variable once, when it is imported
        constants.HF_HUB_OFFLINE = False
    try:
        try:  # once, because the hub's own retries take a minute
            info = within(ANSWER_SECONDS, lambda: HfApi().model_info(repo, revision=revision, timeout=5))
            names = [file.rfilename for file in info.siblings or []]
        except (httpx.TransportError, errors.OfflineModeIsEnabled, TimeoutError):
            names, patterns = None, [*SMALL, WEIGHTS]
        wanted = {"allow_patterns": patterns, "ignore_patterns": FOLDERS, "local_files_only": names is None}
        found = Path(snapshot_download(repo, revision=revision, **wanted))
        names = [path.name for path in found.glob(WEIGHTS)] if names is None else names
        return found, [name for name in names if Path(name).match(WEIGHTS) and "/" not in name]
    except errors.GatedRepoError:
        why = f"which is gated: accept its terms at {constants.ENDPOINT}/{repo} and set HF_TOKEN"
    except errors.RevisionNotFoundError:
        why = f"and {constants.ENDPOINT} has no revision {revision} of it"
    except errors.RepositoryNotFoundError:
        why = f"which is no directory, and no repository that {constants.ENDPOINT} shows you"
    except errors.LocalEntryNotFoundError:
        why = f"which is no directory, and {constants.ENDPOINT} does not answer (HF_HUB_OFFLINE, or no network)"
    except (errors.HfHubHTTPError, httpx.HTTPError) as error:
        why = f"and {constants.ENDPOINT} did not hand it out ({str(error).splitlines()[0]})"
    finally:
        constants.HF_HUB_OFFLINE = was
    refuse(policy, f", {why}", ALLOWED)
