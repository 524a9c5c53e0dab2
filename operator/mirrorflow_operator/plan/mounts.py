"""Which Secrets and ConfigMaps a connector's properties refer to: these and no others are mounted into its pod.

Read from the properties themselves, whoever wrote them: the plan from the resource's secret fields, or a user as a
reference in some `config`. So a pod sees what its process will ask for, and nothing is listed twice in two places.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mirrorflow_operator.plan.layout import SecretLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """Object name -> the keys that are asked for, both in order of their names."""

    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    config_maps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def mounts(properties: Iterable[Mapping[str, str]], layout: SecretLayout) -> Mounts:
    """What *properties* refer to below *layout*'s folders, by reference (`${dir:folder:key}`) or as a path."""
    values = [value for one in properties for value in one.values()]
    return Mounts(
        secrets=_below(layout.secrets, values),
        config_maps=_below(layout.config_maps, values),
    )


def _below(folder: str, values: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for name, key in _references(folder, values):
        found.setdefault(name, set()).add(key)
    return {name: tuple(sorted(found[name])) for name in sorted(found)}


def _references(folder: str, values: Iterable[str]) -> Iterator[tuple[str, str]]:
    below = re.compile(re.escape(folder) + r"/([a-z0-9][-a-z0-9.]*)[:/]([-._a-zA-Z0-9]+)")
    for value in values:
        yield from below.findall(value)
