"""Style rules as a test: what a reviewer should not have to say twice."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "operator").rglob("*.py"), *(ROOT / "replicator").rglob("*.py")])
FUNCTION_LINES_MAX = 60
# Variables and fields that hold objects of other libraries (argparse, http.server, kafka-python, kopf, kubernetes, ssl,
# YAML), which have no methods for what is set.
FOREIGN_OBJECTS = frozenset(
    {
        "_KubernetesLoader",
        "_arithmetic",
        "action",
        "arguments",
        "configuration",
        "context",
        "server",
        "settings",
    }
)
VAGUE = re.compile(r"(^|_)(utils?|helpers?|managers?|common|misc)(_|$)|^process_")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def definitions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node for node in ast.walk(tree(path)) if isinstance(node, kinds)]


@cache
def private_methods(owner: ast.ClassDef) -> frozenset[str]:
    functions = [node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(
        one.name for one in functions if one.name.startswith("_") and not one.name.endswith("__")
    )


@cache
def own_fields(path: Path) -> frozenset[str]:
    """Return the names of the fields of all classes that a module defines."""
    classes = [node for node in definitions(path) if isinstance(node, ast.ClassDef)]
    declared = [
        node.target.id
        for owner in classes
        for node in owner.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assigned = [
        node.attr
        for owner in classes
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    ]
    return frozenset([*declared, *assigned])


def test_functions_are_short():
    """No function is longer than a screen."""
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in definitions(path)
        if not isinstance(node, ast.ClassDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    }

    assert {} == long


def test_names_say_something():
    """No module or function is named for being a bag of things."""
    vague = [
        f"{path.relative_to(ROOT)} {name}"
        for path in SOURCES
        for name in [
            path.stem,
            *(node.name for node in definitions(path)),
        ]
        if VAGUE.search(name)
    ]

    assert [] == vague


def test_a_class_name_is_used_once():
    """A reader who searches for a class finds one."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in definitions(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name for name, found in places.items() if len(found) > 1}

    assert not twice


def test_modules_open_by_saying_what_they_are():
    """Every module that holds code has a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.read_text().strip() and not ast.get_docstring(tree(path))
    ]

    assert [] == silent


def test_no_leftovers():
    """No TODO without an issue, and no path or address of one machine."""
    marks = re.compile(r"TODO(?! \(#\d+\))|FIXME|XXX|/(?:root|home)/")
    here = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [
            *SOURCES,
            *sorted((ROOT / "tests").rglob("*.py")),
            *sorted((ROOT / "benchmarks").rglob("*.py")),
        ]
        if path != here
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]

    assert [] == found


def test_only_an_object_writes_its_own_fields():
    """No `other.field = value` where another module defines the class: a method of the object does that."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and not isinstance(node.ctx, ast.Load)
        and not node.attr.startswith("__")  # Python's own, such as __cause__
        and ast.unparse(node.value) not in {"self", "cls"}
        and (isinstance(node.value, ast.Attribute) or node.attr not in own_fields(path))
        and FOREIGN_OBJECTS.isdisjoint(ast.unparse(node.value).split("."))
    ]

    assert [] == found


def test_no_class_overrides_a_private_method():
    """What differs between classes is a function or an object that is passed in, or a public method."""
    classes = {
        node.name: node for path in SOURCES for node in definitions(path) if isinstance(node, ast.ClassDef)
    }

    def ancestors(owner: ast.ClassDef) -> list[ast.ClassDef]:
        names = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in owner.bases)
        parents = [classes[name] for name in names if name in classes]
        return parents + [found for parent in parents for found in ancestors(parent)]

    overridden = {
        f"{owner.name}.{name} ({base.name})"
        for owner in classes.values()
        for base in ancestors(owner)
        for name in private_methods(owner) & private_methods(base)
    }

    assert not overridden


def test_standard_operator_is_not_shadowed():
    """The folder `operator` at the root is a place, not a package."""
    from operator import itemgetter

    assert itemgetter(0)("a") == "a"


# Folders where constants may still begin again below the first definition, and tables whose constants stand by their rules.
CONSTANTS_BELOW = (
    "operator/mirrorflow_operator/api/rules/table.py",
    "operator/mirrorflow_operator/plan/job_objects.py",
    "replicator/mirrorflow_core/copying/",
    "replicator/mirrorflow_replicator/",
    "replicator/mirrorflow_seed/",
)


def test_constants_stand_above_the_first_definition():
    """Only what is made of a module's own classes and functions stands below them."""
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if not str(path.relative_to(ROOT)).startswith(CONSTANTS_BELOW)
        for line in lines_of_late_constants(tree(path))
    }

    assert not found


def lines_of_late_constants(module: ast.Module) -> list[int]:
    """Returns the lines of constants below the first definition that could stand above it."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    below: set[str] = set()  # names that exist only below the first definition
    lines = []
    for node in module.body:
        if isinstance(node, kinds):
            below.add(node.name)
        elif below and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            if names & below:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                below |= {
                    one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)
                }
            else:
                lines.append(node.lineno)
    return lines
