"""The chart's README, which Artifact Hub shows: its table of values is made from values.yaml and values.schema.json.

`MIRRORFLOW_REWRITE_GOLDENS=1 pytest tests/contract/test_chart_readme.py` writes the table anew.
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
        one, path = schema["properties"][name], f"{above}{name}"
        if "properties" in one and default:
            yield from _rows(one, default, f"{path}.")
        else:
            yield f"| `{path}` | `{json.dumps(default)}` | {one['description'].replace('|', chr(92) + '|')} |\n"


def test_the_table_of_values_is_that_of_the_schema():
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    table = HEAD + "".join(_rows(schema, defaults))
    text = README.read_text()
    before, found, _ = text.partition(HEAD)
    if os.environ.get("MIRRORFLOW_REWRITE_GOLDENS"):
        README.write_text(before + table)
        text = README.read_text()

    assert found
    assert text == before + table


def test_links_lead_somewhere_from_any_page():
    """Artifact Hub shows the page apart from the repository, so links are whole addresses."""
    text = README.read_text()

    assert "](../" not in text
    assert "](docs/" not in text
