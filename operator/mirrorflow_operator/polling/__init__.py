"""The only package that speaks HTTP to connectors: it reads each pod's `GET /progress`, again and again."""
