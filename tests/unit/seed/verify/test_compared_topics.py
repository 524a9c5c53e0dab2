"""Tests which topics of the source a verification compares."""

from mirrorflow_replicator.config.source_properties import parse_source
from mirrorflow_seed.verify.verify_plan import compared_topics

FLOW = {
    "name": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "localhost:1",
    "target.cluster.bootstrap.servers": "localhost:2",
}


def test_heartbeats_are_not_compared():
    """They are written while a flow runs, so their end always differs. A note names them."""
    settings = parse_source(FLOW, {"bootstrap.servers": "localhost:2"})
    notes: list[str] = []

    copied = compared_topics(["__offsets", "heartbeats", "north.heartbeats", "orders"], settings, notes)

    assert copied == {"orders": "east.orders"}
    assert notes == [
        "heartbeats is not compared: it holds heartbeats.",
        "north.heartbeats is not compared: it holds heartbeats.",
    ]


def test_a_mistyped_topic_beside_others_is_noted():
    """The others are compared; the note names a similar topic. An expression that matches nothing is no mistake."""
    settings = parse_source(
        FLOW | {"topics": "orders,payments,return\\d+"}, {"bootstrap.servers": "localhost:2"}
    )
    notes: list[str] = []

    copied = compared_topics(["orders", "payment", "stock"], settings, notes)

    assert copied == {"orders": "east.orders"}
    assert notes == [
        "payments is not compared: the source has no such topic that this flow may see. Is payment meant?"
    ]
