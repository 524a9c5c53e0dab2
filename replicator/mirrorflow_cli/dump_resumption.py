"""`mirrorflow dump resumption`: prints where each partition continues and why, as table or JSON lines.

Use it for a partition whose resumption is undecided (`Undecided`), or to see what a flow would do before it
is restarted.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mirrorflow_cli.offsets import print_table
from mirrorflow_cli.resumption_evidence import Resumption, read_resumptions
from mirrorflow_core.exactly_once.alignment import LeaderMemory
from mirrorflow_core.exactly_once.resume_candidates import describe_memory
from mirrorflow_core.position import Position, Rung
from mirrorflow_core.settings import SourceSettings

COLUMNS = ("partition", "source", "target", "leader remembers", "position", "begun at", "continue at", "by")


def execute(settings: SourceSettings, *, topic: str | None, as_json: bool) -> None:
    """Prints every partition of the flow, or those of *topic*."""
    found = asyncio.run(_read(settings, topic))
    if as_json:
        for one in found:
            print(json.dumps(fields(one), ensure_ascii=False))
    else:
        print_table(COLUMNS, [row for one in found for row in rows(one)])


async def _read(settings: SourceSettings, topic: str | None) -> list[Resumption]:
    return [one async for one in read_resumptions(settings, topic)]


def rows(one: Resumption) -> Iterator[Sequence[str]]:
    """Yields a line with what the flow would do, and below it one line for each candidate."""
    heard = one.testimony
    target = one.problem or f"{heard.log_start}..{heard.high_watermark}"
    at = "-" if one.decision.source_offset is None else str(one.decision.source_offset)
    yield (
        str(one.partition),
        f"{one.source_log.first}..{one.source_log.end}",
        target,
        "-" if one.identity is None else describe_memory(heard.memory),
        _position(one.position),
        "-" if one.anchor is None else str(one.anchor.source_offset),
        at,
        one.decision.why,
    )
    for candidate in one.candidates:
        yield ("", "", "", "", "", "", f"({candidate.text})", candidate.witness.value)


def _position(position: Position | None) -> str:
    """Returns source offset @ target offset of the last record, then of the older resume points."""
    if position is None:
        return "-"
    rungs = ", ".join(_rung(rung) for rung in position.rungs)
    return _rung(position.rung) + (f" (before: {rungs})" if rungs else "")


def _rung(rung: Rung) -> str:
    return f"{rung.source_offset} @ {'?' if rung.target_offset < 0 else rung.target_offset}"


def fields(one: Resumption) -> Mapping[str, Any]:
    """Returns the JSON object of a partition; null means unknown or absent."""
    heard, identity = one.testimony, one.identity
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "target_topic": one.target.topic,
        "problem": one.problem,
        "source": {"first_offset": one.source_log.first, "end_offset": one.source_log.end},
        "target": {"first_offset": _known(heard.log_start), "end_offset": _known(heard.high_watermark)},
        "identity": None
        if identity is None
        else {
            "generation": identity.generation,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
        },
        "leader": _memory(heard.memory),
        "anchor": None if one.anchor is None else asdict(one.anchor),
        "position": _position_fields(one.position),
        "candidates": [
            {
                "by": candidate.witness.value,
                "source_offset": candidate.source_offset,
                "is_exact": candidate.is_exact,
                "ordinal": candidate.ordinal,
                "target_offset": _known(candidate.target_offset),
            }
            for candidate in one.candidates
        ],
        "decision": asdict(one.decision),
    }


def _memory(memory: LeaderMemory | None) -> Mapping[str, Any] | None:
    if memory is None:
        return None
    return {
        "epoch": memory.epoch,
        "last_sequence": _known(memory.sequence),
        "transaction_open_since": _known(memory.open_since),
    }


def _position_fields(position: Position | None) -> Mapping[str, Any] | None:
    if position is None:
        return None
    return {**asdict(position), "rungs": [rung._asdict() for rung in position.rungs]}


def _known(number: int) -> int | None:
    return None if number < 0 else number
