"""Locates the files of Secrets and ConfigMaps: below two mounts in a pod, below one folder on a laptop."""

from dataclasses import dataclass

PROVIDER = "dir"
FILE_PROVIDER = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretLayout:
    """The folders of Secrets and ConfigMaps, absolute paths with `/`.

    Files are at `<secrets>/<secretName>/<key>` and `<config_maps>/<configMapName>/<key>`.
    *reads_files*: properties may also refer to keys of properties files, as `${file:<path>:<key>}`.
    """

    secrets: str
    config_maps: str
    reads_files: bool = False

    def secret_reference(self, name: str, key: str) -> str:
        """Returns a reference to a whole file; the process resolves it (Java's DirectoryConfigProvider)."""
        return f"${{{PROVIDER}:{self.secrets}/{name}:{key}}}"

    def config_map_reference(self, name: str, key: str) -> str:
        """Returns a reference as `secret_reference` does, for a ConfigMap."""
        return f"${{{PROVIDER}:{self.config_maps}/{name}:{key}}}"

    def secret_path(self, name: str, key: str) -> str:
        """Returns the path of a Secret's file."""
        return f"{self.secrets}/{name}/{key}"

    def config_map_path(self, name: str, key: str) -> str:
        """Returns the path of a ConfigMap's file."""
        return f"{self.config_maps}/{name}/{key}"


POD_LAYOUT = SecretLayout(secrets="/mnt/mirrorflow/secrets", config_maps="/mnt/mirrorflow/config-maps")
