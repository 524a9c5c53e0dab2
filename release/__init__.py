"""Builds everything of a release that needs no network: `make release-dry-run`, and .github/workflows/release.yml."""
