"""`mirrorflow convert`: mm2.properties and Strimzi's KafkaMirrorMaker2 -> MirrorFlows, one for each flow.

Documents go to stdout (or into files below `--output`); the Secrets that they name, and every setting that has no counterpart,
go to stderr. No password is ever printed. A setting that would make the copy another one (a transformation, a naming policy of
one's own) is refused: then nothing is written, and all of them are listed. Exit status: 0 converted, 2 refused or unreadable.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from mirrorflow_cli.convert_flow import document, flow_name
from mirrorflow_cli.convert_parts import Findings, JavaFlow, Loss, NeededSecret
from mirrorflow_cli.errors import EXIT_DONE, FailedError, UsageError
from mirrorflow_cli.flows import read_text
from mirrorflow_cli.from_mm2 import java_flows as flows_of_mm2
from mirrorflow_cli.from_strimzi import KIND as STRIMZI
from mirrorflow_cli.from_strimzi import java_flows as flows_of_strimzi
from mirrorflow_operator.api.load import flow_of
from mirrorflow_operator.api.yaml_text import read_document
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_replicator.errors import SettingError

_IS_STRIMZI = re.compile(rf"""^kind:\s*["']?{STRIMZI}\b""", re.MULTILINE)
_DOCUMENTS = re.compile(r"^---.*$", re.MULTILINE)
_LINE_WIDTH = 110
FLOWS_SHOWN_MAX = 3  # of one setting; six clusters have twelve, and all say the same


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `mirrorflow convert`."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="mm2.properties, or a KafkaMirrorMaker2 of Strimzi; - is stdin",
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write each MirrorFlow to DIR/<name>.yaml")
    parser.add_argument("--json", action="store_true", help="one JSON object: flows, secrets, unsupported")


def execute(arguments: argparse.Namespace) -> int:
    """Raises UsageError for what cannot be converted, with every reason."""
    findings = Findings()
    documents: list[dict[str, Any]] = []
    for name in arguments.files:
        documents += converted(
            read_text(name, "an mm2.properties or a KafkaMirrorMaker2"), findings, name=name
        )
    _name_apart(documents)
    if arguments.json:
        _print_json(documents, findings)
        return EXIT_DONE
    if arguments.output:
        _write(documents, Path(arguments.output))
    else:
        print("---\n".join(yaml_text(one) for one in documents), end="")
    for line in report(findings):
        print(line, file=sys.stderr)
    return EXIT_DONE


def converted(text: str, findings: Findings, *, name: str = "the file") -> list[dict[str, Any]]:
    """The MirrorFlows of one file's *text*, each valid. Raises UsageError, which names the file."""
    try:
        flows = _java_flows(text, findings)
    except (SettingError, InvalidSpecError) as error:
        raise UsageError(f"{name}: {error}") from error
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    documents = [document(flow, findings) for flow in flows]
    refused = [loss for loss in findings.losses if loss.refused]
    if refused:
        lines = [f"{name}: {_setting(loss)}: {loss.why}." for loss in refused]
        raise UsageError(
            "\n".join([*lines, "Nothing was converted: without these the copy would be another one."])
        )
    slips = [
        f"{name}: {flow.name}: {slip}"
        for flow, one in zip(flows, documents, strict=True)
        for slip in _slips(one)
    ]
    if slips:
        raise UsageError("\n".join(slips))
    return documents


def _java_flows(text: str, findings: Findings) -> list[JavaFlow]:
    if not _IS_STRIMZI.search(text):
        return flows_of_mm2(text, findings)
    parts = [part for part in _DOCUMENTS.split(text) if _IS_STRIMZI.search(part)]
    return [flow for part in parts for flow in flows_of_strimzi(read_document(part), findings)]


def _slips(one: dict[str, Any]) -> Sequence[object]:
    try:
        flow_of(one)
    except InvalidSpecError as error:
        return error.errors
    return ()


def _name_apart(documents: list[dict[str, Any]]) -> None:
    """Two flows of the same aliases, from two files, are two objects."""
    seen: dict[str, int] = {}
    for one in documents:
        name = str(one["metadata"]["name"])
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            one["metadata"]["name"] = flow_name(f"{name[:36]}-{seen[name]}")


def yaml_text(one: dict[str, Any]) -> str:
    """A MirrorFlow as a file."""
    return str(
        yaml.safe_dump(one, sort_keys=False, allow_unicode=True, width=_LINE_WIDTH, default_flow_style=None)
    )


def report(findings: Findings) -> Iterable[str]:
    """What is to be created, and what has no counterpart, a line each."""
    if findings.secrets:
        yield "Secrets to create, or files below --secrets (the whole file is the value, without a line end):"
        for secret in sorted(findings.secrets):
            yield f"  {secret.secret}/{secret.key}: {secret.origin}"
    losses = list(_told_once(findings.losses))
    if losses:
        yield "Settings without a counterpart:"
        for setting, why in losses:
            yield f"  {setting}: {why}."


def _told_once(losses: Iterable[Loss]) -> Iterable[tuple[str, str]]:
    """Setting and reason; a setting of several flows is one line that names them."""
    flows: dict[tuple[str, str], list[str]] = {}
    for loss in losses:
        flows.setdefault((loss.setting, loss.why), []).append(loss.flow)
    for (setting, why), names in flows.items():
        shown = [name for name in names if name]
        of = ", ".join(shown[:FLOWS_SHOWN_MAX])
        if len(shown) > FLOWS_SHOWN_MAX:
            of += f" and {len(shown) - FLOWS_SHOWN_MAX} more flows"
        yield f"{setting} ({of})" if of else setting, why


def _setting(loss: Loss) -> str:
    return f"{loss.setting} ({loss.flow})" if loss.flow else loss.setting


def _print_json(documents: list[dict[str, Any]], findings: Findings) -> None:
    def secret(one: NeededSecret) -> dict[str, str]:
        return {"secretName": one.secret, "key": one.key, "origin": one.origin}

    said = {
        "flows": documents,
        "secrets": [secret(one) for one in sorted(findings.secrets)],
        "unsupported": [
            {"flow": one.flow, "setting": one.setting, "why": one.why} for one in findings.losses
        ],
    }
    print(json.dumps(said, indent=2, ensure_ascii=False))


def _write(documents: list[dict[str, Any]], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one in documents:
            path = folder / f"{one['metadata']['name']}.yaml"
            path.write_text(yaml_text(one), encoding="utf-8")
            print(path)
    except OSError as error:
        raise FailedError(
            f"{folder} cannot be written: {error.strerror}; choose another --output."
        ) from error
