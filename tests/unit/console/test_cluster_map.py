"""The map: every cluster and pair of clusters once, and nothing on top of another."""

from itertools import combinations

import pytest

from mirrorflow_console.cluster_map import (
    EDGES_MAX,
    LABEL_STEP,
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
    found = cluster_map(views(pairs))

    assert len(found.edges) + found.left_out == len(set(pairs))
    for one, other in combinations(found.nodes, 2):
        assert abs(one.x - other.x) >= NODE_WIDTH or abs(one.y - other.y) >= NODE_HEIGHT
    for edge, second in combinations(found.edges, 2):
        assert edge.x != second.x or abs(edge.y - second.y) >= LABEL_STEP
    assert all(0 <= one.x < found.width and 0 <= one.y < found.height for one in found.nodes)
    assert all(20 <= edge.y <= found.height - 20 for edge in found.edges)


def test_layout_does_not_follow_the_state():
    """A map that rearranges itself when something breaks cannot be read."""
    flows = views(PAIRS[4])

    assert cluster_map(flows).nodes == cluster_map(flows[::-1]).nodes


def test_flows_of_one_pair_share_an_edge():
    flows = [flow_view(FlowReading(key=key, name=key, source="a", target="b")) for key in ("x", "y")]

    (edge,) = cluster_map(flows).edges

    assert (edge.label, len(edge.flows)) == ("2 flows", 2)


def test_no_flow_is_an_empty_map():
    assert cluster_map([]).nodes == ()
