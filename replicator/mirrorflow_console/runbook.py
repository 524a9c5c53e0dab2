"""Finds what to do about a reason: the sections of docs/runbooks.md and the tables of docs/conditions.md.

`texts/` has links to both pages, which become files in a wheel. Pure, except for reading these files once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

# Reasons for which the section of an alert says what to do; other reasons have a section of their own name, or a row.
_SECTION_OF_REASON: Final[Mapping[str, str]] = {
    "SourceDataLost": "MirrorFlowDataLost",
    "Throttled": "MirrorFlowThrottled",
    "Stuck": "MirrorFlowStuck",
    "GroupsFailing": "MirrorFlowGroupsFailing",
    "GroupNotMoved": "MirrorFlowGroupsFailing",
    "CheckpointsStale": "MirrorFlowGroupsUnknown",
    "ConflictsFound": "MirrorFlowSchemaConflicts",
    "SeedFailed": "MirrorFlowSeedFailed",
    "DifferencesFound": "MirrorFlowDifferencesFound",
    "VerificationOverdue": "MirrorFlowVerificationOverdue",
    "ArchiveFailed": "MirrorFlowArchiveFailing",
    "ArchiveIncomplete": "MirrorFlowArchiveFailing",
    "ArchiveOverdue": "MirrorFlowArchiveFailing",
    "RestoreFailed": "MirrorFlowRestoreFailed",
    "PartitionsStalled": "MirrorFlowPartitionsStalled",
    "PartitionsStopped": "MirrorFlowPartitionsStopped",
    "OpenTransaction": "MirrorFlowOpenTransaction",
    "Lagging": "MirrorFlowLagging",
    "FallingBehind": "MirrorFlowFallingBehind",
    "AtLeastOnce": "MirrorFlowAtLeastOnce",
    "NoAnswer": "MirrorFlowConnectorUnreachable",
}
# Reasons of the replicator for which a condition's row has other words.
_CONDITION_OF_REASON: Final[Mapping[str, str]] = {
    "TopicNotCopied": "TopicsNotCopied",
    "ConnectionLost": "Unreachable",
}
STOPPED: Final = "MirrorFlowPartitionsStopped"
_HEADING: Final = re.compile(r"^#{3,4} (\w+)$", re.MULTILINE)
_ROW: Final = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do: an explanation and steps, most likely cause first. Text with backquotes around code."""

    title: str
    meaning: str
    steps: tuple[str, ...] = ()


def advice_for(reason: str, *, has_stopped: bool = False) -> Advice | None:
    """Returns what to do about *reason*; None if no page has it. *has_stopped*: of a partition that copies no more."""
    sections, rows = _sections(), _rows()
    name = _SECTION_OF_REASON.get(reason, reason)
    if name in sections:
        return sections[name]
    if has_stopped:
        return sections.get(STOPPED)
    return rows.get(_CONDITION_OF_REASON.get(reason, reason))


@cache
def _sections() -> Mapping[str, Advice]:
    text = _text("runbooks.md")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading[1]: _section(heading[1], text[heading.end() : end])
        for heading, end in zip(headings, ends, strict=True)
    }


def _section(title: str, text: str) -> Advice:
    body = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    first, *items = re.split(r"^- ", body, flags=re.MULTILINE)
    # The last step ends with the list: a paragraph after it belongs to the page, not to the step.
    steps = [item.split("\n\n", 1)[0] for item in items]
    return Advice(title=title, meaning=_plain(first), steps=tuple(map(_plain, steps)))


@cache
def _rows() -> Mapping[str, Advice]:
    rows: dict[str, Advice] = {}
    for reason, meaning, remedy in _ROW.findall(_text("conditions.md")):
        if remedy.strip() not in {"", "Nothing."}:
            rows.setdefault(reason, Advice(title=reason, meaning=_plain(meaning), steps=(_plain(remedy),)))
    return rows


def _plain(text: str) -> str:
    """Returns *text* in one line, with the words of a link in its place."""
    return " ".join(_LINK.sub(r"\1", text).split())


def _text(name: str) -> str:
    return resources.files("mirrorflow_console").joinpath("texts", name).read_text(encoding="utf-8")
