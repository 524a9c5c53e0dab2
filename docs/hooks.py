# ruff: noqa: INP001
"""MkDocs hook: links to files outside of docs/ lead to the repository, because the site has no page for them."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")
DOCS = "docs"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with each relative link that leaves docs/ replaced by an address below `repo_url`."""
    folder = posixpath.join(DOCS, posixpath.dirname(page.file.src_uri))

    def replaced(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if path.startswith(f"{DOCS}/"):
            return match[0]
        return f"]({config.repo_url.rstrip('/')}/blob/main/{path}"

    return _LINK.sub(replaced, markdown)
