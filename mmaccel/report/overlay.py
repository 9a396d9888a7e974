"""Survival maps: the picture once per station, with the patches that were dropped there or before dimmed.

Knows a picture and a grid of patches. Does not know how the picture was resized for the model: hand in the picture the
grid was laid over.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image

GAP = 6  # transparent pixels between panels
SHADE = 0.20  # what is left of a dropped patch's brightness


def survival_map(
    image: Image.Image, grid: tuple[int, int], kept: Sequence[Iterable[tuple[int, int]]], *, width: int = 224
) -> Image.Image:
    """`grid`: rows and columns of patches; `kept`: per station the (y, x) that went on. RGBA, panels side by side."""
    rows, columns = grid
    if rows < 1 or columns < 1:
        raise ValueError(f"survival_map: got a grid of {rows} × {columns}, expected at least 1 × 1")
    height = max(1, round(width * image.height / image.width))
    picture = image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    panels = [shaded(picture, patch_mask(grid, patches)) for patches in kept] or [picture]
    strip = Image.new("RGBA", (len(panels) * (width + GAP) - GAP, height), (0, 0, 0, 0))
    for index, panel in enumerate(panels):
        strip.paste(panel, (index * (width + GAP), 0))
    return strip


def patch_mask(grid: tuple[int, int], patches: Iterable[tuple[int, int]]) -> np.ndarray:
    """[rows, columns] bool, True where the patch stands."""
    rows, columns = grid
    mask = np.zeros(grid, dtype=bool)
    for y, x in patches:
        if not (0 <= y < rows and 0 <= x < columns):
            raise ValueError(f"survival_map: got patch ({y}, {x}), the grid is {rows} × {columns}")
        mask[y, x] = True
    return mask


def shaded(picture: Image.Image, mask: np.ndarray) -> Image.Image:
    """Dropped patches grey and dark, so that survivors are lit on a light page and on a dark one."""
    full = np.asarray(picture, dtype=np.float32)  # [h, w, 3]
    grey = full.mean(2, keepdims=True) * SHADE + 22  # [h, w, 1]
    stands = Image.fromarray(mask.astype(np.uint8) * 255).resize(picture.size, Image.Resampling.NEAREST)
    mixed = np.where(np.asarray(stands)[..., None] > 0, full, grey)  # [h, w, 3]
    return Image.fromarray(mixed.astype(np.uint8))
