"""Polls each pod's `GET /progress`; the only package that makes HTTP requests to connectors."""
