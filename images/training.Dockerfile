# syntax=docker/dockerfile:1
# Policy 0, reference scores, training: TorchTitan on a GPU. CUDA's libraries come with torch; the driver is the node's.
FROM python:3.11.14-slim-bookworm

# TorchInductor and Triton compile what they run. Debian drops old versions: a pin soon fails.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# Flyte unpacks registered code into /root, and a run writes there.
RUN useradd --uid 1000 --create-home flyte && chown flyte /root
WORKDIR /root

RUN --mount=type=bind,source=images/training.txt,target=/tmp/training.txt \
    pip install --no-cache-dir --no-deps -r /tmp/training.txt
RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir --no-deps --no-build-isolation /source

USER 1000
