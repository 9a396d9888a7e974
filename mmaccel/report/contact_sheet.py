"""A contact sheet: pictures in a grid, each with lines of text below it, never larger than SIDE × SIDE pixels.

Knows PIL. Does not know why a picture stands there: captions are handed in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

CELL, GAP, COLUMNS, MOST = 180, 8, 6, 48  # pixels of a picture's cell and around it; cells in a row and in all
LINE, LINES, SIZE = 14, 3, 11  # pixels of a line of text, lines below a picture, size of the letters
PAPER, INK, PALE = (250, 250, 250), (30, 30, 34), (214, 214, 218)
SIDE = max(COLUMNS * (CELL + GAP) + GAP, MOST // COLUMNS * (CELL + LINE * LINES + GAP) + GAP)


@dataclass(frozen=True)
class Tile:
    """picture: None where there is none to show."""

    picture: Image.Image | None
    lines: tuple[str, ...] = ()


def small(picture: Image.Image) -> Image.Image:
    """As large as it is shown, so that a sheet's pictures need not be held whole."""
    shown = picture.convert("RGB")
    shown.thumbnail((CELL, CELL), Image.Resampling.LANCZOS)
    return shown


def contact_sheet(tiles: Sequence[Tile]) -> Image.Image:
    """The first MOST tiles; one empty cell where there are none."""
    tiles = tiles[:MOST]
    columns = min(max(len(tiles), 1), COLUMNS)
    rows = max(-(-len(tiles) // columns), 1)
    high = CELL + LINE * LINES + GAP
    sheet = Image.new("RGB", (columns * (CELL + GAP) + GAP, rows * high + GAP), PAPER)
    pen, letters = ImageDraw.Draw(sheet), ImageFont.load_default(SIZE)
    for index, tile in enumerate(tiles):
        left, top = GAP + index % columns * (CELL + GAP), GAP + index // columns * high
        _put(sheet, pen, tile.picture, left, top)
        for at, line in enumerate(tile.lines[:LINES]):
            pen.text((left, top + CELL + at * LINE), fitted(line, letters), fill=INK, font=letters)
    return sheet


def _put(sheet: Image.Image, pen: ImageDraw.ImageDraw, picture: Image.Image | None, left: int, top: int) -> None:
    if picture is None:
        pen.rectangle((left, top, left + CELL - 1, top + CELL - 1), fill=PALE)
        pen.line((left, top, left + CELL - 1, top + CELL - 1), fill=INK)
        pen.line((left, top + CELL - 1, left + CELL - 1, top), fill=INK)
        return
    shown = small(picture)
    pen.rectangle((left, top, left + CELL - 1, top + CELL - 1), outline=PALE)
    sheet.paste(shown, (left + (CELL - shown.width) // 2, top + (CELL - shown.height) // 2))


def fitted(line: str, letters: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """In letters that Pillow's own font has, its end left out where it is wider than a cell."""
    line = " ".join(line.encode("ascii", "replace").decode("ascii").split())[: CELL // 2]
    if letters.getlength(line) <= CELL:
        return line
    while line and letters.getlength(f"{line}…") > CELL:
        line = line[:-1]
    return f"{line}…"
