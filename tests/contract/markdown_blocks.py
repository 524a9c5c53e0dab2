"""Reads the code blocks of a Markdown page and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\s*$")
_INDENT = " " * 4
_LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_MARK = re.compile(r"^<!-- not checked: (.+) -->$")
_DRAWN = "──"  # part of a box in a diagram
_PROGRAM = re.compile(r"^(?:\$ )?(mirrorflow(?:-replicator)?) ")
# What may follow a command on its line: a comment or, in a table of commands, a second column.
_REMARK = re.compile(r"\s#.*$|\s{3,}\S.*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced or indented block.

    *line* is the line where its text begins, and *unchecked* the reason why it is not checked.
    """

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
    """A line of a block that starts a program of MirrorFlow."""

    block: Block
    line: int
    program: str
    arguments: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.block.page.name}:{self.line} {' '.join((self.program, *self.arguments[:1]))}"


def blocks(page: Path) -> Iterator[Block]:
    """Yields each block of *page* in order."""
    lines = page.read_text().splitlines()
    index = 0
    while index < len(lines):
        fence = _FENCE.match(lines[index])
        if fence is not None:
            end = next(number for number in range(index + 1, len(lines)) if lines[number].startswith("```"))
            yield _block(page, lines, index + 1, end, language=fence.group(1), before=index)
            index = end + 1
        elif _begins_indented(lines, index):
            end = index
            while end < len(lines) and (lines[end].startswith(_INDENT) or not lines[end].strip()):
                end += 1
            yield _block(page, lines, index, end, language="", before=index)
            index = end
        else:
            index += 1


def commands(block: Block) -> Iterator[Command]:
    """Yields each line of *block* that starts a program of MirrorFlow."""
    for number, line in enumerate(block.text.splitlines(), block.line):
        match = None if _DRAWN in line else _PROGRAM.match(line)
        if match is not None:
            written = _REMARK.sub("", line[match.end() :]).partition(" > ")[0]
            # In a synopsis, optional arguments are kept, and repeatable ones are given once.
            words = shlex.split(written.replace("[", "").replace("]", "").replace("...", ""))
            yield Command(block=block, line=number, program=match.group(1), arguments=tuple(words))


def _begins_indented(lines: list[str], index: int) -> bool:
    """Returns whether line *index* begins an indented block. It must follow an empty line and must not be in a list."""
    if (
        not lines[index].startswith(_INDENT)
        or not lines[index].strip()
        or (index and lines[index - 1].strip())
    ):
        return False
    before = [line for line in lines[:index] if line.strip() and not line.startswith(" ")]
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
