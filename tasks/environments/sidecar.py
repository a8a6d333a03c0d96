"""The environment's server beside the policy: a container of the rollout's pod, at http://127.0.0.1:8000.

It is a native sidecar (Kubernetes 1.29 and later): an init container that restarts always. Kubernetes begins the
stage's container once the startup probe has passed, and stops the server when that container has ended. With a second
ordinary container nothing would order the two, and Flyte would not know whose end is the task's.

The settings are those of images/environment.yaml, but for two. It listens on the loopback interface, which no other pod
reaches, and so its probes run in the container. An empty folder lies where Kubernetes would mount the token of the
service account, which only the stage's container gets.
"""

from typing import Any

URL = "http://127.0.0.1:8000"
SIZE = {"cpu": "2", "memory": "2Gi", "ephemeral-storage": "1Gi"}
VOLUMES: Any = [
    {"name": "scratch", "emptyDir": {"sizeLimit": "512Mi"}},
    {"name": "no-token", "emptyDir": {"sizeLimit": "1Mi"}},
]


def _probe(timeout_s: int, **settings: int) -> dict[str, Any]:
    ask = f"import urllib.request; urllib.request.urlopen('{URL}/health', timeout={timeout_s})"
    return {"exec": {"command": ["python", "-c", ask]}, "timeoutSeconds": timeout_s, **settings}


def container(name: str) -> Any:
    """The server of the environment `name`, as in a manifest."""
    return {
        "name": "environment",
        "image": "{{.image.cpu}}",  # it has the project installed
        "restartPolicy": "Always",
        "command": ["python", "-m", "tasks.environments.serve", name],
        "args": ["--host", "127.0.0.1", "--port", "8000", "--max-sessions", "2048"],
        "workingDir": "/tmp",
        "env": [{"name": "HOME", "value": "/tmp"}],
        "startupProbe": _probe(5, periodSeconds=2, failureThreshold=60),
        "readinessProbe": _probe(5, periodSeconds=5),
        "livenessProbe": _probe(20, periodSeconds=20, failureThreshold=6),
        "resources": {"requests": SIZE, "limits": SIZE},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "scratch", "mountPath": "/tmp"},
            {"name": "no-token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
        ],
    }
