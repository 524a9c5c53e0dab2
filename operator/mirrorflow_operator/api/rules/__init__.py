"""The rules between the fields of a MirrorFlow, each once for the API server and for Python."""
