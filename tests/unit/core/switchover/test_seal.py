import json

import pytest
from hypothesis import given

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.seal import PartitionSeal, Seal, encode_seal, seal_fields, seal_of
from tests.unit.core.switchover.strategies import SEALS

SEAL = Seal(
    pair="east-west",
    switchover="drill",
    epoch=3,
    attempt=2,
    digest_key="ef",
    partitions=(
        PartitionSeal(
            topic="orders",
            partition=0,
            topic_id="x1",
            end=12,
            last_stable=12,
            copied=10,
            records=9,
            digest="ab",
        ),
    ),
)


@given(SEALS)
def test_a_decoded_seal_equals_the_encoded_one(seal):
    assert seal_of(json.loads(encode_seal(seal))) == seal


@given(SEALS)
def test_a_decoded_seal_has_the_digest_of_the_encoded_one(seal):
    assert seal_of(json.loads(encode_seal(seal))).sha256 == seal.sha256


def test_the_json_of_a_seal_has_sorted_keys_and_no_spaces():
    assert encode_seal(SEAL) == (
        b'{"attempt":2,"digest_key":"ef","epoch":3,"format":1,"pair":"east-west","partitions":[{"copied":10,"digest":"ab","end":12,'
        b'"last_stable":12,"partition":0,"records":9,"topic":"orders","topic_id":"x1"}],"switchover":"drill"}'
    )


def test_the_digest_of_a_seal_is_stable():
    assert SEAL.sha256 == "92fc9bddc74537040f630292253d66e0f1424dcb06fcf2eee463fb8d6d069a13"


def test_the_order_of_keys_and_partitions_in_an_encoded_seal_does_not_matter():
    fields = seal_fields(SEAL)
    other = fields["partitions"][0] | {"topic": "zebra"}
    shuffled = dict(reversed(fields.items())) | {"partitions": [other, fields["partitions"][0]]}

    assert [seal.topic for seal in seal_of(shuffled).partitions] == [
        "orders",
        "zebra",
    ]


def test_a_seal_returns_the_end_of_each_partition():
    assert SEAL.ends == {TopicPartition("orders", 0): 12}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "newer version"),
        ({"partitions": None}, "partitions is not a list of objects"),
        ({"partitions": [3]}, "partitions is not a list of objects"),
        ({"epoch": "3"}, "epoch is not a whole number"),
        ({"pair": 3}, "pair is not a string"),
    ],
)
def test_a_damaged_seal_is_refused(changes, problem):
    damaged = seal_fields(SEAL) | changes

    with pytest.raises(ValueError, match=problem):
        seal_of(damaged)
