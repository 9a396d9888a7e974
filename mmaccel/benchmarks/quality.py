"""What a picture is like before a model sees it: size, sharpness, entropy, edges and a bucket to group results by.

Knows pixels only. The numbers are taken on a grey copy whose longer side is at most 512, so that they compare across
sizes; the bucket's limits are conventions for grouping, not judgements about a model.
"""

from typing import Any

import numpy as np
from PIL import Image

LONGER_SIDE = 512
EDGE = 24.0  # grey levels per pixel: a step a person would call an edge
BLURRED, FLAT, BUSY = 30.0, 0.02, 0.20  # Laplacian variance; share of edge pixels below and above which …


def picture_facts(image: Image.Image) -> dict[str, Any]:
    """width, height (of the picture as shown), sharpness, entropy, edges, bucket."""
    small = image.convert("L")
    small.thumbnail((LONGER_SIDE, LONGER_SIDE))
    grey = np.asarray(small, dtype=np.float32)  # [h, w]
    sharpness, edges = _sharpness(grey), _edges(grey)
    return {
        "width": image.width,
        "height": image.height,
        "sharpness": round(sharpness, 2),
        "entropy": round(_entropy(grey), 3),
        "edges": round(edges, 4),
        "bucket": bucket(sharpness, edges),
    }


def bucket(sharpness: float, edges: float) -> str:
    if edges < FLAT:
        return "blurred" if sharpness < BLURRED else "flat"
    return "busy" if edges > BUSY else "ordinary"


def _sharpness(grey: np.ndarray) -> float:
    """Variance of the four-neighbour Laplacian; 0.0 for pictures too small to have one."""
    if min(grey.shape) < 3:
        return 0.0
    centre = grey[1:-1, 1:-1]
    laplacian = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:] - 4 * centre
    return float(laplacian.var())


def _entropy(grey: np.ndarray) -> float:
    """Bits per pixel of the grey histogram, 0 … 8."""
    counts = np.bincount(grey.astype(np.uint8).ravel(), minlength=256)
    share = counts[counts > 0] / counts.sum()
    return float(max(0.0, -(share * np.log2(share)).sum()))


def _edges(grey: np.ndarray) -> float:
    """Share of pixels whose grey value steps by more than EDGE to the right or downwards."""
    if min(grey.shape) < 2:
        return 0.0
    right, down = np.abs(np.diff(grey, axis=1))[:-1], np.abs(np.diff(grey, axis=0))[:, :-1]
    return float((np.maximum(right, down) > EDGE).mean())
