"""Renders templates: escapes everything, and knows how the console writes figures, times and levels."""

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib import resources
from typing import Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mirrorflow_cli.output import shortened
from mirrorflow_console import figures
from mirrorflow_console.flow_views import Level
from mirrorflow_replicator.http.progress_text import duration

_CODE: Final = re.compile(r"`([^`]+)`")
_SEPARATOR: Final = re.compile(r"([._-])")
_LONG_NAME: Final = re.compile(r"[\w.]{30,}")  # longer than a line of a narrow box has room for


def environment() -> Environment:
    """Returns the environment of all templates."""
    templates = Environment(
        loader=PackageLoader("mirrorflow_console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters.update(
        {
            "count": figures.count,
            "short": figures.short,
            "lag_time": figures.lag_time,
            "byte_count": figures.byte_count,
            "byte_rate": figures.byte_rate,
            "duration": duration,
            "with_code": with_code,
            "moment": moment,
            "weekday": _weekday,
            "as_level": Level,
            "shortened": shortened,
            "breakable": _breakable,
        }
    )
    templates.globals.update({"link": link, "static": _static_address, "glyph": _glyphs(templates)})
    return templates


def _glyphs(templates: Environment) -> Callable[..., Markup]:
    """Returns the macro of the glyphs. A page has hundreds of a few, so each is rendered once."""
    macro = templates.get_template("glyphs.html").make_module().glyph  # type: ignore[attr-defined]
    return lru_cache(maxsize=64)(macro)


def with_code(text: str) -> Markup:
    """Returns *text*, escaped, with what stands in backquotes as code, and places to break long names."""
    breakable = _LONG_NAME.sub(lambda name: name[0].replace(".", ".<wbr>"), str(escape(text)))
    return Markup(_CODE.sub(r"<code>\1</code>", breakable))  # noqa: S704  escaped above


def moment(time: float | str, form: str = "time") -> Markup:
    """Returns a time element: in UTC, which a script may show in local time. *form*: time, or date and time."""
    try:
        when = datetime.fromisoformat(time) if isinstance(time, str) else datetime.fromtimestamp(time, UTC)
        when = when.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return escape(str(time))
    shown = when.strftime("%H:%M:%S" if form == "time" else "%b %d %H:%M")
    return Markup('<time datetime="{}" data-form="{}">{} UTC</time>').format(
        when.strftime("%Y-%m-%dT%H:%M:%SZ"), form, shown
    )


@cache
def _static_address(name: str) -> str:
    """Returns the address of a static file, which changes with its content: browsers keep a file for days, also over an upgrade."""
    content = resources.files("mirrorflow_console").joinpath("static", name).read_bytes()
    return f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"


def _breakable(name: str) -> Markup:
    """Returns *name*, escaped, with places to break a line after its dots, dashes and underscores."""
    return Markup(_SEPARATOR.sub(r"\1<wbr>", str(escape(name))))  # noqa: S704  escaped above


def _weekday(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%a %d")


@lru_cache(maxsize=1_024)  # each update of a page has the same again
def link(path: str, **query: str | int | None) -> str:
    """Returns *path* with *query*, without parameters that are None or empty."""
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given)}" if given else path
