"""The code blocks of a Markdown page, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\s*$")
_INDENT = " " * 4
_LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_MARK = re.compile(r"^<!-- not checked: (.+) -->$")
_DRAWN = "──"  # of a picture in which a program is a box
_PROGRAM = re.compile(r"^(?:\$ )?(mirrorflow(?:-replicator)?) ")
# What follows a command on its line: a comment, or, in a table of commands, a second column.
_REMARK = re.compile(r"\s#.*$|\s{3,}\S.*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of *page*, fenced or indented; *line* is where its text begins, *unchecked* why nothing is asserted about it."""

    page: Path
    line: int
    language: str
    text: str
    unchecked: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line of a block that starts one of our programs."""

    block: Block
    line: int
    program: str
    arguments: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.block.page.name}:{self.line} {' '.join((self.program, *self.arguments[:1]))}"


def blocks(page: Path) -> Iterator[Block]:
    """Each block of *page*, in order."""
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is not None:
            end = next(number for number in range(at + 1, len(lines)) if lines[number].startswith("```"))
            yield _block(page, lines, at + 1, end, language=fence.group(1), before=at)
            at = end + 1
        elif _begins_indented(lines, at):
            end = at
            while end < len(lines) and (lines[end].startswith(_INDENT) or not lines[end].strip()):
                end += 1
            yield _block(page, lines, at, end, language="", before=at)
            at = end
        else:
            at += 1


def commands(block: Block) -> Iterator[Command]:
    """Each line of *block* that starts one of our programs."""
    for number, line in enumerate(block.text.splitlines(), block.line):
        found = None if _DRAWN in line else _PROGRAM.match(line)
        if found is not None:
            written = _REMARK.sub("", line[found.end() :]).partition(" > ")[0]
            # A synopsis: what may be left out is given, what may be repeated is given once.
            words = shlex.split(written.replace("[", "").replace("]", "").replace("...", ""))
            yield Command(block=block, line=number, program=found.group(1), arguments=tuple(words))


def _begins_indented(lines: list[str], at: int) -> bool:
    """Whether line *at* begins an indented block: after an empty line, and not within a list."""
    if not lines[at].startswith(_INDENT) or not lines[at].strip() or (at and lines[at - 1].strip()):
        return False
    before = [line for line in lines[:at] if line.strip() and not line.startswith(" ")]
    return not before or not _LIST_ITEM.match(before[-1])


def _block(page: Path, lines: list[str], start: int, end: int, *, language: str, before: int) -> Block:
    text = "\n".join(line if language else line.removeprefix(_INDENT) for line in lines[start:end])
    above = [line for line in lines[:before] if line.strip()]
    mark = _MARK.match(above[-1]) if above else None
    return Block(
        page=page,
        line=start + 1,
        language=language,
        text=text.strip("\n") + "\n",
        unchecked=mark.group(1) if mark else "",
    )
