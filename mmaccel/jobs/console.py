"""The console that what people read is printed on. Knows widths only."""

from rich.console import Console

LOG_WIDTH = 160  # a log has no width of its own; narrower, tables fold


def wide_console() -> Console:
    """As wide as the terminal, or as a log should be."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    return console
