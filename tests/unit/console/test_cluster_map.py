"""The cluster map shows each cluster and each pair of clusters once, without overlaps."""

import re
from itertools import combinations

import pytest

from mirrorflow_console.cluster_map import (
    EDGES_MAX,
    LABEL_STEP,
    LABEL_WIDTH,
    NODE_HEIGHT,
    NODE_WIDTH,
    cluster_map,
)
from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_views import flow_view

PAIRS = [
    [("a", "b")],
    [("a", "b"), ("b", "a")],
    [("a", "a")],
    [("a", "b"), ("b", "c"), ("c", "a")],
    [("a", "b"), ("a", "c"), ("b", "c"), ("d", "c"), ("c", "e"), ("b", "a")],
    [(f"edge-{number}", "hub") for number in range(12)],
    [("hub", f"edge-{number}") for number in range(12)],
    [(f"s{number}", f"t{number}") for number in range(EDGES_MAX + 5)],
]


def views(pairs):
    return [flow_view(FlowReading(key=f"{a}{b}", name=f"{a}-to-{b}", source=a, target=b)) for a, b in pairs]


@pytest.mark.parametrize("pairs", PAIRS, ids=lambda pairs: f"{len(pairs)}-{pairs[0]}")
def test_clusters_and_labels_do_not_overlap(pairs):
    layout = cluster_map(views(pairs), {})

    assert len(layout.edges) + layout.left_out == len(set(pairs))
    for first, second in combinations(layout.nodes, 2):
        assert abs(first.x - second.x) >= NODE_WIDTH or abs(first.y - second.y) >= NODE_HEIGHT
    for edge, other in combinations(layout.edges, 2):
        assert edge.x != other.x or abs(edge.y - other.y) >= LABEL_STEP
    assert all(0 <= node.x < layout.width and 0 <= node.y < layout.height for node in layout.nodes)
    assert all(20 <= edge.y <= layout.height - 20 for edge in layout.edges)


@pytest.mark.parametrize("pairs", PAIRS[:-1], ids=lambda pairs: f"{len(pairs)}-{pairs[0]}")
def test_an_edge_turns_beside_the_labels_so_that_none_is_drawn_behind_a_label_of_another(pairs):
    """Between two neighbouring columns. It is level from one side of its own label to the other."""
    layout = cluster_map(views(pairs), {})
    columns = sorted({node.x for node in layout.nodes})
    by_name = {node.name: columns.index(node.x) for node in layout.nodes}

    for edge in layout.edges:
        if abs(by_name[edge.source] - by_name[edge.target]) != 1:
            continue
        numbers = [int(number) for number in re.findall(r"-?\d+", edge.path)]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        sides = {edge.x - LABEL_WIDTH // 2, edge.x + LABEL_WIDTH // 2}
        assert {points[3], points[4]} == {(x, edge.y) for x in sides}
        assert not [x for x, y in points if min(sides) < x < max(sides)]


def test_the_layout_does_not_depend_on_the_order_of_flows():
    """The order depends on the state. A map that changes its layout with the state is hard to read."""
    flows = views(PAIRS[4])

    assert cluster_map(flows, {}).nodes == cluster_map(flows[::-1], {}).nodes


def test_flows_between_the_same_clusters_share_an_edge():
    flows = [flow_view(FlowReading(key=key, name=key, source="a", target="b")) for key in ("x", "y")]

    (edge,) = cluster_map(flows, {}).edges

    assert (edge.label, len(edge.flows)) == ("2 flows", 2)


def test_the_map_without_flows_is_empty():
    assert cluster_map([], {}).nodes == ()
