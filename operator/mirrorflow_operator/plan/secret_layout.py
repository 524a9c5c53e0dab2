"""Where a process finds the keys of Secrets and ConfigMaps, and how properties refer to them.

Properties contain references instead of secrets; the process resolves them with Kafka's config providers.
"""

from mirrorflow_core.light_dataclasses import dataclass

PROVIDER = "dir"
FILE_PROVIDER = "file"
_DIRECTORY_PROVIDER = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"
_FILE_PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"


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
        return f"{self.secrets}/{name}/{key}"

    def config_map_path(self, name: str, key: str) -> str:
        return f"{self.config_maps}/{name}/{key}"

    def provider_properties(self) -> dict[str, str]:
        """Returns the config providers that resolve the references."""
        classes = {PROVIDER: _DIRECTORY_PROVIDER} | (
            {FILE_PROVIDER: _FILE_PROVIDER} if self.reads_files else {}
        )
        return {
            "config.providers": ",".join(classes),
            **{f"config.providers.{name}.class": class_ for name, class_ in classes.items()},
        }


POD_LAYOUT = SecretLayout(secrets="/mnt/mirrorflow/secrets", config_maps="/mnt/mirrorflow/config-maps")
