"""Topologies of flows that conflict, with their messages, and topologies that do not conflict."""

import pytest

from mirrorflow_operator.admission.flow_conflicts import (
    Conflict,
    ConflictKind,
    Endpoint,
    FlowRoute,
    conflicts,
    samples,
)
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.names import topic_selection_of


def flow(
    source: str,
    target: str,
    *,
    include: tuple[str, ...] = (".*",),
    identity: bool = False,
    separator: str = ".",
    hosts: tuple[str, str] | None = None,
    config: dict[str, str] | None = None,
) -> MirrorFlow:
    """Returns a flow between clusters with the host names *hosts*, by default their aliases."""
    source_host, target_host = hosts or (source, target)
    naming = {"policy": "Identity" if identity else "Prefix", "separator": separator}
    return parse_flow(
        {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorFlow",
            "metadata": {"name": f"{source}-to-{target}"},
            "spec": {
                "source": {"alias": source, "bootstrapServers": [f"{source_host}:9092"]},
                "target": {"alias": target, "bootstrapServers": [f"{target_host}:9092"]},
                "topics": {"include": list(include), "naming": naming},
                "connectors": {"source": {"config": config or {}}},
            },
        }
    )


def route(
    mirror_flow: MirrorFlow,
    *,
    ids: tuple[str | None, str | None] = (None, None),
    topics: frozenset[str] | None = None,
) -> FlowRoute:
    source, target = mirror_flow.spec.source, mirror_flow.spec.target
    return FlowRoute(
        flow=mirror_flow.metadata.name,
        source=Endpoint(
            alias=source.alias,
            addresses=frozenset(source.bootstrap_servers),
            cluster_id=ids[0],
            topics=topics,
        ),
        target=Endpoint(alias=target.alias, addresses=frozenset(target.bootstrap_servers), cluster_id=ids[1]),
        naming=topic_selection_of(mirror_flow),
    )


def conflicts_of(*flows: MirrorFlow) -> tuple[Conflict, ...]:
    return conflicts(
        [route(mirror_flow) for mirror_flow in flows],
        samples(pattern for mirror_flow in flows for pattern in mirror_flow.spec.topics.include),
    )


def renames(*steps: tuple[str, str], only: str = "") -> dict[str, str]:
    """Returns properties of RegexRouters. With *only*, they apply to topics that match it."""
    config = {"transforms": ",".join(f"r{index}" for index in range(len(steps)))}
    for index, (regex, replacement) in enumerate(steps):
        config |= {
            f"transforms.r{index}.type": "org.apache.kafka.connect.transforms.RegexRouter",
            f"transforms.r{index}.regex": regex,
            f"transforms.r{index}.replacement": replacement,
        }
        if only:
            config[f"transforms.r{index}.predicate"] = "matching"
    if only:
        config |= {"predicates": "matching", "predicates.matching.type": "TopicNameMatches"}
        config["predicates.matching.pattern"] = only
    return config


def drops(pattern: str) -> dict[str, str]:
    return {
        "transforms": "d",
        "transforms.d.type": "Filter",
        "transforms.d.predicate": "matching",
        "predicates": "matching",
        "predicates.matching.type": "TopicNameMatches",
        "predicates.matching.pattern": pattern,
    }


@pytest.mark.parametrize(
    "flows",
    [
        (flow("a", "b"), flow("b", "a")),
        (flow("a", "b"), flow("b", "c"), flow("c", "a")),
        (flow("a", "hub"), flow("b", "hub"), flow("c", "hub")),
        (flow("hub", "a"), flow("hub", "b")),
        (flow("a", "b"), flow("a", "c"), flow("b", "d"), flow("c", "d")),
        (flow("a", "b", identity=True), flow("b", "c", identity=True)),
        (
            flow("a", "b", identity=True, include=("requests.*",)),
            flow("b", "a", identity=True, include=("responses.*",)),
        ),
        (
            flow("a", "hub", identity=True, include=("orders",)),
            flow("b", "hub", identity=True, include=("payments",)),
        ),
        (flow("a", "b", separator="_"), flow("b", "a", separator="_")),
        (
            flow("a", "hub", identity=True, config=renames((".*", "a-$0"))),
            flow("b", "hub", identity=True, config=renames((".*", "b-$0"))),
        ),
        (
            flow("a", "b", identity=True, config=drops("any-.*")),
            flow("b", "a", identity=True, config=drops("any-.*")),
        ),
    ],
    ids=[
        "both ways",
        "ring",
        "aggregation",
        "fan-out",
        "diamond",
        "identity chain",
        "identity both ways, different topics",
        "identity aggregation, different topics",
        "other separator",
        "aggregation with renamed topics",
        "identity both ways, topics filtered",
    ],
)
def test_topologies_without_a_conflict_are_accepted(flows: tuple[MirrorFlow, ...]) -> None:
    assert () == conflicts_of(*flows)


