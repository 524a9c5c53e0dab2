"""`mirrorflow diverged` refuses invalid arguments before it connects, and reports a tail."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_cli.__main__ import main
from mirrorflow_cli.commands.diverged import _commands
from mirrorflow_cli.diverged_report import (
    key_text,
    recreate_commands,
    rows_of,
    sentences_of,
    survey_json,
    written_sentences,
)
from mirrorflow_cli.errors import EXIT_USAGE
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.diverged_tail import DivergedTail, TailCount, TailState
from mirrorflow_replicator.switchover.diverged_tail import CountedTail, TailSurvey
from mirrorflow_replicator.switchover.quiescence import UndecidedTransaction
from mirrorflow_replicator.switchover.tail_keeping import WrittenTail

PAIR = """apiVersion: mirrorflow.io/v1alpha1
kind: MirrorPair
metadata: {name: east-west}
spec:
  members:
    east: {flow: east-to-west}
    west: {flow: west-to-east}
  fence: {method: DenyAcl}
---
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {name: east-to-west}
spec:
  source: {alias: east, bootstrapServers: ["east:9092"]}
  target: {alias: west, bootstrapServers: ["west:9092"]}
  topics: {include: [orders], naming: {policy: Identity}}
---
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {name: west-to-east}
spec:
  source: {alias: west, bootstrapServers: ["west:9092"]}
  target: {alias: east, bootstrapServers: ["east:9092"]}
  topics: {include: [orders], naming: {policy: Identity}}
"""
ORDERS = TopicPartition("orders", 0)
TAIL = CountedTail(
    tail=DivergedTail(partition=ORDERS, state=TailState.CUT, start=10, end=15, gone=2),
    count=TailCount(
        records=3,
        size_bytes=30,
        aborted=1,
        first_ms=0,
        last_ms=1_000,
        first_key=b"a",
        last_key=b"\xff",
        producer_ids=frozenset({4, 2}),
    ),
)
OPEN = UndecidedTransaction(
    partition=ORDERS, start_offset=14, producer_id=4, last_timestamp_ms=0, transactional_id="app"
)


def survey(*tails: CountedTail) -> TailSurvey:
    return TailSurvey(switchover="east-west-1", tails=tails, transactions=(OPEN,))


def without_records(state: TailState, lost: int = 0) -> CountedTail:
    return CountedTail(tail=DivergedTail(partition=ORDERS, state=state, lost=lost))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--left", "north"], "--left: north is not a member of east-west; write east or west."),
        ([], "--left: it is missing; write east or west."),
        (
            ["append", "--left", "east", "--archive", "a"],
            "--archive: append writes no archive; write keep.",
        ),
        (["show", "--left", "east", "--topics"], "--topics: show keeps nothing; write keep."),
    ],
    ids=["no-member", "no-side", "appended-archive", "shown-topics"],
)
def test_invalid_arguments_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
):
    file = tmp_path / "pair.yaml"
    file.write_text(PAIR)

    assert main(["diverged", *arguments, "-f", str(file)]) == EXIT_USAGE
    assert capsys.readouterr().err.strip() == sentence


def test_the_text_report_has_counts_times_producers_and_open_transactions():
    first, *more = sentences_of(survey(TAIL), "east")

    assert first == (
        "3 records of 1 partitions (30 bytes, from 1970-01-01T00:00:00.000Z to 1970-01-01T00:00:01.000Z) never crossed "
        "from east, as switchover east-west-1 has ended its flow. Producer ids: 2, 4."
    )
    assert more == [
        "orders-0: retention has deleted the first 2 offsets of the tail.",
        "1 records of aborted transactions are no part of the tail.",
        "Not decided yet: a transaction of transactional id app of producer 4, open in orders-0 since offset 14.",
    ]


@pytest.mark.parametrize(
    ("state", "phrase"),
    [
        (TailState.LOST, "the old side has lost 7 offsets that were copied, and has no tail"),
        (TailState.REWRITTEN, "has other records in their place"),
        (TailState.RECREATED, "was deleted and created again"),
        (TailState.UNDECIDED, "it is not known where the tail begins"),
        (TailState.MISSING, "it no longer exists"),
    ],
)
def test_a_partition_without_a_tail_is_reported_with_the_reason(state: TailState, phrase: str):
    first, second, *_ = sentences_of(survey(without_records(state, lost=7)), "east")

    assert first == "No record was left on east: switchover east-west-1 has no diverged tail."
    assert second.startswith("orders-0: ")
    assert phrase in second


def test_partitions_without_a_tail_have_no_row():
    rows = rows_of(survey(TAIL, without_records(TailState.CUT), without_records(TailState.LOST, 7)))

    assert [("orders-0", "Cut", "10..15", "3"), ("orders-0", "Lost", "", "0")] == [row[:4] for row in rows]


def test_the_json_object_has_keys_and_no_values():
    shown = json.loads(json.dumps(survey_json(survey(TAIL), old_side="east", new_side="west")))

    (partition,) = shown["partitions"]
    assert {"firstKey": "a", "lastKey": "0xff", "records": 3, "gone": 2}.items() <= partition.items()
    assert [4] == [transaction["producerId"] for transaction in shown["openTransactions"]]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, "(null)"),
        (b"", ""),
        (b"order-1", "order-1"),
        (b"\x00\x01", "0x0001"),
        (b"k" * 50, "k" * 39 + "…"),
    ],
)
def test_a_key_is_shown_as_text_or_in_hexadecimal_and_shortened(key: bytes | None, text: str):
    assert key_text(key) == text


def test_written_records_are_summed_by_topic():
    written = [
        WrittenTail(
            source=TopicPartition("orders", number),
            target=TopicPartition("orders.diverged.1", number),
            records=5,
            added=number,
        )
        for number in range(3)
    ]

    assert written_sentences(written, "kept in") == ["15 records are kept in orders.diverged.1 (3 now)."]


def test_the_printed_commands_delete_each_topic_once_and_seed_the_reverse_flow():
    commands = recreate_commands(
        ["orders", "orders", "bills"], bootstrap_servers="east:9092", flow="west-to-east", start_back="then"
    )

    delete = "kafka-topics.sh --bootstrap-server east:9092 --command-config admin.properties --delete --topic"
    seed = "mirrorflow seed -f west-to-east.yaml --foreign-records accept"
    assert [f"{delete} bills", f"{delete} orders", "then", seed] == commands


def test_the_printed_start_back_command_runs_in_a_shell():
    """It has the options that were given, and file names with blanks are quoted."""
    given = {"file": "my pair.yaml", "secrets": "/etc/my secrets", "archive": "s3://b/tail", "left": "east"}
    flow = SimpleNamespace(
        metadata=SimpleNamespace(name="west-to-east"),
        spec=SimpleNamespace(target=SimpleNamespace(bootstrap_servers=["east:9092"])),
    )
    commands = _commands(
        cast("Any", SimpleNamespace(**given)),
        cast("Any", SimpleNamespace(source="east", to="west")),
        cast("Any", SimpleNamespace(flows={"west": flow})),
        cast("Any", SimpleNamespace(tails=())),
    )

    options = [
        "-f",
        "my pair.yaml",
        "--left",
        "east",
        "--secrets",
        "/etc/my secrets",
        "--archive",
        "s3://b/tail",
    ]
    assert shlex.split(commands[0]) == ["mirrorflow", "diverged", "start-back", *options]
