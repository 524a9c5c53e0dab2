"""Writes one-layer images of static programs as archives of `docker save`, without an image builder."""

import hashlib
import io
import json
import tarfile
from pathlib import Path


def write_image(archive: Path, name: str, program: Path) -> None:
    """Writes an image *name* whose only file and entry point is *program*."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo(program.name)
        entry.mode, entry.size = 0o755, program.stat().st_size
        with program.open("rb") as content:
            tar.addfile(entry, content)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"],
        },
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for file, data in (
            ("layer.tar", layer.getvalue()),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(file)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