@pytest.mark.parametrize(
    ("flows", "expected"),
    [
        (
            (flow("a", "b", identity=True), flow("b", "a", identity=True)),
            "Flows a-to-b and b-to-a make a loop: any-topic on a -> any-topic on b (a-to-b) -> any-topic on a (b-to-a);",
        ),
        (
            (
                flow("a", "b", identity=True, include=("orders.*",)),
                flow("b", "c", identity=True),
                flow("c", "a", identity=True, include=(".*",)),
            ),
            (
                "Flows a-to-b and b-to-c and c-to-a make a loop: orders on a -> orders on b (a-to-b)"
                " -> orders on c (b-to-c) -> orders on a (c-to-a);"
            ),
        ),
        (
            (flow("east", "west"), flow("w", "e", hosts=("west", "east"))),
            (
                "Flows east-to-west and w-to-e make a loop: any-topic on east/e -> east.any-topic on west/w (east-to-west)"
                " -> w.east.any-topic on east/e (w-to-e);"
            ),
        ),
        (
            (flow("a", "b"), flow("b", "a", separator="_")),
            (
                "Flows a-to-b and b-to-a make a loop: any-topic on a -> a.any-topic on b (a-to-b)"
                " -> b_a.any-topic on a (b-to-a);"
            ),
        ),
        (
            (flow("a", "hub", identity=True), flow("b", "hub", identity=True, include=("orders", "x"))),
            (
                "Flows a-to-hub and b-to-hub both write to topic orders (and 1 more) of cluster hub:"
                " orders of a (a-to-hub), orders of b (b-to-hub);"
            ),
        ),
        (
            (
                flow("a", "hub", identity=True, include=("orders.*",)),
                flow("b", "hub", identity=True, include=(".*-eu",)),
            ),
            "both write to topic orders-eu of cluster hub",
        ),
        (
            (flow("a", "b"), flow("a", "bb", hosts=("c", "b"))),
            "Flows a-to-b and a-to-bb both copy a source with the alias a to cluster b/bb, which stores positions by that alias;",
        ),
        (
            (
                flow("a", "b", config=renames((r"a\.(.*)", "$1"))),
                flow("b", "a", config=renames((r"b\.(.*)", "$1"))),
            ),
            "make a loop: any-topic on a -> any-topic on b (a-to-b) -> any-topic on a (b-to-a);",
        ),
        (
            (
                flow("a", "hub", config=renames((r"[ab]\.(?<t>.*)", "all-${t}"))),
                flow("b", "hub", config=renames((r"[ab]\.(?<t>.*)", "all-${t}"), only=r".*\.any.*")),
            ),
            "both write to topic all-any-topic of cluster hub: any-topic of a (a-to-hub), any-topic of b (b-to-hub);",
        ),
        (
            (
                flow("a", "b", identity=True),
                flow("a", "c", identity=True),
                flow("b", "d", identity=True),
                flow("c", "d", identity=True),
            ),
            (
                "Flows b-to-d and c-to-d both write to topic any-topic of cluster d: any-topic of b (b-to-d),"
                " any-topic of c (c-to-d);"
            ),
        ),
    ],
    ids=[
        "identity both ways",
        "identity ring",
        "two aliases per cluster",
        "two separators",
        "identity aggregation",
        "overlapping prefix and suffix",
        "one alias for two sources",
        "prefixes removed both ways",
        "renamed to one topic",
        "identity diamond",
    ],
)
def test_the_message_of_a_conflict_has_its_flows_topics_and_clusters(
    flows: tuple[MirrorFlow, ...], expected: str
) -> None:
    """The sentence starts with the flows and ends with what to do."""
    conflict = conflicts_of(*flows)[0]

    assert expected in conflict.sentence
    assert {mirror_flow.metadata.name for mirror_flow in flows} >= set(conflict.flows)


