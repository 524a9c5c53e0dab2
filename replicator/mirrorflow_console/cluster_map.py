"""Lays out clusters and the flows between them as a graph, from left to right. Pure: the template draws it as SVG."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_console.documents import Figures
from mirrorflow_console.flow_views import FlowView, Level

NODE_WIDTH: Final = 188
NODE_HEIGHT: Final = 64
LABEL_WIDTH: Final = 196
TURN: Final = 76  # between a cluster and a label, where edges turn and none is behind a label
COLUMN_GAP: Final = LABEL_WIDTH + 2 * TURN
ROW_GAP: Final = 48
MARGIN: Final = 24
ARROW: Final = 10
PORT_SPREAD: Final = 14  # of the ends of edges around the middle of a node
LABEL_STEP: Final = 54  # between the centres of two labels, one above the other
# More cannot be told apart; the list below the map has all flows.
EDGES_MAX: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class MapNode:
    """A cluster, by its alias, with the position of its left upper corner."""

    name: str
    x: int
    y: int
    level: Level
    flows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MapEdge:
    """All flows from one cluster to another; `path` and `arrow` are SVG's, and the label is centred at (x, y)."""

    source: str
    target: str
    path: str
    arrow: str
    x: int
    y: int
    level: Level
    flows: tuple[FlowView, ...]
    lag_s: float | None
    bytes_per_s: float
    switchover: str = ""  # the state of one that is under way

    @property
    def label(self) -> str:
        return self.flows[0].name if len(self.flows) == 1 else f"{len(self.flows)} flows"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMap:
    """The whole map; `left_out` pairs of clusters had no room."""

    width: int
    height: int
    nodes: tuple[MapNode, ...]
    edges: tuple[MapEdge, ...]
    left_out: int = 0
    node_width: int = NODE_WIDTH
    node_height: int = NODE_HEIGHT
    label_width: int = LABEL_WIDTH


