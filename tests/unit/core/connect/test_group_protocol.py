"""The bytes of Connect's group protocol equal those of Apache's classes (connect-runtime 4.3.1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.group_assignment import (
    CONFIG_MISMATCH,
    CONNECTOR,
    GroupAssignment,
    MemberState,
    Unit,
    decode_assignment,
    decode_state,
    encode_assignment,
    encode_state,
)

URL = "http://h1:8083/"
URL_HEX = "000f687474703a2f2f68313a383038332f"
ASSIGNMENT = GroupAssignment(
    leader="m-1",
    leader_url=URL,
    config_offset=12,
    assigned=frozenset({Unit(connector="src"), Unit(connector="src", task=0), Unit(connector="src", task=3)}),
    revoked=frozenset({Unit(connector="old"), Unit(connector="old", task=1)}),
)
ASSIGNMENT_HEX = (
    "0000" + "00036d2d31" + URL_HEX + "000000000000000c"
    "00000001" + "0003737263" + "00000003" + "ffffffff" + "00000000" + "00000003"
    "00000001" + "00036f6c64" + "00000002" + "ffffffff" + "00000001" + "00000000"
)


@pytest.mark.parametrize("version", [1, 2])
def test_the_bytes_equal_those_of_apache_kafka(version: int) -> None:
    number = f"{version:04x}"
    assert number + ASSIGNMENT_HEX == encode_assignment(ASSIGNMENT, version).hex()
    empty = GroupAssignment(
        error=CONFIG_MISMATCH, leader="m-1", leader_url=URL, config_offset=12, delay_ms=300_000
    )
    assert (
        number + "000100036d2d31" + URL_HEX + "000000000000000c" + "00000000" * 2 + "000493e0"
        == encode_assignment(empty, version).hex()
    )
    state = MemberState(url=URL, config_offset=7)
    assert number + URL_HEX + "0000000000000007ffffffff" == encode_state(state, version).hex()
    holding = MemberState(url=URL, config_offset=7, held=ASSIGNMENT)
    assert (
        number + URL_HEX + "0000000000000007" + "00000054" + number + ASSIGNMENT_HEX
        == encode_state(holding, version).hex()
    )


NAMES = st.text(max_size=20)
UNITS = st.frozensets(
    st.builds(Unit, connector=NAMES, task=st.integers(min_value=CONNECTOR, max_value=2**31 - 1)), max_size=20
)
ASSIGNMENTS = st.builds(
    GroupAssignment,
    error=st.integers(min_value=0, max_value=1),
    leader=NAMES,
    leader_url=NAMES,
    config_offset=st.integers(min_value=0, max_value=2**62),
    assigned=UNITS,
    revoked=UNITS,
    delay_ms=st.integers(min_value=0, max_value=2**31 - 1),
)


@given(ASSIGNMENTS, st.sampled_from([1, 2]))
def test_assignments_and_states_are_decoded_as_encoded(assignment: GroupAssignment, version: int) -> None:
    assert assignment == decode_assignment(encode_assignment(assignment, version))
    state = MemberState(url="u", config_offset=3, held=assignment)
    assert state == decode_state(encode_state(state, version))


def test_null_arrays_are_empty() -> None:
    data = bytes.fromhex(
        "0002" + "0000" + "00036d2d31" + URL_HEX + "000000000000000c" + "ffffffff" * 2 + "00000000"
    )
    assert frozenset() == decode_assignment(data).assigned | decode_assignment(data).revoked


@given(st.binary(max_size=60))
def test_invalid_bytes_cause_only_a_value_error(data: bytes) -> None:
    for decode in (decode_state, decode_assignment):
        try:
            decode(data)
        except ValueError:
            continue


def test_the_eager_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="version 0"):
        decode_state(bytes.fromhex("0000" + URL_HEX + "0000000000000007"))
