"""Asks Java itself which names its regular expressions match: one JVM for all questions."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "kafka" / "java" / "PatternMatches.java"
TIMEOUT_S = 120


def java_matches(questions: Sequence[tuple[str, str]]) -> list[str]:
    """For each (pattern, name) "1" or "0", or "E" where Java refuses the pattern. Skips the test without Java."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("there is no Java")
    lines = "".join(f"{_hexadecimal(pattern)}\t{_hexadecimal(name)}\n" for pattern, name in questions)
    done = subprocess.run(
        [java, str(SOURCE)], input=lines, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    return done.stdout.split()


def _hexadecimal(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex()
