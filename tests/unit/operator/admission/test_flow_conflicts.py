"""Topologies of flows: which may run, and the message for the others."""

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
    at: tuple[str, str] | None = None,
    config: dict[str, str] | None = None,
) -> MirrorFlow:
    """Between clusters whose addresses are their aliases, unless *at* says others."""
    hosts = at or (source, target)
    naming = {"policy": "Identity" if identity else "Prefix", "separator": separator}
    return parse_flow(
        {
            "apiVersion": "mirrorflow.io/v1alpha1",
            "kind": "MirrorFlow",
            "metadata": {"name": f"{source}-to-{target}"},
            "spec": {
                "source": {"alias": source, "bootstrapServers": [f"{hosts[0]}:9092"]},
                "target": {"alias": target, "bootstrapServers": [f"{hosts[1]}:9092"]},
                "topics": {"include": list(include), "naming": naming},
                "connectors": {"source": {"config": config or {}}},
            },
        }
    )


def route(
    one: MirrorFlow,
    *,
    ids: tuple[str, str] = ("", ""),
    topics: frozenset[str] | None = None,
) -> FlowRoute:
    source, target = one.spec.source, one.spec.target
    return FlowRoute(
        flow=one.metadata.name,
        source=Endpoint(
            alias=source.alias,
            addresses=frozenset(source.bootstrap_servers),
            cluster_id=ids[0],
            topics=topics,
        ),
        target=Endpoint(alias=target.alias, addresses=frozenset(target.bootstrap_servers), cluster_id=ids[1]),
        naming=topic_selection_of(one),
    )


def found(*flows: MirrorFlow) -> tuple[Conflict, ...]:
    return conflicts(
        [route(one) for one in flows],
        samples(pattern for one in flows for pattern in one.spec.topics.include),
    )


def renames(*steps: tuple[str, str], only: str = "") -> dict[str, str]:
    """Properties of RegexRouters, each for topics that match *only*, if that is given."""
    config = {"transforms": ",".join(f"r{at}" for at in range(len(steps)))}
    for at, (regex, replacement) in enumerate(steps):
        config |= {
            f"transforms.r{at}.type": "org.apache.kafka.connect.transforms.RegexRouter",
            f"transforms.r{at}.regex": regex,
            f"transforms.r{at}.replacement": replacement,
        }
        if only:
            config[f"transforms.r{at}.predicate"] = "those"
    if only:
        config |= {"predicates": "those", "predicates.those.type": "TopicNameMatches"}
        config["predicates.those.pattern"] = only
    return config


def drops(pattern: str) -> dict[str, str]:
    return {
        "transforms": "d",
        "transforms.d.type": "Filter",
        "transforms.d.predicate": "those",
        "predicates": "those",
        "predicates.those.type": "TopicNameMatches",
        "predicates.those.pattern": pattern,
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
        "names kept along a chain",
        "names kept both ways, other topics",
        "names kept into one, other topics",
        "another separator",
        "renamed apart",
        "dropped",
    ],
)
def test_sound_topologies_have_no_conflict(flows: tuple[MirrorFlow, ...]) -> None:
    """What MM2's naming keeps apart."""
    assert () == found(*flows)


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
            (flow("east", "west"), flow("w", "e", at=("west", "east"))),
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
            (flow("a", "b"), flow("a", "bb", at=("c", "b"))),
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
        "names kept both ways",
        "names kept around a ring",
        "two names for each cluster",
        "two separators",
        "names kept into one",
        "a prefix meets a suffix",
        "one alias for two sources",
        "prefixes stripped both ways",
        "renamed into one",
        "names kept along a diamond",
    ],
)
def test_a_conflict_names_its_flows_topics_and_clusters(flows: tuple[MirrorFlow, ...], expected: str) -> None:
    """One sentence that starts with the flows and ends with what to do."""
    conflict = found(*flows)[0]

    assert expected in conflict.sentence
    assert {one.metadata.name for one in flows} >= set(conflict.flows)


def test_cluster_ids_reveal_equal_clusters() -> None:
    """Two addresses, one cluster; one address (a proxy's), two clusters."""
    there, back = flow("a", "b", identity=True), flow("x", "y", identity=True)
    hidden = [route(there, ids=("1", "2")), route(back, ids=("2", "1"))]
    proxied = [
        route(flow("a", "b", identity=True, at=("a", "proxy")), ids=("1", "2")),
        route(flow("c", "d", identity=True, at=("proxy", "a")), ids=("3", "1")),
    ]

    assert "make a loop" in conflicts(hidden, ["orders"])[0].sentence
    assert () == conflicts(proxied, ["orders"])


def test_a_source_that_is_its_own_target_is_reported() -> None:
    """By cluster id, since addresses are compared by the resource's own rules."""
    assert "its source and its target are the same cluster, a/b" in (
        conflicts([route(flow("a", "b", identity=True), ids=("1", "1"))], ["orders"])[0].sentence
    )


def test_prefixes_within_one_cluster_make_no_loop() -> None:
    within = route(flow("a", "b"), ids=("1", "1"))
    away, back = route(flow("a", "c"), ids=("1", "2")), route(flow("c2", "a2", identity=True), ids=("2", "1"))

    assert () == conflicts([within], ["orders"])
    assert "make a loop" in conflicts([within, away, back], ["orders"])[0].sentence


def test_existing_topics_take_precedence_over_samples() -> None:
    """Patterns that meet do no harm as long as no topic is in both."""
    flows = flow("a", "hub", identity=True), flow("b", "hub", identity=True)
    apart = [
        route(one, topics=frozenset({name})) for one, name in zip(flows, ("orders", "payments"), strict=True)
    ]
    shared = [route(one, topics=frozenset({"orders"})) for one in flows]

    assert () == conflicts(apart, ["any-topic"])
    assert "topic orders of cluster hub" in conflicts(shared, ["any-topic"])[0].sentence


def test_samples_match_their_patterns() -> None:
    """The plainest name of each alternative."""
    assert ("orders", "pay-1", "a.b", "any-topic") == samples(["orders.*", r"pay-\d+", "(a.b|.*)"])[:4]


def test_a_slow_pattern_ends_the_search_with_an_error() -> None:
    """Neither a hang nor a clean result: what this flow copies is not known."""
    slow = flow("east", "west", include=("(a|a)*",))
    back = flow("west", "east", include=("(a|a)*",))
    topics = frozenset({"a" * 60 + "-1"})
    routes = [route(one, topics=topics) for one in (slow, back)]

    found = conflicts(routes, ())

    assert [one.kind for one in found] == [ConflictKind.SLOW] * 2
    assert found[0].sentence.startswith("Flow east-to-west: topics: '(a|a)*' cannot be matched against 'aaaa")
    assert "write it without a repetition" in found[0].sentence


@pytest.mark.parametrize("pattern", [r"\Qa.b\E.*", r"\p{Alpha}+", "(?<x>a)"])
def test_java_s_expressions_are_matched_as_java_matches_them(pattern: str) -> None:
    """Validated, looked at together and followed."""
    naming = topic_selection_of(flow("east", "west", include=(pattern,)))

    assert [topic for topic in ("a", "a.bc", "1") if naming.copies(topic)] == {
        r"\Qa.b\E.*": ["a.bc"], r"\p{Alpha}+": ["a"], "(?<x>a)": ["a"],
    }[pattern]  # fmt: skip
