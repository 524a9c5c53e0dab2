"""Finds phrases that make code and pages hard to read.

Every tracked Python file, page and YAML file is searched, except the golden files of tests. Underscores count as spaces,
so the names of tests and functions are covered too.
"""

import ast
import io
import re
import subprocess
import tokenize
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
# Folders that still contain banned phrases, with their number. A number may only decrease; a folder without any is
# removed from the list.
NOT_CLEAN: dict[str, int] = {}
# Words of everyday speech where tests need a term: a report or response instead of "said" and "told", a noun as a
# loop variable, "session" for a start of a task.
BANNED_IN_TESTS = re.compile(
    "|".join(
        (
            rf"\bfor{GAP}one{GAP}in\b",
            r"(?i:\b(?:said|told|hears?|heard|anew|borne|slips?|stand-ins?)\b)",
            r"(?i:\b(?:whatever|whoever|ours|his)\b)",
            rf"(?i:\b(?:for{GAP}ever|all{GAP}the{GAP}same|all{GAP}else|in{GAP}vain|in{GAP}silence|but{GAP}for)\b)",
            rf"(?i:\b(?:looked{GAP}at|passed{GAP}over|who{GAP}comes|is{GAP}not{GAP}there)\b)",
            rf"(?i:\bstarts?{GAP}of{GAP}a{GAP}task\b)",
            rf"(?i:\b(?:again{GAP}and{GAP}again|stays?{GAP}as{GAP}(?:it|they){GAP}(?:are|is)|flow{GAP}back{GAP}(?:has|is|runs|copies)))",
        )
    )
)
# Names of tests that a reader has to read twice: without a noun as the subject, with "we" for the product, with "named" for
# the content of an error, or with a figure of speech.
UNCLEAR_TEST_NAME = re.compile(
    r"""
    ^(?:it|its|of|one[ ]that|others|there|what|who|whose)\b
    | \b(?:is|are)[ ]named\b
    | \b(?:my|our|ours|us|we)\b
    | \b(?:again[ ]and[ ]again|both[ ]ways|everybody|everyone|flow[ ]back|taken[ ]for|there[ ]and[ ]back|trouble)\b
    | \bas[ ](?:it|they)[ ](?:are|is|was|were)\b
    | \b(?:asks?|knows?[ ]no|lives?|moment|says?|sleeps?|speaks?|stands?|tells?|wants?)\b
    """,
    re.VERBOSE,
)
# Words in names, docstrings and comments of tests for which Kafka, Kubernetes or Python has a term: a process requests,
# responds, detects and resumes, a leader expires a producer, a stop is graceful, a record is recent, and a setting takes
# precedence. The other words begin sentences that have to be read twice.
UNCLEAR_PROSE = re.compile(
    r"""
    ^Whether\b
    | \b(?:answers?|asks?|asked|cleanly|forgets?|fresh|notice[sd]?|remember(?:s|ed)?|thaw(?:s|ed)?|wins?)\b
    | \bclean[ ](?:end|restart|shutdown|start|stop)\b
    | \b(?:at[ ]rest|cut[ ]short|for[ ]good|hand-?overs?|left[ ]alone|maybe|no[ ]one|wakes?[ ]up|whichever)\b
    | \b(?:come|comes|came)[ ]back\b
    | \bhowever[ ](?:far|few|long|many|much|often)\b
    | \b(?:is|are)[ ]gone\b
    """,
    re.VERBOSE,
)
# Code, option values and paths in a text.
QUOTED = re.compile(r"`[^`]*`|\*\w+\*")
# Names of variables and arguments that say nothing of what they hold.
VAGUE = {"answer", "answers", "at", "found", "one"}
CLEAN_PRODUCT = (
    "charts/",
    "operator/",
    "release/",
    "replicator/",
)
# Folders without these words.
CLEAN_TESTS = ("benchmarks/", "tests/")


def tracked() -> list[str]:
    """Returns the files to read, relative to the root."""
    command = ["git", "ls-files", "-z", "--", "*.py", "*.md", "*.yaml"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("not a git work tree: nothing is tracked here")
    this_file = str(Path(__file__).relative_to(ROOT))
    return [
        name
        for name in listed.split("\0")
        if name and name != this_file and "/golden/" not in name and (ROOT / name).is_file()
    ]


def findings(name: str, banned: re.Pattern[str] = BANNED) -> Iterator[str]:
    """Yields the position of each banned phrase in a file."""
    text = (ROOT / name).read_text().replace("_", " ")
    for match in banned.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{name}:{line} {' '.join(match.group().split())}"


def folder_of(name: str) -> str | None:
    """Returns the longest listed folder that contains the file, or None."""
    return max((folder for folder in NOT_CLEAN if name.startswith(folder)), key=len, default=None)


def test_no_banned_phrase_outside_the_listed_folders():
    positions = [position for name in tracked() if folder_of(name) is None for position in findings(name)]

    assert [] == positions


def test_tests_contain_no_word_of_everyday_speech_for_a_term():
    names = [name for name in tracked() if name.startswith(CLEAN_TESTS)]
    positions = [position for name in names for position in findings(name, BANNED_IN_TESTS)]

    assert names
    assert [] == positions


def test_names_of_tests_state_a_behaviour_in_terms_of_the_field():
    files = [name for name in tracked() if name.startswith("tests/") and name.endswith(".py")]
    names = {
        node.name: name
        for name in files
        for node in ast.parse((ROOT / name).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    unclear = [
        f"{file}: {name}"
        for name, file in names.items()
        if UNCLEAR_TEST_NAME.search(name.removeprefix("test_").replace("_", " "))
    ]

    assert len(names) > 3_000
    assert [] == unclear


def prose_of(name: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring, comment and name of a test in a Python file."""
    text = (ROOT / name).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node) or ""
            yield node.body[0].lineno if node.body else 1, " ".join(docstring.split())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_prose_of_tests_uses_the_terms_of_the_field():
    positions = [
        f"{name}:{line} {match.group()}"
        for name in tracked()
        if name.startswith("tests/") and name.endswith(".py")
        for line, text in prose_of(name)
        for match in UNCLEAR_PROSE.finditer(QUOTED.sub("", text))
    ]

    assert [] == positions


def vague_names(name: str) -> Iterator[str]:
    """Yields the position of each vague name in a Python file; the fields of classes and errors are left out."""
    tree = ast.parse((ROOT / name).read_text())
    fields = {
        id(node)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for statement in owner.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            names = [node.id]
        elif isinstance(node, ast.arguments):
            names = [argument.arg for argument in (*node.posonlyargs, *node.args)]
        else:
            continue
        yield from (f"{name}: {vague}" for vague in names if vague in VAGUE)


def test_variables_and_arguments_have_no_vague_name():
    folders = (*CLEAN_PRODUCT, *CLEAN_TESTS)
    names = [name for name in tracked() if name.startswith(folders) and name.endswith(".py")]
    positions = [position for name in names for position in vague_names(name)]

    assert names
    assert [] == positions


def test_the_number_of_phrases_in_listed_folders_only_decreases():
    counts: Counter[str] = Counter()
    for name in tracked():
        if folder := folder_of(name):
            counts[folder] += sum(1 for _ in findings(name))

    assert {} == {folder: count for folder, count in counts.items() if count > NOT_CLEAN[folder]}
