"""The interpreter as a service: its manifests against Kubernetes' schemas, and that its command and probe are real."""

import configparser
import sys
import urllib.request
from pathlib import Path

import kubernetes_validate
import yaml

from servers import Server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "images" / "interpreter.yaml").read_text()
DEPLOYMENT, SERVICE, POLICY = yaml.safe_load_all(TEXT)
POD = DEPLOYMENT["spec"]["template"]
(SERVER,) = POD["spec"]["containers"]


def test_the_manifests_are_what_kubernetes_takes() -> None:
    for manifest in (DEPLOYMENT, SERVICE, POLICY):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_pods_have_a_runtime_class_no_privileges_and_no_way_out() -> None:
    assert POD["spec"]["runtimeClassName"] == "gvisor"
    labels = POD["metadata"]["labels"]
    assert labels == SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"]
    assert labels == POLICY["spec"]["podSelector"]["matchLabels"]
    assert POLICY["spec"]["policyTypes"] == ["Ingress", "Egress"] and "egress" not in POLICY["spec"]
    assert POD["spec"]["automountServiceAccountToken"] is False
    alone = SERVER["securityContext"]
    assert alone["capabilities"] == {"drop": ["ALL"]} and alone["readOnlyRootFilesystem"] is True
    assert alone["allowPrivilegeEscalation"] is alone["privileged"] is False
    assert SERVER["resources"]["limits"] == SERVER["resources"]["requests"]


def test_the_image_and_the_address_are_those_that_the_texts_name() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "flyte.config")
    assert SERVER["image"] == config["images"]["cpu"]
    (port,) = SERVICE["spec"]["ports"]
    assert port["targetPort"] == SERVER["ports"][0]["name"] == POLICY["spec"]["ingress"][0]["ports"][0]["port"]
    assert f"openenv:http://{SERVICE['metadata']['name']}:{port['port']}" in TEXT


def test_the_command_serves_what_the_probes_ask(tmp_path: Path) -> None:
    python, *rest = SERVER["command"]
    arguments = dict(zip(SERVER["args"][::2], SERVER["args"][1::2], strict=True))
    assert (python, int(arguments["--port"])) == ("python", SERVER["ports"][0]["containerPort"])
    arguments |= {"--host": "127.0.0.1", "--port": "{port}"}
    line = [sys.executable, *rest, *(word for pair in arguments.items() for word in pair)]
    server = Server(line, tmp_path, PYTHONPATH=str(ROOT)).start()
    try:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            with urllib.request.urlopen(server.url + SERVER[probe]["httpGet"]["path"], timeout=30) as answer:
                assert answer.status == 200
    finally:
        server.kill()
