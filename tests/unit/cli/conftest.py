"""The file of a pair, for the commands that take one."""

from pathlib import Path

import pytest

FLOW = """---
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: {source}-to-{target}}}
spec:
  source: {{alias: {source}, bootstrapServers: ["{source}:9092"]}}
  target: {{alias: {target}, bootstrapServers: ["{target}:9092"]}}
  topics: {{include: [orders], naming: {{policy: {policy}}}}}
"""
PAIR = """apiVersion: mirrorflow.io/v1alpha1
kind: MirrorPair
metadata: {name: east-west}
spec:
  members:
    east: {flow: east-to-west}
    west: {flow: west-to-east}
  fence: {method: DenyAcl}
"""


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    file = tmp_path / "pair.yaml"
    flows = [
        FLOW.format(source=source, target=target, policy="Identity")
        for source, target in (("east", "west"), ("west", "east"))
    ]
    file.write_text(PAIR + "".join(flows))
    return file
