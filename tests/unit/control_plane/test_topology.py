"""Flows looked at together: which topologies may run, which sentence the others get, and whose rules of naming these are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_operator.api.load import flow_of
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan.naming import naming_of
from mirrorflow_operator.plan.samples import samples
from mirrorflow_operator.plan.topology import Conflict, Endpoint, Route, conflicts
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.connect.transforms import read_transforms
from mirrorflow_replicator.connect.values import PropertyReader
from mirrorflow_replicator.errors import SettingError
from mirrorflow_replicator.flow.policy import make_policy
from mirrorflow_replicator.flow.selection import TopicSelection
from mirrorflow_replicator.flow.transforms import Naming as ReplicatorNaming
from mirrorflow_replicator.flow.transforms import Transforms
from mirrorflow_replicator.settings import PolicyKind, PolicySettings


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
    return flow_of(
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
) -> Route:
    source, target = one.spec.source, one.spec.target
    return Route(
        flow=one.metadata.name,
        source=Endpoint(
            alias=source.alias,
            addresses=frozenset(source.bootstrap_servers),
            cluster_id=ids[0],
            topics=topics,
        ),
        target=Endpoint(alias=target.alias, addresses=frozenset(target.bootstrap_servers), cluster_id=ids[1]),
        naming=naming_of(one),
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
            "Flows a-to-b and a-to-bb both copy a source called a to cluster b/bb, which keeps positions by that name;",
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
def test_conflict_is_told_with_its_flows_topics_and_clusters(
    flows: tuple[MirrorFlow, ...], expected: str
) -> None:
    """One sentence that starts with the flows and ends with what to do."""
    conflict = found(*flows)[0]

    assert expected in conflict.sentence
    assert {one.metadata.name for one in flows} >= set(conflict.flows)


def test_cluster_ids_tell_what_addresses_hide() -> None:
    """Two addresses, one cluster; one address (a proxy's), two clusters."""
    there, back = flow("a", "b", identity=True), flow("x", "y", identity=True)
    hidden = [route(there, ids=("1", "2")), route(back, ids=("2", "1"))]
    proxied = [
        route(flow("a", "b", identity=True, at=("a", "proxy")), ids=("1", "2")),
        route(flow("c", "d", identity=True, at=("proxy", "a")), ids=("3", "1")),
    ]

    assert "make a loop" in conflicts(hidden, ["orders"])[0].sentence
    assert () == conflicts(proxied, ["orders"])


def test_source_that_is_its_own_target_is_told() -> None:
    """By cluster id, since addresses are compared by the resource's own rules."""
    assert "its source and its target are one cluster, a/b" in (
        conflicts([route(flow("a", "b"), ids=("1", "1"))], ["orders"])[0].sentence
    )


def test_topics_that_are_there_count_more_than_what_could_be() -> None:
    """Patterns that meet do no harm as long as no topic is in both."""
    flows = flow("a", "hub", identity=True), flow("b", "hub", identity=True)
    apart = [
        route(one, topics=frozenset({name})) for one, name in zip(flows, ("orders", "payments"), strict=True)
    ]
    shared = [route(one, topics=frozenset({"orders"})) for one in flows]

    assert () == conflicts(apart, ["any-topic"])
    assert "topic orders of cluster hub" in conflicts(shared, ["any-topic"])[0].sentence


NAMES = st.lists(
    st.sampled_from(
        ["east", "west", "orders", "heartbeats", "mm2", "internal", "checkpoints", "", "mm2-offsets"]
    ),
    min_size=1,
    max_size=5,
)


@given(
    parts=NAMES,
    between=st.sampled_from([".", "_", "--"]),
    separator=st.sampled_from([".", "_", "--"]),
    identity=st.booleans(),
    include=st.sampled_from([(".*",), ("orders",), (r"east\..*", "west.*")]),
)
def test_naming_and_selection_are_the_replicator_s(
    parts: list[str],
    between: str,
    separator: str,
    identity: bool,  # noqa: FBT001
    include: tuple[str, ...],
) -> None:
    """The operator must not import these rules, and must not have others."""
    topic = between.join(parts)
    one = flow("east", "west", include=include, identity=identity, separator=separator)
    kind = PolicyKind.IDENTITY if identity else PolicyKind.DEFAULT
    selection = TopicSelection(
        include=include,
        exclude=("mm2.*\\.internal", ".*\\.replica", "__.*"),
        policy=make_policy(PolicySettings(kind=kind, separator=separator, source_alias="east")),
        source_alias="east",
        target_alias="west",
        heartbeats=True,
    )

    naming = naming_of(one)

    assert selection.selects(topic) == naming.copies(topic)
    assert selection.target_topic(topic) == naming.target_topic(topic)


STAGES = st.lists(
    st.tuples(
        st.sampled_from(["RegexRouter", "Filter"]),
        st.sampled_from([r"east\.(.*)", "(.*)orders(.*)", "(?<a>.)(.*)", ".*", "orders", "mm2-(.*)"]),
        st.sampled_from(
            ["$1", "$0-$12", "${a}x", r"\$1\\", "mm2-offsets.x.internal", "heartbeats", "", "west.$1"]
        ),
        st.sampled_from(["", r"east\..*", ".*orders.*"]),
        st.booleans(),
    ),
    max_size=3,
)


@given(parts=NAMES, stages=STAGES, separator=st.sampled_from([".", "_"]), identity=st.booleans())
def test_renaming_is_the_replicator_s(
    parts: list[str],
    stages: list[tuple[str, str, str, str, bool]],
    separator: str,
    identity: bool,  # noqa: FBT001
) -> None:
    """Where it takes the transformations at all."""
    names = ",".join(str(at) for at in range(len(stages)))
    config = {"transforms": names, "predicates": names}
    for at, (kind, regex, replacement, predicate, negate) in enumerate(stages):
        config |= {f"transforms.{at}.type": kind, f"transforms.{at}.regex": regex}
        config[f"transforms.{at}.replacement"] = replacement
        config |= {f"predicates.{at}.type": "TopicNameMatches", f"predicates.{at}.pattern": predicate or "x"}
        if predicate:
            config |= {f"transforms.{at}.predicate": str(at), f"transforms.{at}.negate": str(negate)}
    policy = make_policy(
        PolicySettings(
            kind=PolicyKind.IDENTITY if identity else PolicyKind.DEFAULT,
            separator=separator,
            source_alias="east",
        )
    )
    try:
        transforms = Transforms(read_transforms(PropertyReader(config, Resolver({}))))
    except SettingError:
        return
    selection = TopicSelection(
        include=(".*",),
        exclude=("mm2.*\\.internal", ".*\\.replica", "__.*"),
        policy=policy,
        source_alias="east",
        target_alias="west",
        heartbeats=True,
        naming=ReplicatorNaming(policy, "east", transforms),
    )
    naming = naming_of(flow("east", "west", identity=identity, separator=separator, config=config))
    topic = separator.join(parts)

    copied = selection.selects(topic) and not selection.obstacle(topic)
    assert copied == naming.copies(topic)
    if copied:
        assert selection.target_topic(topic) == naming.target_topic(topic)


def test_samples_match_the_patterns_they_stand_for() -> None:
    """The plainest name of each alternative."""
    assert ("orders", "pay-1", "a.b", "any-topic") == samples(["orders.*", r"pay-\d+", "(a.b|.*)"])[:4]
