"""Finds the Secrets and ConfigMaps that a connector's properties refer to; its pod mounts only these.

They are found in the properties themselves, whether the plan put them there (from the resource's secret
fields) or a user did (as a reference in a `config`). So a pod mounts exactly what its process reads, and no
list repeats it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_operator.plan.layout import SecretLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """Names of Secrets and ConfigMaps, sorted, without duplicates."""

    secrets: tuple[str, ...] = ()
    config_maps: tuple[str, ...] = ()


def mounts(properties: Iterable[Mapping[str, str]], layout: SecretLayout) -> Mounts:
    """Returns what *properties* refer to below *layout*'s folders, as `${dir:folder:key}` or as a path."""
    values = [value for one in properties for value in one.values()]
    return Mounts(
        secrets=_below(layout.secrets, values),
        config_maps=_below(layout.config_maps, values),
    )


def _below(folder: str, values: Iterable[str]) -> tuple[str, ...]:
    below = re.compile(re.escape(folder) + r"/([a-z0-9][-a-z0-9.]*)[:/]")
    return tuple(sorted({name for value in values for name in below.findall(value)}))