def test_clusters_are_compared_by_cluster_id() -> None:
    """One cluster may have two addresses, and two clusters may share the address of a proxy."""
    there, back = flow("a", "b", identity=True), flow("x", "y", identity=True)
    hidden = [route(there, ids=("1", "2")), route(back, ids=("2", "1"))]
    proxied = [
        route(flow("a", "b", identity=True, hosts=("a", "proxy")), ids=("1", "2")),
        route(flow("c", "d", identity=True, hosts=("proxy", "a")), ids=("3", "1")),
    ]

    assert "make a loop" in conflicts(hidden, ["orders"])[0].sentence
    assert () == conflicts(proxied, ["orders"])


def test_a_source_that_is_its_own_target_is_reported() -> None:
    """Cluster ids are compared here. The CRD compares addresses."""
    assert "its source and its target are the same cluster, a/b" in (
        conflicts([route(flow("a", "b", identity=True), ids=("1", "1"))], ["orders"])[0].sentence
    )


def test_a_prefixing_flow_within_one_cluster_is_not_a_loop() -> None:
    within = route(flow("a", "b"), ids=("1", "1"))
    away, back = route(flow("a", "c"), ids=("1", "2")), route(flow("c2", "a2", identity=True), ids=("2", "1"))

    assert () == conflicts([within], ["orders"])
    assert "make a loop" in conflicts([within, away, back], ["orders"])[0].sentence


def test_existing_topics_take_precedence_over_samples() -> None:
    """Overlapping patterns do not conflict while no topic matches both."""
    flows = flow("a", "hub", identity=True), flow("b", "hub", identity=True)
    different = [
        route(mirror_flow, topics=frozenset({name}))
        for mirror_flow, name in zip(flows, ("orders", "payments"), strict=True)
    ]
    shared = [route(mirror_flow, topics=frozenset({"orders"})) for mirror_flow in flows]

    assert () == conflicts(different, ["any-topic"])
    assert "topic orders of cluster hub" in conflicts(shared, ["any-topic"])[0].sentence


def test_samples_are_simple_names_that_match_the_patterns() -> None:
    assert ("orders", "pay-1", "a.b", "any-topic") == samples(["orders.*", r"pay-\d+", "(a.b|.*)"])[:4]


def test_a_pattern_that_matches_too_slowly_is_a_conflict() -> None:
    """The topics that such a flow copies are unknown."""
    slow = flow("east", "west", include=("(a|a)*",))
    back = flow("west", "east", include=("(a|a)*",))
    topics = frozenset({"a" * 60 + "-1"})
    routes = [route(mirror_flow, topics=topics) for mirror_flow in (slow, back)]

    slow_patterns = conflicts(routes, ())

    assert [conflict.kind for conflict in slow_patterns] == [ConflictKind.SLOW] * 2
    assert slow_patterns[0].sentence.startswith(
        "Flow east-to-west: topics: '(a|a)*' cannot be matched against 'aaaa"
    )
    assert "write it without a repetition" in slow_patterns[0].sentence


@pytest.mark.parametrize("pattern", [r"\Qa.b\E.*", r"\p{Alpha}+", "(?<x>a)"])
def test_topic_patterns_match_as_in_java(pattern: str) -> None:
    naming = topic_selection_of(flow("east", "west", include=(pattern,)))

    assert [topic for topic in ("a", "a.bc", "1") if naming.copies(topic)] == {
        r"\Qa.b\E.*": ["a.bc"], r"\p{Alpha}+": ["a"], "(?<x>a)": ["a"],
    }[pattern]  # fmt: skip
