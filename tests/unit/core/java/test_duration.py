"""Durations and timestamps are parsed as in Java."""

import pytest

from mirrorflow_core.java.properties import parse_duration_ms, parse_instant_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P2D", 172_800_000),
        ("P1DT1S", 86_401_000),
        ("PT0.5S", 500),
        ("PT-6H+3M", -21_420_000),
        ("-PT6H", -21_600_000),
        ("pt15m", 900_000),
        ("PT-0.5S", -500),
    ],
)
def test_durations_are_parsed_as_in_java(text: str, expected_ms: int):
    """The values are the examples of java.time.Duration.parse."""
    assert expected_ms == parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "P", "PT", "1h", "P1Y", "P1DT", "PT1"])
def test_invalid_durations_are_refused(text: str):
    """Java refuses these texts too."""
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.250", 250),
        ("1970-01-02", 86_400_000),
    ],
)
def test_timestamps_are_iso_8601_or_milliseconds(text: str, expected_ms: int):
    """Without a time zone they are UTC, independent of the local time zone."""
    assert expected_ms == parse_instant_ms(text)
