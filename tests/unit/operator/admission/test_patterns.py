"""Java regular expressions in the operator: invalid ones are refused, and slow ones do not block it."""

import time
from typing import Any

import pytest

from mirrorflow_core.java.patterns import MATCH_LIMIT_S
from mirrorflow_operator.admission.cross_flow_checks import CrossFlowChecks
from mirrorflow_operator.admission.flow_conflicts import samples
from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_operator.plan.names import topic_selection_of
from mirrorflow_operator.status.observation import Resource
from tests.unit.operator.admission.test_cross_flow_checks import resource


def document(*include: str) -> dict[str, Any]:
    return {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": "flow"},
        "spec": {
            "source": {"alias": "east", "bootstrapServers": ["east:9092"]},
            "target": {"alias": "west", "bootstrapServers": ["west:9092"]},
            "topics": {"include": list(include)},
        },
    }


@pytest.mark.parametrize(
    "pattern", [r"\Qa.b\E.*", r"\p{Alpha}+", "(?<x>a)", "[a-z&&[^b]]", "a(?i)b", "a++", "(?<=a)b"]
)
def test_patterns_valid_in_java_are_accepted(pattern: str) -> None:
    parse_flow(document(pattern))


@pytest.mark.parametrize("pattern", ["(?P<x>a)", "(?#x)a", "a**", r"\y", "(", "(?(1)a)"])
def test_patterns_invalid_in_java_are_refused(pattern: str) -> None:
    """Python accepts some of them."""
    with pytest.raises(
        InvalidSpecError, match=r"spec\.topics\.include\[0\]: .* is not a Java regular expression"
    ):
        parse_flow(document(pattern))


def test_patterns_that_cannot_be_joined_are_refused() -> None:
    """Each pattern is valid, but MM2 joins them into one pattern."""
    with pytest.raises(InvalidSpecError) as raised:
        parse_flow(document("(?<x>a)", "(?<x>b)"))

    assert str(raised.value) == (
        "spec.topics.include: its entries cannot be joined by |, as MM2 does: two groups are named 'x'; change one."
    )


@pytest.mark.parametrize("pattern", [r"\Qorders.v1\E", "(?<x>orders)", r"\p{Alpha}+"])
def test_java_patterns_have_samples(pattern: str) -> None:
    assert samples([pattern])


def test_a_slow_pattern_neither_refuses_a_flow_nor_blocks_the_operator() -> None:
    """Samples are guessed topic names. The connector checks the real names."""
    include = ("(a|a)*", "a" * 200 + "-1")
    flows: list[Resource] = [
        resource("there", "east", "west", identity=True, include=include),
        resource("other", "north", "west", identity=True, include=("orders",)),
    ]
    checks, began_s = CrossFlowChecks(), time.process_time()

    for flow in flows:
        checks.put(flow)

    assert [checks.refusal(flow.key) for flow in flows] == [None, None]
    assert time.process_time() - began_s < 10 * MATCH_LIMIT_S


def test_transforms_rename_topics_as_in_java() -> None:
    spec = document("sales.*")
    spec["spec"]["topics"]["naming"] = {"policy": "Identity"}
    spec["spec"]["connectors"] = {
        "source": {
            "config": {
                "transforms": "r",
                "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
                "transforms.r.regex": r"(?<team>\p{Alpha}+)\.\Qv1.\E(.*)",
                "transforms.r.replacement": "${team}-$2",
            }
        }
    }

    naming = topic_selection_of(parse_flow(spec))

    assert [naming.target_topic(topic) for topic in ("sales.v1.orders", "sales.v2")] == [
        "sales-orders",
        "sales.v2",
    ]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"transforms.a.type": "RegexRouter"}, "transforms.a.regex: it is missing"),
        ({"transforms.a.type": "Filter"}, "transforms.a.predicate: without it nothing at all"),
        ({"transforms.a.type": "${env:CLASS}"}, ""),
        (
            {"transforms.a.type": "RegexRouter", "transforms.a.regex": "x", "transforms.a.replacement": "y"},
            "",
        ),
    ],
)
def test_transforms_that_the_connector_would_refuse_make_the_spec_invalid(
    config: dict[str, str], problem: str
) -> None:
    spec = document("sales.*")
    spec["spec"]["connectors"] = {"source": {"config": {"transforms": "a", **config}}}
    try:
        parse_flow(spec)
        message = ""
    except InvalidSpecError as error:
        message = str(error)

    assert problem in message
    assert bool(problem) == bool(message)


def test_invalid_transforms_rename_nothing() -> None:
    """The connector refuses them. The operator still checks the topics of the flow."""
    spec = document("sales.*")
    spec["spec"]["connectors"] = {
        "source": {"config": {"transforms": "r", "transforms.r.type": "TimestampRouter"}}
    }

    stored = MirrorFlow.model_validate(spec)
    assert topic_selection_of(stored).target_topic("sales.v1") == "east.sales.v1"
