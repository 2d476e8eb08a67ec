"""In which order stages that compute run: one after another, because there is one device, and one model fits.

They run as the jobs stand, but none before what it needs has been computed. What it needs may be of other jobs: where
chunks of several are done together, none of these jobs has its chunks before all of them know what to do.
"""

import heapq
from collections.abc import Collection, Hashable, Sequence

from pipeline.planning.sweep import Sweep
from pipeline.planning.wiring import Node

_Event = tuple[str, Hashable]  # a node is at work, or through; or a group of nodes knows what to do


def lane(sweep: Sweep, nodes: Sequence[Node], jobs: Collection[int]) -> dict[Node, tuple[str, ...]]:
    """Node that computes → the task that it comes after.

    Args:
        nodes: that run, as they stand.
        jobs: that run.
    """
    found: dict[Node, tuple[str, ...]] = {}
    last: tuple[str, ...] = ()
    for node in ordered(sweep, nodes, jobs):
        if node.computes:
            found[node] = last
            last = (sweep.names[node] if node.work is None else f"{sweep.names[node]}:work",)
    return found


def ordered(sweep: Sweep, nodes: Sequence[Node], jobs: Collection[int]) -> list[Node]:
    """`nodes`, each as early as it stands and after what it needs."""
    place = {node: i for i, node in enumerate(nodes)}
    needs: dict[_Event, set[_Event]] = {}
    for node in nodes:
        job = next(i for i in sweep.users(node) if i in jobs)
        sources = (sweep.plans[job].nodes[source] for source in node.inputs.values())
        needs["begun", node] = {("through" if s.work is not None else "begun", s) for s in sources if s in place}
        if node.work is not None:
            needs["through", node] = {("begun", node)}
    for group in {tuple(m.node for m in g.members if m.job in jobs and m.node in place) for g in sweep.groups}:
        if len(group) > 1:
            needs["known", group] = {("begun", node) for node in group}
            for node in group:
                needs["through", node].add(("known", group))
    return [node for kind, node in _sorted(needs, place) if kind == "begun" and isinstance(node, Node)]


def _sorted(needs: dict[_Event, set[_Event]], place: dict[Node, int]) -> list[_Event]:
    """Events after those that they need; among those that could come next, of the first node (Kahn 1962)."""
    awaited: dict[_Event, list[_Event]] = {}
    for event, some in needs.items():
        for needed in some:
            awaited.setdefault(needed, []).append(event)
    left = {event: len(some) for event, some in needs.items()}
    order = {event: i for i, event in enumerate(needs)}

    def at(event: _Event) -> tuple[int, int, _Event]:
        node = event[1]
        return (place[node] if isinstance(node, Node) else -1), order[event], event

    ready = [at(event) for event, count in left.items() if count == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        *_, event = heapq.heappop(ready)
        found.append(event)
        for other in awaited.get(event, ()):
            left[other] -= 1
            if left[other] == 0:
                heapq.heappush(ready, at(other))
    return found
