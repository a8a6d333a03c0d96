"""Schedules a graph on pods: each node begins when the nodes before it have ended and a pod of its role is free.

A simulation by events, with given seconds instead of work. First come, first served; nodes that are ready at the same
time begin in the order of the graph.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphs import Node


@dataclass(frozen=True)
class Cost:
    """Seconds of one node: to start its pod, to move inputs and results, and to work."""

    start: float
    move: float
    work: float

    @property
    def whole(self) -> float:
        return self.start + self.move + self.work


@dataclass(frozen=True)
class Placed:
    """One node on one pod.

    Example: a second training that waited for the pod of the first, `n2-dn5`, has `because="n2-dn5"` and begins when
    that node ended.
    """

    node: Node
    cost: Cost
    pod: int  # counted from 0 in its pool
    begin: float
    end: float
    because: str  # the last node that it waited for; "" if none


def laid_out(
    nodes: Sequence[Node],
    cost: Callable[[Node], Cost],
    *,
    pods: Mapping[str, int],
    pool: Callable[[Node], str] = lambda node: node.role,
    at_most: int = 10**9,
) -> list[Placed]:
    """All nodes, in the order in which they begin.

    `pods` is the number of pods in each pool, other pools have `at_most`; a node's pool is its role, unless `pool` says
    otherwise. Raises ValueError when a node waits for one that is not in the graph.
    """
    names = {node.name for node in nodes}
    order = {node.name: i for i, node in enumerate(nodes)}
    missing = {node.name: set(node.after) for node in nodes}
    for node in nodes:
        if not node.after <= names:
            raise ValueError(f"{node.name} waits for {sorted(node.after - names)}; allowed: nodes of the graph.")
    waiters: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in node.after:
            waiters[name].append(node)
    free: dict[str, list[int]] = defaultdict(list)  # pods that were used before and are free, by pool
    used: dict[str, int] = defaultdict(int)  # pods ever used, by pool
    freed_by: dict[tuple[str, int], str] = {}
    ready = [(0.0, order[node.name], node, "") for node in nodes if not node.after]
    running: list[tuple[float, int, Placed]] = []
    placed: list[Placed] = []
    now = 0.0
    while ready or running:
        later = []
        for since, number, node, because in sorted(ready, key=lambda item: item[:2]):
            where = pool(node)
            if free[where]:
                pod = heapq.heappop(free[where])
            elif used[where] < pods.get(where, at_most):
                pod = used[where]
                used[where] += 1
            else:
                later.append((since, number, node, because))
                continue
            seconds = cost(node)
            why = because if since == now else freed_by[where, pod]
            one = Placed(node, seconds, pod, now, now + seconds.whole, why)
            placed.append(one)
            heapq.heappush(running, (one.end, number, one))
        ready = later
        if not running:
            raise ValueError(f"{len(ready)} nodes wait for pods of which there are none.")
        now = running[0][0]
        while running and running[0][0] == now:
            ended = heapq.heappop(running)[2]
            where = pool(ended.node)
            heapq.heappush(free[where], ended.pod)
            freed_by[where, ended.pod] = ended.node.name
            for node in waiters[ended.node.name]:
                missing[node.name].discard(ended.node.name)
                if not missing[node.name]:
                    ready.append((now, order[node.name], node, ended.node.name))
    return placed


def wall_time(placed: Sequence[Placed]) -> float:
    """Seconds from the first node to the last."""
    return max(p.end for p in placed)


def critical_path(placed: Sequence[Placed]) -> list[Placed]:
    """The nodes that determine the wall time: each begins when the one before it ends."""
    by_name = {p.node.name: p for p in placed}
    path = [max(placed, key=lambda p: p.end)]
    while path[-1].because:
        path.append(by_name[path[-1].because])
    return path[::-1]
