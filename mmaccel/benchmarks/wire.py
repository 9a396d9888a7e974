"""A picture as a request carries it: bytes in, a decoded picture out, and the plain grey that stands for no picture.

Knows Pillow. PNG, because it is lossless: what the model sees is what the benchmark drew or read.
"""

import io

from PIL import Image

from mmaccel.benchmarks.base import Sample


def as_bytes(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def all_bytes(sample: Sample) -> list[bytes]:
    return [as_bytes(picture) for picture in sample.pictures]


def from_bytes(data: bytes) -> Image.Image:
    """Decoded here and now, so that decoding lies inside the time that is taken of it."""
    image = Image.open(io.BytesIO(data), formats=("PNG",))
    image.load()
    return image


def blank_like(image: Image.Image) -> Image.Image:
    """Plain grey of the picture's size; plain black where the picture is that grey itself."""
    grey = Image.new("RGB", image.size, (127, 127, 127))
    return grey if image.convert("RGB").tobytes() != grey.tobytes() else Image.new("RGB", image.size)
