"""HTML and SVG in which text is text: every child that is not already markup is escaped.

Questions, replies, kinds and file names come from models and users, so escaping is what happens when nothing is said.
"""

import html


class Markup(str):
    """A string that is markup already: made here, or a constant of this package."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """`<name …>children</name>`; an attribute's trailing underscore goes, inner ones become `-`, None leaves it out."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(clean(str(value)), quote=True)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{pairs}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    parts = (child if isinstance(child, Markup) else escape(child) for child in children if child is not None)
    return Markup("".join(parts))


def escape(value: object) -> Markup:
    return Markup(html.escape(clean(str(value)), quote=True))


def clean(text: str) -> str:
    """What HTML can hold: no lone surrogates, no control characters but newline and tab."""
    whole = text.encode("utf-8", "replace").decode()
    return "".join(c if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") else "\ufffd" for c in whole)
