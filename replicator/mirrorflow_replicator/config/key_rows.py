"""The row type of the tables of known keys."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How a key is treated."""

    HONOURED = "honoured"
    MAPPED = "mapped"
    IGNORED = "ignored"
    REFUSED = "refused"


class Scope(Enum):
    """Where a key may be written; the values are text for docs/settings.md."""

    CONNECTOR = (
        "In connector.properties; in an mm2.properties at the top level (unless the note says otherwise) or as "
        "`A->B.key`, which wins."
    )
    WORKER = "In worker.properties; in an mm2.properties as `B.key`, B being the target."
    REST = "In worker.properties; in an mm2.properties at the top level."
    DRIVER = "At the top level."
    CLIENT = (
        "In connector.properties behind `source.cluster.`, `target.cluster.` (addresses, TLS and SASL only), `consumer.`, "
        "`admin.`, `source.consumer.`, `source.admin.`, `target.producer.`, `target.admin.`, `producer.override.`; in "
        "worker.properties plain or behind `producer.`; in an mm2.properties as `A.key`, `A.consumer.key` and so on."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key, or a family of keys with `*` in its name."""

    name: str
    scope: Scope
    verdict: Verdict
    note: str
    # Values with which a refused or mapped key requests nothing unsupported; matched without a Java package.
    accepted: tuple[str, ...] = ()
    python: bool = False  # whether python:package.module:Class is accepted too
    top_level: bool = True  # whether MM2 reads it from the top level of an mm2.properties
    warns: bool = True  # whether an ignored key causes a warning at start
    needs: str = ""  # a key that must also be true; otherwise this one has no effect

    @property
    def outcome(self) -> str:
        """The verdict for the documentation, in which an accepted default must not look like a refusal."""
        if self.verdict is Verdict.REFUSED and any(self.accepted):
            return "honoured or refused"
        return self.verdict.value

    def accepts(self, value: str) -> bool:
        """Whether *value* requests nothing unsupported of a refused or mapped key."""
        if self.python and value.strip().startswith("python:"):
            return True
        written = value.strip()
        if written.startswith("org.apache.kafka."):
            written = written.rpartition(".")[2]
        return written in self.accepted


def rows(
    scope: Scope,
    verdict: Verdict,
    notes: Iterable[tuple[str, str]],
    *,
    top_level: bool = True,
    warns: bool = True,
    needs: str = "",
) -> tuple[Key, ...]:
    """Returns rows that share *scope*, *verdict* and the flags."""
    return tuple(
        Key(name=name, scope=scope, verdict=verdict, note=note, top_level=top_level, warns=warns, needs=needs)
        for name, note in notes
    )
