"""Loads a MirrorPair: each error names the field and the remedy."""

from typing import Any

import pytest
import yaml

from mirrorflow_operator.api.mirror_pair import FenceMethod, load_pair
from mirrorflow_operator.errors import InvalidSpecError
from tests.unit.operator.pairs import mirror_pair


def flow(source: str, target: str, **topics: object) -> dict[str, Any]:
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": f"{source}-to-{target}"},
        "spec": {
            "source": {"alias": source, "bootstrapServers": [f"kafka-{source}:9092"]},
            "target": {"alias": target, "bootstrapServers": [f"kafka-{target}:9092"]},
            "topics": {"include": ["orders.*"], "naming": {"policy": "Identity"}, **topics},
        },
    }


def pair(**spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorPair",
        "metadata": {"name": "east-west"},
        "spec": {
            "members": {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}},
            "fence": {"method": "DenyAcl"},
            **spec,
        },
    }


def text(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents)


def errors(*documents: dict[str, Any]) -> str:
    with pytest.raises(InvalidSpecError) as caught:
        load_pair(text(*documents))
    return str(caught.value)


EAST, WEST = flow("east", "west"), flow("west", "east")


def test_each_member_of_a_pair_has_the_flow_of_which_it_is_the_source():
    loaded = load_pair(text(pair(), EAST, WEST))

    assert {"east": "east-to-west", "west": "west-to-east"} == {
        alias: flow.metadata.name for alias, flow in loaded.flows.items()
    }
    assert loaded.pair.spec.fence.method is FenceMethod.DENY_ACL


def test_the_fence_has_no_default():
    document = pair()
    del document["spec"]["fence"]

    assert errors(document, EAST, WEST).startswith(
        "spec.fence: it is missing; How producers are kept from writing"
    )


def test_the_fence_method_none_is_accepted_if_it_is_written():
    assert (
        load_pair(text(pair(fence={"method": "None"}), EAST, WEST)).pair.spec.fence.method is FenceMethod.NONE
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"fense": 1}, "spec.fense: it is not a field; did you mean fence?"),
        (
            {"members": {"east": {"flo": "x"}, "west": {"flow": "west-to-east"}}},
            "spec.members.east.flo: it is not a field; did you mean flow?",
        ),
        (
            {"members": {"east": {"flow": "east-to-west"}, "west": {"flow": "back"}}},
            "the file has no MirrorFlow named back (it has east-to-west, west-to-east); add it as another document, after a line ---.",
        ),
        (
            {"members": {"east": {"flow": "west-to-east"}, "west": {"flow": "east-to-west"}}},
            "flow west-to-east reads from west, and runs while east is active; name the flow whose spec.source.alias is east.",
        ),
        (
            {"fence": {"method": "Hook"}},
            "spec.fence.hook: method Hook contradicts it; write it for method Hook, and only then.",
        ),
        (
            {"fence": {"method": "None", "exceptPrincipals": ["User:mirror"]}},
            "spec.fence.exceptPrincipals: method None has none; remove it, or set spec.fence.method to DenyAcl.",
        ),
        (
            {"fence": {"method": "DenyAcl", "exceptPrincipals": ["mirror"]}},
            "spec.fence.exceptPrincipals[0]: it should be a principal with its type, such as User:mirror.",
        ),
        (
            {"fence": {"method": "Quota"}},
            "spec.fence.method: it should be 'DenyAcl', 'NetworkPolicy', 'Hook' or 'None'.",
        ),
    ],
    ids=[
        "unknown-field",
        "unknown-field-of-a-member",
        "missing-flow",
        "wrong-way",
        "no-hook",
        "none-with-exceptions",
        "principal",
        "method",
    ],
)
def test_an_invalid_pair_is_refused_with_the_field_and_the_remedy(spec: dict[str, Any], sentence: str):
    assert sentence in errors(pair(**spec), EAST, WEST)


@pytest.mark.parametrize(
    ("back", "sentence"),
    [
        (
            flow("west", "north"),
            "spec.members.west.flow: the file has no MirrorFlow named west-to-east",
        ),
        (
            {
                **WEST,
                "spec": {**WEST["spec"], "target": {"alias": "east", "bootstrapServers": ["elsewhere:9092"]}},
            },
            "spec of west-to-east: its bootstrapServers of east differ from those of east-to-west",
        ),
        (
            {
                **WEST,
                "spec": {
                    **WEST["spec"],
                    "target": {"alias": "north", "bootstrapServers": ["kafka-east:9092"]},
                },
            },
            "spec.target.alias of west-to-east: it is north, which is not the other member; write east.",
        ),
        (
            flow("west", "east", include=["orders"]),
            "spec.topics.include of west-to-east: it differs from that of east-to-west",
        ),
        (
            flow("west", "east", naming={"policy": "Prefix"}),
            "spec.topics.naming.policy of west-to-east: it is Prefix, and applications look for the same topics",
        ),
        (
            flow("west", "east", acls={"sync": "Apply"}),
            "spec.topics.acls.sync of west-to-east: Apply would copy the fence to the other cluster",
        ),
    ],
    ids=["no-way-back", "other-addresses", "other-target", "other-topics", "prefix", "acl-sync"],
)
def test_flows_that_do_not_mirror_each_other_are_refused(back: dict[str, Any], sentence: str):
    assert sentence in errors(pair(), EAST, back)


def test_a_file_without_a_pair_is_refused():
    assert errors(EAST, WEST) == (
        "the file: it contains 0 objects of kind MirrorPair; write one MirrorPair and its two MirrorFlows into it."
    )


def test_a_flow_of_both_members_is_refused():
    assert "it contains two flows named east-to-west" in errors(pair(), EAST, EAST, WEST)


@pytest.mark.parametrize(
    ("probe", "sentence"),
    [
        ({"type": "ScramSha512"}, "spec.members.east.probe.password: it is missing"),
        (
            {"type": "Custom", "config": {"sasl.jaas.config": 'A required password="hunter2";'}},
            "spec.members.east.probe.config[sasl.jaas.config]: it contains a secret in plain text",
        ),
        (
            {"type": "Custom", "config": {"bootstrap.servers": "other:9092"}},
            "spec.members.east.probe.config[bootstrap.servers]: it is not a sasl. or ssl. property; remove it",
        ),
        (
            {"type": "Plain", "username": {}, "password": {"secretName": "a", "key": "b"}},
            "spec.members.east.probe.username: it needs either value, or secretName and key",
        ),
    ],
)
def test_a_probe_follows_the_rules_of_the_authentication_of_a_flow(probe: dict[str, Any], sentence: str):
    """Its secrets would be in the pair and in a ConfigMap, or its process would not log in."""
    with pytest.raises(InvalidSpecError) as raised:
        mirror_pair(members={"east": {"flow": "a", "probe": probe}, "west": {"flow": "b"}})

    assert sentence in str(raised.value)
    assert "hunter2" not in str(raised.value)
