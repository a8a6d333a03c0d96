# syntax=docker/dockerfile:1
# Inputs, advantages, window, report, the loop's graph, and the environment's server. `make images` builds it.
FROM python:3.11.14-slim-bookworm

# Flyte unpacks registered code into /root, and a run writes there.
RUN useradd --uid 1000 --create-home flyte && chown flyte /root
WORKDIR /root

RUN --mount=type=bind,source=images/cpu.txt,target=/tmp/cpu.txt \
    pip install --no-cache-dir --no-deps -r /tmp/cpu.txt
RUN --mount=type=bind,target=/source,rw \
    pip install --no-cache-dir --no-deps --no-build-isolation /source

USER 1000
