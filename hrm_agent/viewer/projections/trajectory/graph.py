"""Graph of a thread: the definition of a built-in graph, or else the nodes and edges that the
thread's moments show.

Other graphs that a store names are never imported, since their code is not trusted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hrm_agent.langgraph_format import END, START
from hrm_agent.runtime.execution.builtin_graphs import BUILTIN_GRAPHS
from hrm_agent.runtime.time_travel.history import Moment
from hrm_agent.store.browse.state import checkpoint_links
from hrm_agent.viewer.json_text import NotThere, short
from hrm_agent.viewer.projections.groups import Damaged
from hrm_agent.viewer.projections.trajectory.moments import moments_at, thread_named

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["graph"]

_MOST_MOMENTS = 400
"""Maximum number of moments, the newest, whose transitions are counted."""
_MOST_NODES = 500

Edges = Counter[tuple[str, str]]


def graph(place: Place, thread: str) -> dict[str, Any]:
    """`GET graph`: nodes and edges of a thread's graph."""
    store = place.store()
    damaged = Damaged()
    header, thread_id = thread_named(store, thread)
    links = checkpoint_links(store, thread_id)
    if not links and header is None:
        raise NotThere(
            f"There is no thread {thread[:200]!r} in {place.where}.", "It may have been deleted."
        )
    chosen = range(max(len(links) - _MOST_MOMENTS, 0), len(links))
    taken = _taken(moments_at(store, thread_id, None, links, chosen, damaged))
    told = {"moments": len(chosen), "of_moments": len(links), "damaged": damaged.data()}
    if header is not None and header.graph in BUILTIN_GRAPHS:
        from hrm_agent.runtime.execution.loading import load_graph

        drawn = load_graph(header.graph).get_graph()
        edges = [
            _edge(
                edge.source,
                edge.target,
                bool(edge.conditional),
                str(edge.data) if edge.data else None,
                taken[edge.source, edge.target],
            )
            for edge in drawn.edges
        ]
        nodes = [_node(node) for node in drawn.nodes]
        return {"nodes": nodes, "edges": edges, "source": "built-in", **told}
    names = list(dict.fromkeys(name for edge in taken for name in edge))[:_MOST_NODES]
    edges = [
        _edge(a, b, False, None, count)
        for (a, b), count in taken.items()
        if a in names and b in names
    ]
    return {"nodes": [_node(name) for name in names], "edges": edges, "source": "observed", **told}


def _taken(read: list[Moment]) -> Edges:
    """Number of times each edge was taken. Edges go from the nodes that led to a moment to the
    nodes that run next.
    """
    found: Edges = Counter()
    for moment in read:
        came_from = tuple(dict.fromkeys(moment.ran.nodes))
        if moment.source == "input" and not came_from:
            continue  # the graph has not read this input yet
        sources = came_from or ((START,) if moment.source == "input" else ())
        targets = Counter(moment.next) or Counter({END: 1} if came_from else {})
        for source in sources:
            for target, count in targets.items():
                found[source, target] += count
    return found


def _node(name: str) -> dict[str, str]:
    kind = "start" if name == START else "end" if name == END else "node"
    return {"id": name, "label": short(name.strip("_") if kind != "node" else name), "kind": kind}


def _edge(
    source: str, target: str, conditional: bool, label: str | None, taken: int
) -> dict[str, Any]:
    return {
        "from": source,
        "to": target,
        "conditional": conditional,
        "label": label,
        "taken": taken,
    }
