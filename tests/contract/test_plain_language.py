"""Finds habits of speech that make code and pages hard to read.

Every tracked Python file, page and YAML file is read; the golden files of tests are exempt. Underscores count as
spaces, so the names of tests and functions are covered too.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A phrase may be wrapped, also inside a comment.
GAP = r"\s+(?:#\s*)?"
BANNED = re.compile(
    "|".join(
        (
            r"(?i:\b(?:nobody|somebody|whoever)\b)",
            rf"(?i:\b(?:is|was){GAP}told\b)",
            r"(?i:\btells\b)",
            rf"(?i:\bgoes{GAP}on\b)",
            rf"(?i:\bof{GAP}before\b)",
            rf"(?i:\bin{GAP}the{GAP}place{GAP}of\b)",
            rf"\bSee{GAP}the{GAP}module\.",
            # With a capital: the sentence begins with it.
            rf"\bOf{GAP}(?:an?|the)\b",
        )
    )
)
# Folders that are not clean yet, with the phrases that they may still hold. A number only ever falls; a folder that
# reaches zero leaves the list.
NOT_CLEAN: dict[str, int] = {}


def tracked() -> list[str]:
    """Returns the files to read, relative to the root."""
    command = ["git", "ls-files", "-z", "--", "*.py", "*.md", "*.yaml"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git work tree: nothing is tracked here")
    mine = str(Path(__file__).relative_to(ROOT))
    return [
        name
        for name in listed.split("\0")
        if name and name != mine and "/golden/" not in name and (ROOT / name).is_file()
    ]


def findings(name: str) -> Iterator[str]:
    """Yields the place of each banned phrase of a file."""
    text = (ROOT / name).read_text().replace("_", " ")
    for match in BANNED.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{name}:{line} {' '.join(match.group().split())}"


def folder_of(name: str) -> str | None:
    """Returns the narrowest listed folder that holds the file; None if there is none."""
    return max((folder for folder in NOT_CLEAN if name.startswith(folder)), key=len, default=None)


def test_no_banned_phrase_outside_the_list():
    found = [place for name in tracked() if folder_of(name) is None for place in findings(name)]

    assert [] == found


def test_listed_folders_only_improve():
    counts: Counter[str] = Counter()
    for name in tracked():
        if folder := folder_of(name):
            counts[folder] += sum(1 for _ in findings(name))

    assert {} == {folder: count for folder, count in counts.items() if count > NOT_CLEAN[folder]}
