"""Lays a graph on pods: each node begins when what it waits for has ended and a pod of its role is free.

First come, first served; nodes that are ready at the same moment go in the order of the graph.
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


@dataclass(frozen=True)
class Placed:
    """One node on one pod. Example: a training that waited for the pod of another has `because="n2-dn5"`, that node's
    name, and `begin`, its end."""

    node: Node
    cost: Cost
    pod: int  # counted from 0 among those of its role
    begin: float
    end: float
    because: str  # the last node that it waited for; "" if none


def laid_out(nodes: Sequence[Node], cost: Callable[[Node], Cost], pods: Mapping[str, int]) -> list[Placed]:
    """All nodes, in the order in which they are ready. `pods` are those at once, by role; of others there is no end."""
    order = {node.name: i for i, node in enumerate(nodes)}
    missing = {node.name: set(node.after) for node in nodes}
    ready = [(0.0, order[node.name], node) for node in nodes if not node.after]
    free: dict[str, list[tuple[float, str]]] = defaultdict(list)  # by role, of each pod: since when, after which node
    placed: dict[str, Placed] = {}
    while ready:
        since, _, node = heapq.heappop(ready)
        mine, seconds = free[node.role], cost(node)
        pod = next((i for i, (when, _) in enumerate(mine) if when <= since), len(mine))
        if pod == pods.get(node.role):
            pod = min(range(pod), key=lambda i: mine[i][0])
        elif pod == len(mine):
            mine.append((0.0, ""))
        begin = max(since, mine[pod][0])
        last = max((placed[name] for name in node.after), key=lambda p: (p.end, order[p.node.name]), default=None)
        because = (last.node.name if last else "") if begin == since else mine[pod][1]
        end = begin + seconds.start + seconds.move + seconds.work
        mine[pod] = end, node.name
        placed[node.name] = Placed(node, seconds, pod, begin, end, because)
        for later in nodes:
            if node.name in missing[later.name]:
                missing[later.name].remove(node.name)
                if not missing[later.name]:
                    when = max(placed[name].end for name in later.after)
                    heapq.heappush(ready, (when, order[later.name], later))
    return list(placed.values())


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
