"""Policy directories: what is refused in one sentence, and what a seal finds."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.policy.checkpoint import adopt, check_checkpoint, digest, read_info, seal


@pytest.fixture
def policy(tiny_policy: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(tiny_policy, tmp_path / "policy")


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def remove(*patterns: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for pattern in patterns:
            for path in folder.glob(pattern):
                path.unlink()

    return change


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (shutil.rmtree, ", which is no directory; allowed: "),
        (remove("config.json"), ", which has no config.json; allowed: "),
        (change_config(model_type="llama"), " of architecture llama; allowed: "),
        (change_config(model_type="qwen2"), " of architecture qwen2; allowed: "),
        (remove("tokenizer.json"), ", which has no tokenizer.json; allowed: "),
        (remove("chat_template.jinja"), ", whose tokenizer has no chat template; allowed: "),
        (remove("*.safetensors"), ", which has no *.safetensors weights; allowed: "),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_sentence(
    policy: Path, tmp_path: Path, spoil: Callable[[Path], None], complaint: str
) -> None:
    assert check_checkpoint(policy)["model_type"] == "qwen3"
    spoil(policy)
    with pytest.raises(ValueError) as caught:
        adopt(policy, tmp_path / "adopted")
    sentence = str(caught.value)
    assert sentence.startswith(f'policy is "{policy}"{complaint}')
    assert '"tiny" or a directory with a Hugging Face checkpoint of qwen3' in sentence
    assert sentence.endswith(".") and "\n" not in sentence
    assert not (tmp_path / "adopted").exists()


def test_a_template_within_the_tokenizers_config_will_do(policy: Path) -> None:
    template = (policy / "chat_template.jinja").read_text()
    remove("chat_template.jinja")(policy)
    path = policy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    check_checkpoint(policy)


def flip_a_bit_of_the_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        flip_a_bit_of_the_weights,
        change_config(rope_theta=1.0),
        lambda folder: shutil.copy(folder / "model.safetensors", folder / "more.safetensors"),
    ],
)
def test_weights_that_were_changed_are_found(policy: Path, spoil: Callable[[Path], None]) -> None:
    assert read_info(policy).version == 0
    spoil(policy)
    with pytest.raises(ValueError, match=r"allowed: weights that fit its policy.json, these were changed\.$"):
        read_info(policy)


def test_a_directory_without_its_seal_is_unfinished(policy: Path) -> None:
    remove("policy.json")(policy)
    with pytest.raises(ValueError, match=r"allowed: a finished policy directory, this one has no policy.json\.$"):
        read_info(policy)


def test_a_seal_with_a_key_that_nobody_knows(policy: Path) -> None:
    (policy / "policy.json").write_text('{"version": 0, "digest": "d", "parent": "", "owner": "me"}')
    with pytest.raises(ValueError, match='unknown key "owner"; allowed: version, digest, parent'):
        read_info(policy)


def test_the_seal_remembers_version_and_parent(policy: Path) -> None:
    info = seal(policy, version=7, parent="b2a1")
    assert read_info(policy) == info
    assert (info.version, info.parent, info.digest) == (7, "b2a1", digest(policy))


def test_adopting_copies_and_leaves_the_source_alone(policy: Path, tmp_path: Path) -> None:
    seal(policy, version=7, parent="b2a1")
    before = {path.name: path.read_bytes() for path in policy.iterdir()}
    info = adopt(policy, tmp_path / "run" / "policy-0")
    assert (info.version, info.parent) == (0, "")
    assert {path.name: path.read_bytes() for path in policy.iterdir()} == before
    adopted = {path.name: path.read_bytes() for path in (tmp_path / "run" / "policy-0").iterdir()}
    assert adopted.keys() == before.keys()
    assert all(adopted[name] == before[name] for name in before if name != "policy.json")


def test_the_digest_is_of_contents_and_not_of_places_or_times(policy: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(policy, tmp_path / "moved", copy_function=shutil.copyfile)
    assert digest(moved) == digest(policy)
