"""Where a process finds the files of Secrets and ConfigMaps: in a pod below two mounts, on a laptop below one folder."""

from dataclasses import dataclass

PROVIDER = "dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretLayout:
    """`<secrets>/<secretName>/<key>` and `<config_maps>/<configMapName>/<key>`; absolute, `/` between the parts."""

    secrets: str
    config_maps: str

    def secret_reference(self, name: str, key: str) -> str:
        """The whole file as a value that the process itself looks up (Java's DirectoryConfigProvider)."""
        return f"${{{PROVIDER}:{self.secrets}/{name}:{key}}}"

    def config_map_reference(self, name: str, key: str) -> str:
        """As `secret_reference`, of a ConfigMap."""
        return f"${{{PROVIDER}:{self.config_maps}/{name}:{key}}}"

    def secret_path(self, name: str, key: str) -> str:
        """The file itself."""
        return f"{self.secrets}/{name}/{key}"

    def config_map_path(self, name: str, key: str) -> str:
        """The file itself, of a ConfigMap."""
        return f"{self.config_maps}/{name}/{key}"


POD_LAYOUT = SecretLayout(secrets="/mnt/mirrorflow/secrets", config_maps="/mnt/mirrorflow/config-maps")
