"""Style rules for the product's code that a test can check."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "operator").rglob("*.py"), *(ROOT / "replicator").rglob("*.py")])
FUNCTION_LINES_MAX = 60
# Variables and fields with objects of other libraries (argparse, http.server, kafka-python, kopf, kubernetes, ssl,
# YAML). These objects have no methods to set their fields.
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
        function.name
        for function in functions
        if function.name.startswith("_") and not function.name.endswith("__")
    )


@cache
def own_fields(path: Path) -> frozenset[str]:
    """Returns the names of the fields of all classes that a module defines."""
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
    """A function fits on a screen."""
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in definitions(path)
        if not isinstance(node, ast.ClassDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    }

    assert {} == long


def test_no_module_or_function_has_a_vague_name():
    """Names such as utils, helper or manager do not state a purpose."""
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


def test_class_names_are_unique():
    """A search for a class then has one result."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in definitions(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name for name, paths in places.items() if len(paths) > 1}

    assert not twice


def test_each_module_has_a_docstring():
    undocumented = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.read_text().strip() and not ast.get_docstring(tree(path))
    ]

    assert [] == undocumented


def test_no_todo_without_an_issue_and_no_local_path():
    marks = re.compile(r"TODO(?! \(#\d+\))|FIXME|XXX|/(?:root|home)/")
    here = Path(__file__)
    leftovers = [
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

    assert [] == leftovers


def test_only_an_object_writes_its_own_fields():
    """A module does not assign `other.field` if the class is defined in a different module.

    It calls a method instead.
    """
    foreign_writes = [
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

    assert [] == foreign_writes


def test_no_class_overrides_a_private_method():
    """Classes differ by a function or object that is passed in, or by a public method."""
    classes = {
        node.name: node for path in SOURCES for node in definitions(path) if isinstance(node, ast.ClassDef)
    }

    def ancestors(owner: ast.ClassDef) -> list[ast.ClassDef]:
        names = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in owner.bases)
        parents = [classes[name] for name in names if name in classes]
        return parents + [ancestor for parent in parents for ancestor in ancestors(parent)]

    overridden = {
        f"{owner.name}.{name} ({base.name})"
        for owner in classes.values()
        for base in ancestors(owner)
        for name in private_methods(owner) & private_methods(base)
    }

    assert not overridden


def test_the_operator_folder_does_not_shadow_the_standard_library():
    """The folder `operator` at the root is not a package."""
    from operator import itemgetter

    assert itemgetter(0)("a") == "a"


# The constants of this module are next to the rules that use them.
TABLE_OF_RULES = "operator/mirrorflow_operator/api/rules/table.py"


def test_constants_are_above_the_first_definition():
    """Only constants that need the module's own classes and functions may be below them."""
    late_constants = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if str(path.relative_to(ROOT)) != TABLE_OF_RULES
        for line in lines_of_late_constants(tree(path))
    }

    assert not late_constants


def lines_of_late_constants(module: ast.Module) -> list[int]:
    """Returns the lines of constants below the first definition that could stand above it."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    below: set[str] = set()  # names that exist only below the first definition
    lines = []
    for node in module.body:
        if isinstance(node, kinds):
            below.add(node.name)
        elif below and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
            if names & below:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                below |= {
                    child.id
                    for target in targets
                    for child in ast.walk(target)
                    if isinstance(child, ast.Name)
                }
            else:
                lines.append(node.lineno)
    return lines
