"""The table of values in the chart's README is generated from values.yaml and values.schema.json.

`MIRRORFLOW_REWRITE_GOLDENS=1 pytest tests/contract/test_chart_readme.py` rewrites the table.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "mirrorflow"
README = CHART / "README.md"
HEAD = "| value | default | |\n|---|---|---|\n"


def _rows(schema: dict[str, Any], defaults: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, default in defaults.items():
        value, path = schema["properties"][name], f"{above}{name}"
        if "properties" in value and default:
            yield from _rows(value, default, f"{path}.")
        else:
            yield f"| `{path}` | `{json.dumps(default)}` | {value['description'].replace('|', chr(92) + '|')} |\n"


def test_the_table_of_values_is_that_of_the_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    table = HEAD + "".join(_rows(schema, defaults))
    text = README.read_text()
    before, head, _ = text.partition(HEAD)
    if os.environ.get("MIRRORFLOW_REWRITE_GOLDENS"):
        README.write_text(before + table)
        text = README.read_text()

    assert head
    assert text == before + table


def test_links_in_the_readme_are_absolute():
    """Artifact Hub shows the page outside of the repository."""
    text = README.read_text()

    assert "](../" not in text
    assert "](docs/" not in text
