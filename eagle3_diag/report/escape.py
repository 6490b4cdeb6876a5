"""Text written by others (paths, sample names, architectures) made safe to show."""

from __future__ import annotations

import html as _html
import re


def plain(text: str) -> str:
    """``text`` with everything escaped that could move a terminal's cursor, hide, or not be encoded."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)


def html(text: str) -> str:
    """``text`` as HTML character data, also fit for a quoted attribute."""
    return _html.escape(plain(text), quote=True)


def markdown(text: str) -> str:
    """``text`` as Markdown prose or table cell in which nothing of it is markup or a mention."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&$!])", r"\\\1", plain(text)).replace("@", "@&#8203;")
