"""The environment as a service: its manifests against Kubernetes' schemas, its command and its probes for real."""

import configparser
import json
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "images" / "environment.yaml").read_text()
DEPLOYMENT, SERVICE = yaml.safe_load_all(TEXT)
POD = DEPLOYMENT["spec"]["template"]
(SERVER,) = POD["spec"]["containers"]


def test_the_manifests_are_what_kubernetes_takes() -> None:
    for manifest in (DEPLOYMENT, SERVICE):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):  # the schema refuses what is wrong
        wrong = yaml.safe_load(TEXT.split("---")[0].replace("readOnlyRootFilesystem", "readOnlyRoot"))
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_service_finds_the_pods_and_the_image_is_that_of_flyte_config() -> None:
    selector = DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert selector == SERVICE["spec"]["selector"] == POD["metadata"]["labels"]
    (port,) = SERVICE["spec"]["ports"]
    assert port["targetPort"] == SERVER["ports"][0]["name"]
    assert f"http://{SERVICE['metadata']['name']}:{port['port']}\n" in TEXT  # the URL that its first lines tell
    config = configparser.ConfigParser()
    config.read(ROOT / "flyte.config")
    assert SERVER["image"] == config["images"]["cpu"]


def test_the_server_has_limits_and_no_privileges() -> None:
    assert SERVER["resources"]["limits"] == SERVER["resources"]["requests"]
    assert {"cpu", "memory"} <= SERVER["resources"]["limits"].keys()
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert POD["spec"]["securityContext"]["runAsNonRoot"] is True
    alone = SERVER["securityContext"]
    assert alone["capabilities"] == {"drop": ["ALL"]} and alone["readOnlyRootFilesystem"] is True
    assert alone["allowPrivilegeEscalation"] is alone["privileged"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD["spec"].keys()
    assert all("hostPath" not in volume for volume in POD["spec"]["volumes"])


def test_the_probes_ask_what_the_server_answers(openenv_server: Callable[..., AbstractContextManager[str]]) -> None:
    assert SERVER["command"] == ["python", "-m", "tasks.environments.serve", "blackjack"]
    arguments = dict(zip(SERVER["args"][::2], SERVER["args"][1::2], strict=True))
    assert int(arguments.pop("--port")) == SERVER["ports"][0]["containerPort"]
    assert arguments.pop("--host") == "0.0.0.0"  # the test uses the loopback interface
    paths = {SERVER[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    with openenv_server(*[word for pair in arguments.items() for word in pair]) as url:
        for path in paths:
            with urllib.request.urlopen(url + path, timeout=30) as answer:
                assert answer.status == 200 and json.load(answer)["status"] == "healthy"
