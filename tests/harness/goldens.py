"""Golden files contain expected texts. Most of them are stored as differences from one full example.

`MIRRORFLOW_REWRITE_GOLDENS=1 pytest tests/unit/operator` rewrites them.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mirrorflow_operator.status.conditions import ConditionType

Object = dict[str, Any]
STATUSES = Path(__file__).parents[1] / "examples" / "statuses"
FULL_STATUS = "advancing"  # the other recorded statuses are differences from this status
CONDITION_ORDER = [kind.value for kind in ConditionType]
STATUS_NAMES = sorted(path.stem for path in STATUSES.glob("*.yaml"))
# A longer value is written as one line for each of its keys.
VALUE_CHARS_MAX = 100


class _BlockDumper(yaml.SafeDumper):
    """Writes the files in a ConfigMap line by line, so that a reviewer can read them."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Writes a text of several lines as a block."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    def ignore_aliases(self, data: Any) -> bool:
        """Repeats a value that occurs twice, as the API server receives it."""
        return True


_BlockDumper.add_representer(str, _BlockDumper.represent_str)


def check_golden(path: Path, text: str) -> None:
    """Asserts that *text* is the content of the golden file *path*, or writes it there."""
    if os.environ.get("MIRRORFLOW_REWRITE_GOLDENS"):
        path.write_text(text)
    assert path.read_text() == text


def yaml_text(objects: Sequence[Object]) -> str:
    """Returns Kubernetes objects as YAML documents, with texts of several lines as blocks."""
    return yaml.dump_all(objects, Dumper=_BlockDumper, sort_keys=False, width=10_000)


def object_differences(full: Sequence[Object], objects: Sequence[Object]) -> str:
    """Returns the differences of *objects* from the full example *full*.

    The first line lists all objects in their order. Below it, each object that differs is compared with the object
    of the same kind and name in *full*. An object that *full* does not contain is compared with the closest object
    of its kind, from *full* or from the lines above it; the line names that object. Each change is one line:
    `path = value` for a new value, `- path` for a missing one. A path names list items by their `name` and the
    content of a file in a ConfigMap by its keys. The order of an object's fields is not compared.
    """
    lines = ["objects: " + ", ".join(_title(item) for item in objects)]
    by_title = {_title(item): item for item in full}
    compared = list(full)
    for item in objects:
        title = _title(item)
        base = by_title.get(title) or _closest(item, compared)
        changes = list(_changes("", base, item))
        if changes:
            lines.append(title if not base or _title(base) == title else f"{title}, from {_title(base)}")
            lines += [f"  {change}" for change in changes]
        compared.append(item)
    return "".join(f"{line}\n" for line in lines)


def difference(full: Any, other: Any) -> Any:
    """Returns the changes with which `apply_difference` creates *other* from *full*. None means a missing key.

    Lists of conditions are compared by type. Other lists are replaced as a whole.
    """
    if _are_conditions(full, other):
        return difference(_by_type(full), _by_type(other))
    if not (isinstance(full, dict) and isinstance(other, dict)):
        return other
    changed = {
        key: difference(full[key], value) if key in full else value
        for key, value in other.items()
        if key not in full or full[key] != value
    }
    return changed | {key: None for key in full if key not in other}


def apply_difference(full: Any, changes: Any) -> Any:
    """Returns *full* with the *changes* that `difference` returned."""
    if _are_conditions(full, full) and isinstance(changes, dict):
        conditions = apply_difference(_by_type(full), changes)
        return [{"type": kind, **conditions[kind]} for kind in CONDITION_ORDER if kind in conditions]
    if not (isinstance(full, dict) and isinstance(changes, dict)):
        return changes
    merged = full | {
        key: apply_difference(full[key], value) if key in full else value for key, value in changes.items()
    }
    return {key: value for key, value in merged.items() if value is not None}


def recorded_status(name: str) -> dict[str, Any]:
    """Returns the complete flow with the status that is recorded under *name*."""
    full = _read(FULL_STATUS)
    flow: dict[str, Any] = full if name == FULL_STATUS else apply_difference(full, _read(name))
    return flow


def _read(name: str) -> Any:
    # libyaml's parser needs a tenth of the time, and there are some sixty files.
    return yaml.load((STATUSES / f"{name}.yaml").read_text(), yaml.CSafeLoader)


def _are_conditions(*values: Any) -> bool:
    return all(
        isinstance(value, list) and value and all("type" in item for item in value) for value in values
    )


def _by_type(conditions: list[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        condition["type"]: {key: value for key, value in condition.items() if key != "type"}
        for condition in conditions
    }


def _title(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"


def _closest(item: Object, others: Sequence[Object]) -> Object:
    """Returns the object of the same kind with the fewest changes, or an empty one."""
    same_kind = [other for other in others if other["kind"] == item["kind"]]
    return min(same_kind, key=lambda other: len(list(_changes("", other, item))), default={})


def _changes(path: str, full: Any, other: Any) -> Iterator[str]:
    """Yields one line for each change from *full* to *other*."""
    if full == other:
        return
    old, new = _as_mapping(full), _as_mapping(other)
    if old is None or new is None:
        yield from _added(path, other)
        return
    if isinstance(full, str) and old == new and list(old) == list(new):
        yield f"{path} = {json.dumps(other)}"  # only the format of the text differs
        return
    for key, value in new.items():
        if key in old:
            yield from _changes(f"{path}{key}", old[key], value)
        else:
            yield from _added(f"{path}{key}", value)
    yield from (f"- {path}{key}" for key in old if key not in new)
    if not isinstance(other, dict) and [key for key in old if key in new] != [
        key for key in new if key in old
    ]:
        yield f"{path} order = {', '.join(new)}"


def _added(path: str, value: Any) -> Iterator[str]:
    """Yields the lines of a value that the full example does not have."""
    text = json.dumps(value)
    parts = _as_mapping(value)
    if not parts or (len(text) <= VALUE_CHARS_MAX and "\\n" not in text):
        yield f"{path} = {text}"
        return
    for key, part in parts.items():
        yield from _added(f"{path}{key}", part)


def _as_mapping(value: Any) -> dict[str, Any] | None:
    """Maps the text that a path appends for a part of *value* to that part. Returns None if *value* has no parts.

    Parts are fields (`.key`), named list items (`[name]`), lines of properties (`: key`) and fields of a JSON file.
    """
    if isinstance(value, dict):
        return {f".{key}": part for key, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        names = [item.get("name") for item in value]
        has_names = None not in names and len(set(names)) == len(names)
        return {
            f"[{name if has_names else index}]": item
            for index, (name, item) in enumerate(zip(names, value, strict=True))
        }
    if isinstance(value, str) and value.startswith("{\n"):
        return {f":.{key}": part for key, part in json.loads(value).items()}
    if isinstance(value, str) and "\n" in value and all("=" in line for line in value.splitlines()):
        return {f": {key}": part for key, _, part in (line.partition("=") for line in value.splitlines())}
    return None
