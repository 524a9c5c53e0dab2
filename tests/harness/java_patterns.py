"""Matches names with Java's regular expressions. One JVM evaluates all pairs."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "kafka" / "java" / "PatternMatches.java"
TIMEOUT_S = 120


def java_matches(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns "1" or "0" for each (pattern, name), or "E" if Java refuses the pattern. Skips the test without Java."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("Java is not installed")
    lines = "".join(f"{_hexadecimal(pattern)}\t{_hexadecimal(name)}\n" for pattern, name in pairs)
    process = subprocess.run(
        [java, str(SOURCE)], input=lines, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    return process.stdout.split()


def _hexadecimal(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").hex()
