# syntax=docker/dockerfile:1
# Rollouts and evaluations: vLLM on a GPU. CUDA's libraries come with torch; the driver is the node's.
FROM python:3.11.14-slim-bookworm

# Triton compiles its kernels' launchers where they run. Debian drops old versions: a pin soon fails.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# Flyte unpacks registered code into /root, and a run writes there.
RUN useradd --uid 1000 --create-home flyte && chown flyte /root
WORKDIR /root

RUN --mount=type=bind,source=images/rollout.txt,target=/tmp/rollout.txt \
    pip install --no-cache-dir --no-deps -r /tmp/rollout.txt
RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir --no-deps --no-build-isolation /source

USER 1000