def cluster_map(views: Sequence[FlowView], figures: Mapping[str, Figures]) -> ClusterMap:
    """Returns the map of *views*, which are sorted worst first: pairs with trouble are never left out before others.

    *figures*: newer ones than those of the views, by key.
    """
    pairs: dict[tuple[str, str], list[FlowView]] = {}
    for view in views:
        pairs.setdefault((view.source, view.target), []).append(view)
    shown = dict(list(pairs.items())[:EDGES_MAX])
    columns = _columns(shown)
    nodes = _nodes(columns, shown)
    by_name = {node.name: node for node in nodes}
    labels = _labels(by_name, shown)
    edges = tuple(_edge(by_name, pair, flows, labels[pair], figures) for pair, flows in shown.items())
    return ClusterMap(
        width=max(
            (*(node.x + NODE_WIDTH for node in nodes), *(edge.x + LABEL_WIDTH // 2 for edge in edges)),
            default=0,
        )
        + MARGIN,
        height=max(
            (*(node.y + NODE_HEIGHT for node in nodes), *(edge.y + LABEL_STEP // 2 for edge in edges)),
            default=0,
        )
        + MARGIN,
        nodes=nodes,
        edges=edges,
        left_out=len(pairs) - len(shown),
    )


def _columns(pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Returns the clusters by their distance from a cluster that only others copy from.

    A pair that leads back, as in an active/active set-up, does not count. So the result is stable: by name, not by state.
    """
    edges = sorted(pairs)
    names = sorted({name for pair in edges for name in pair})
    incoming = {
        name: {source for source, target in edges if target == name and source != name} for name in names
    }
    rank: dict[str, int] = {}
    waiting = list(names)
    while waiting:
        free = [name for name in waiting if not (incoming[name] - rank.keys())]
        # In a circle no cluster is free: the one that most others copy from begins.
        chosen = free or [min(waiting, key=lambda name: (-sum(pair[0] == name for pair in edges), name))]
        for name in chosen:
            known = [rank[source] for source in incoming[name] if source in rank]
            rank[name] = max(known, default=-1) + 1
        waiting = [name for name in waiting if name not in rank]
    columns: list[list[str]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for name in names:
        columns[rank[name]].append(name)
    return columns


def _nodes(
    columns: Sequence[Sequence[str]], pairs: Mapping[tuple[str, str], Sequence[FlowView]]
) -> tuple[MapNode, ...]:
    tallest = max((len(column) for column in columns), default=0)
    step = NODE_HEIGHT + ROW_GAP
    nodes = []
    for index, column in enumerate(columns):
        top = MARGIN + (tallest - len(column)) * step // 2
        for row, name in enumerate(column):
            levels = [
                view.source_level if source == name else view.target_level
                for (source, target), views in pairs.items()
                if name in {source, target}
                for view in views
            ]
            nodes.append(
                MapNode(
                    name=name,
                    x=MARGIN + index * (NODE_WIDTH + COLUMN_GAP),
                    y=top + row * step,
                    level=_of_cluster(levels),
                    flows=len(levels),
                )
            )
    return tuple(nodes)


def _of_cluster(levels: Sequence[Level]) -> Level:
    """Returns broken if a flow cannot use the cluster, fine if one can and none cannot."""
    if Level.BROKEN in levels:
        return Level.BROKEN
    return Level.FINE if Level.FINE in levels else Level.UNKNOWN


def _labels(
    nodes: Mapping[str, MapNode], pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[int, int]]:
    """Returns where the label of each pair is centred: between its clusters, and none on another one."""
    wanted: dict[int, list[tuple[int, tuple[str, str]]]] = {}
    for pair in sorted(pairs):
        source, target = nodes[pair[0]], nodes[pair[1]]
        right = max(source.x, target.x)
        left = right if source.x == target.x else right - NODE_WIDTH - COLUMN_GAP
        x = left + NODE_WIDTH + COLUMN_GAP // 2
        # A pair that leads back is below the one that leads there.
        y = (source.y + target.y + NODE_HEIGHT) // 2 + (source.x > target.x)
        wanted.setdefault(x, []).append((y, pair))
    centres: dict[tuple[str, str], tuple[int, int]] = {}
    for x, labels in wanted.items():
        labels.sort()
        middle = sum(y for y, _ in labels) // len(labels)
        top = max(middle - (len(labels) - 1) * LABEL_STEP // 2, MARGIN + LABEL_STEP // 2)
        lowest = 0
        for index, (y, pair) in enumerate(labels):
            # Where it belongs, unless the labels above it or below it need the room.
            least = max(lowest, top + index * LABEL_STEP - LABEL_STEP * len(labels))
            most = max(y, top + index * LABEL_STEP) if len(labels) > 1 else y
            lowest = max(least, min(y, most)) + LABEL_STEP
            centres[pair] = (x, lowest - LABEL_STEP)
    return centres


def _edge(
    nodes: Mapping[str, MapNode],
    pair: tuple[str, str],
    flows: Sequence[FlowView],
    label: tuple[int, int],
    figures: Mapping[str, Figures],
) -> MapEdge:
    current = [figures.get(flow.key, flow) for flow in flows]
    lags = [view.lag_s for view in current if view.lag_s is not None]
    path, end_x, end_y, is_forward = _path(nodes[pair[0]], nodes[pair[1]], label)
    back_x = end_x + (-ARROW if is_forward else ARROW)
    return MapEdge(
        source=pair[0],
        target=pair[1],
        path=path,
        arrow=f"M{end_x},{end_y} L{back_x},{end_y - ARROW // 2} L{back_x},{end_y + ARROW // 2}z",
        x=label[0],
        y=label[1],
        level=min(flow.level for flow in flows),
        flows=tuple(flows),
        lag_s=max(lags, default=None),
        bytes_per_s=sum(view.bytes_per_s or 0.0 for view in current),
        switchover=next((flow.switchover.state for flow in flows if flow.switchover is not None), ""),
    )


def _path(source: MapNode, target: MapNode, label: tuple[int, int]) -> tuple[str, int, int, bool]:
    """Returns a curve from *source* through the label to *target*, where it ends, and whether it arrives from the left."""
    x, y = label
    begin_x = source.x + (NODE_WIDTH if source.x <= target.x else 0)
    end_x = target.x + (NODE_WIDTH if source.x >= target.x else 0)
    begin_y = source.y + NODE_HEIGHT // 2 + _towards(y, source)
    end_y = target.y + NODE_HEIGHT // 2 + _towards(y, target)
    half = LABEL_WIDTH // 2
    # Both ends of an edge between clusters of one column, or of one cluster with itself, are left of its label.
    enter_x, leave_x = (x - half if begin_x <= x else x + half), (x + half if end_x > x else x - half)
    first, second = (begin_x + enter_x) // 2, (leave_x + end_x) // 2
    path = (
        f"M{begin_x},{begin_y} C{first},{begin_y} {first},{y} {enter_x},{y} L{leave_x},{y} "
        f"C{second},{y} {second},{end_y} {end_x},{end_y}"
    )
    return path, end_x, end_y, end_x == target.x


def _towards(y: int, node: MapNode) -> int:
    """Returns how far from a node's middle an edge ends: on the side where its label is."""
    return max(-PORT_SPREAD, min(PORT_SPREAD, (y - node.y - NODE_HEIGHT // 2) // 4))
