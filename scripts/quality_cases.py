"""Clean pictures and generated corruptions for scripts/quality_study.py and the tests of the input gate.

Photographs are those that scikit-image, scikit-learn and matplotlib bundle, drawn scenes are the benchmark's own; both
are split in two halves, sources and seeds apart. Knows pixels and files; does not know thresholds.
"""

import io
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps  # noqa: E402

from mmaccel.benchmarks.base import Benchmark, Sample  # noqa: E402
from mmaccel.benchmarks.folder import read_picture  # noqa: E402
from mmaccel.benchmarks.quality import LONGER_SIDE, ORIENTATION, picture_facts  # noqa: E402
from mmaccel.benchmarks.scene_draw import draw, font  # noqa: E402
from mmaccel.benchmarks.scene_graph import COLOURS  # noqa: E402
from mmaccel.benchmarks.scenes import Scenes  # noqa: E402

TUNE, REPORT = 0, 1
SEEDS = ("tune", "final")
PHOTOGRAPHS, DRAWN = 200, 100  # clean pictures of a half, and corruptions of a rule
SCIKIT = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "grass.png", "gravel.png",
    "hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "page.png", "retina.jpg", "rocket.jpg",
    "text.png",
)  # fmt: skip
APART = ("cell.png", "clock_motion.png", "color.png", "microaneurysms.png", "logo.png", "horse.png", "phantom.png")
TURNED = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
Picture = Image.Image


@dataclass(frozen=True)
class Case:
    """source: photograph or drawn. picture: pixels, or the bytes of a file. what: the corruption, in a word."""

    id: str
    source: str
    picture: Picture | bytes
    what: str = ""


class Cases(Benchmark):
    """Cases in a row, all asked the same question, so that every two pictures may be duplicates."""

    name = "cases"
    max_new_tokens = 1

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Sample:
        case = self.cases[index]
        picture = case.picture
        if isinstance(picture, bytes):
            picture = read_picture(io.BytesIO(picture), 2048)[0]
        return Sample(case.id, "open", picture, ("What is this?",), (None,), facts=picture_facts(picture))

    def score(self, sample: Sample, replies: Sequence[str]) -> dict:
        return {"correct": None}


def bundled(package: str, *parts: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: pip install -c constraints.txt 'mmaccel[dev]'")
    return Path(found.submodule_search_locations[0]).joinpath(*parts)


def photographs(half: int) -> list[tuple[str, Picture]]:
    files = [bundled("skimage", "data", name) for name in SCIKIT]
    files += [bundled("sklearn", "datasets", "images", name) for name in ("china.jpg", "flower.jpg")]
    files += [bundled("matplotlib", "mpl-data", "sample_data", "grace_hopper.jpg")]
    files.sort(key=lambda file: file.name)
    return [(file.stem, Image.open(file).convert("RGB")) for file in files[half::2]]


def scenes(half: int, count: int) -> Scenes:
    return Scenes(n=count, split=f"gate-{SEEDS[half]}")


def clean(half: int, photos: int = PHOTOGRAPHS, drawn: int = DRAWN) -> list[Case]:
    """Crops of photographs, reduced, with other light and re-encoded; and scenes as they are drawn."""
    rng, sources, cases = random.Random(f"clean/{SEEDS[half]}"), photographs(half), []
    while len(cases) < photos:
        name, picture = sources[len(cases) % len(sources)]
        varied = variation(rng, picture)
        if min(varied.size) >= 96:
            cases.append(Case(f"{name}-{len(cases)}", "photograph", varied))
    made = scenes(half, max(drawn, 1))
    drawings = (made[index] for index in range(drawn))
    return cases + [Case(drawing.id, "drawn", drawing.image) for drawing in drawings]


def variation(rng: random.Random, picture: Picture) -> Picture:
    wide, high = (round(side * rng.uniform(0.55, 1.0)) for side in picture.size)
    if rng.random() < 0.1:  # a panorama
        high = min(high, round(wide / rng.uniform(2.5, 4.0)))
    left, top = rng.randint(0, picture.width - wide), rng.randint(0, picture.height - high)
    picture = scaled(picture.crop((left, top, left + wide, top + high)), rng.uniform(0.6, 1.0))
    picture = relit(rng, picture, 0.2)
    return encoded(picture, "JPEG", rng.randint(70, 95)) if rng.random() < 0.7 else picture


def scaled(picture: Picture, by: float, how: Image.Resampling = Image.Resampling.LANCZOS) -> Picture:
    return picture.resize((max(1, round(picture.width * by)), max(1, round(picture.height * by))), how)


def relit(rng: random.Random, picture: Picture, most: float) -> Picture:
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        picture = change(picture).enhance(rng.uniform(1 - most, 1 + most))
    return picture


def file_of(picture: Picture, form: str, **options: object) -> bytes:
    data = io.BytesIO()
    picture.save(data, form, **options)
    return data.getvalue()


def encoded(picture: Picture, form: str, quality: int) -> Picture:
    return Image.open(io.BytesIO(file_of(picture, form, quality=quality))).convert("RGB")


def noisy(rng: random.Random, picture: Picture, deviation: float) -> Picture:
    pixels = np.asarray(picture, dtype=np.float32)  # [h, w, 3]
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, deviation, pixels.shape)
    return Image.fromarray((pixels + noise).round().clip(0, 255).astype(np.uint8))


def gaussian(picture: Picture, pixels: float) -> Picture:
    """Blurred by so many pixels of the copy that is measured, whose longer side is at most LONGER_SIDE."""
    return picture.filter(ImageFilter.GaussianBlur(pixels * max(max(picture.size) / LONGER_SIDE, 1.0)))


def moved(picture: Picture, pixels: int, axis: int) -> Picture:
    """The mean of the picture shifted by 0 … pixels − 1 along an axis."""
    length = round(pixels * max(max(picture.size) / LONGER_SIDE, 1.0))
    around = np.pad(
        np.asarray(picture, dtype=np.float32), [(length, 0) if at == axis else (0, 0) for at in range(3)], "edge"
    )
    sums = np.cumsum(around, axis=axis)
    ahead, behind = (np.delete(sums, cut, axis) for cut in (np.s_[:length], np.s_[-length:]))
    return Image.fromarray(((ahead - behind) / length).round().clip(0, 255).astype(np.uint8))


Corruption = Callable[[random.Random, Picture], tuple[str, Picture | bytes]]


def too_small(rng: random.Random, picture: Picture) -> tuple[str, Picture]:
    side = rng.randint(8, 48)
    return "reduced", scaled(picture, side / min(picture.size))


def blurred(rng: random.Random, picture: Picture) -> tuple[str, Picture]:
    what = rng.choice(["gaussian 2 – 3", "gaussian 3 – 8", "box", "enlarged", "gaussian, re-encoded"])
    if what == "box":
        radius = rng.uniform(4, 10) * max(max(picture.size) / LONGER_SIDE, 1.0)
        return what, picture.filter(ImageFilter.BoxBlur(radius))
    if what == "enlarged":
        small = scaled(picture, LONGER_SIDE / max(max(picture.size), LONGER_SIDE) / rng.uniform(6, 12))
        return what, small.resize(picture.size, Image.Resampling.BICUBIC)
    if what == "gaussian, re-encoded":
        return what, encoded(gaussian(picture, rng.uniform(2.5, 8)), "JPEG", rng.randint(60, 95))
    return what, gaussian(picture, rng.uniform(2, 3) if what == "gaussian 2 – 3" else rng.uniform(3, 8))


def strip(rng: random.Random, picture: Picture) -> tuple[str, Picture]:
    picture, by = (picture.rotate(90, expand=True) if rng.random() < 0.5 else picture), rng.uniform(7, 20)
    high = max(1, min(picture.height, int(picture.width / by)))
    top = rng.randint(0, picture.height - high)
    return "strip", picture.crop((0, top, picture.width, top + high))


def nearly_uniform(rng: random.Random, picture: Picture) -> tuple[str, Picture]:
    what = rng.choice(["one colour and noise", "ramp", "faded", "black", "white"])
    if what == "one colour and noise":
        colour = tuple(rng.randint(20, 235) for _ in range(3))
        return what, noisy(rng, Image.new("RGB", picture.size, colour), rng.uniform(0, 6))
    if what == "ramp":
        ramp = np.linspace(0, rng.uniform(2, 12), picture.width)[None, :, None] + rng.randint(10, 230)
        return what, Image.fromarray(np.broadcast_to(ramp, (picture.height, picture.width, 3)).round().astype(np.uint8))
    share = rng.uniform(0.005, 0.04)
    if what == "faded":
        return what, Image.blend(Image.new("RGB", picture.size, (120, 120, 120)), picture, share)
    return what, Image.blend(Image.new("RGB", picture.size, "black" if what == "black" else "white"), picture, share)


def cut_off(rng: random.Random, picture: Picture) -> tuple[str, bytes]:
    what = rng.choice(["JPEG", "PNG", "WEBP"])
    data = file_of(picture, what)
    return what, data[: int(len(data) * rng.uniform(0.0, 0.98))]


def again(rng: random.Random, picture: Picture) -> tuple[str, Picture]:
    what = rng.choice(["re-encoded", "resized", "recoloured", "noise"])
    if what == "resized":
        how = rng.choice([Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS])
        picture = scaled(picture, rng.choice([rng.uniform(0.4, 0.9), rng.uniform(1.1, 2.0)]), how)
    if what == "recoloured":
        picture = relit(rng, picture, 0.15)
    if what == "noise":
        picture = noisy(rng, picture, rng.uniform(1, 5))
    return what, encoded(picture, rng.choice(["JPEG", "WEBP"]), rng.randint(40, 90))


def left_turned(rng: random.Random, picture: Picture) -> tuple[str, Picture]:
    """As a loader hands it out that decodes and does not read the tag."""
    tag, exif = rng.choice(list(TURNED)), Image.Exif()
    exif[ORIENTATION] = tag
    data = file_of(picture.transpose(TURNED[tag]), rng.choice(["JPEG", "PNG", "WEBP"]), exif=exif)
    return f"tag {tag}", Image.open(io.BytesIO(data)).convert("RGB")


CORRUPTIONS: dict[str, Corruption] = {
    "undecodable": cut_off, "min_side": too_small, "sharpness": blurred, "aspect": strip,
    "uniform": nearly_uniform, "duplicates": again, "orientation": left_turned,
}  # fmt: skip


def corrupted(rule: str, half: int, cases: Sequence[Case]) -> list[Case]:
    rng, made = random.Random(f"{rule}/{SEEDS[half]}"), []
    for case in cases:
        what, picture = CORRUPTIONS[rule](rng, case.picture)
        made.append(Case(f"{rule}-{case.id}", case.source, picture, what))
    return made


def gone(rng: random.Random, picture: Picture) -> Picture:
    """The lower part grey, as a lenient decoder leaves a file that was cut off."""
    from_here = round(picture.height * rng.uniform(0.1, 0.6))
    picture = picture.copy()
    picture.paste((128, 128, 128), (0, from_here, *picture.size))
    return picture


def overwritten(rng: random.Random, picture: Picture) -> bytes:
    data = bytearray(file_of(picture, "JPEG"))
    at = rng.randrange(len(data) // 4, len(data) - 64)
    data[at : at + 64] = rng.randbytes(64)
    return bytes(data)


def trimmed(picture: Picture, share: float) -> Picture:
    wide, high = (round(side * share) for side in picture.size)
    return picture.crop((wide, high, picture.width - wide, picture.height - high))


BEYOND: dict[str, dict[str, Callable[[random.Random, Picture], Picture | bytes]]] = {  # rule → what it is not made for
    "sharpness": {
        "gaussian 1": lambda rng, picture: gaussian(picture, 1.0),
        "gaussian 1.5": lambda rng, picture: gaussian(picture, 1.5),
        "moved by 15 pixels": lambda rng, picture: moved(picture, 15, rng.randrange(2)),
        "gaussian 4, then noise 1": lambda rng, picture: noisy(rng, gaussian(picture, 4), 1),
        "gaussian 4, then noise 3": lambda rng, picture: noisy(rng, gaussian(picture, 4), 3),
    },
    "uniform": {"lower part grey": gone},
    "undecodable": {
        "JPEG, 64 bytes overwritten": overwritten,
        "PNG without its last 16 bytes": lambda rng, picture: file_of(picture, "PNG")[:-16],
    },
    "duplicates": {
        "2 % of each edge cut": lambda rng, picture: trimmed(picture, 0.02),
        "5 % of each edge cut": lambda rng, picture: trimmed(picture, 0.05),
        "mirrored": lambda rng, picture: ImageOps.mirror(picture),
    },
}


EDITS = ("one thing away", "one thing of another colour")


def beyond(rule: str, what: str, half: int, cases: Sequence[Case]) -> list[Case]:
    rng = random.Random(f"{rule}/{what}/{SEEDS[half]}")
    return [Case(f"{what}-{case.id}", case.source, BEYOND[rule][what](rng, case.picture), what) for case in cases]


def edited_scenes(half: int, count: int, what: str) -> tuple[list[Case], list[Case]]:
    """(scenes, the same with one thing away or of another colour): pairs that a benchmark may ask the same of."""
    made, before, after = scenes(half, 4 * count), [], []
    for index in range(len(made)):
        scene = made.source(index)[0]
        if len(scene.things) < 2 or len(before) == count:
            continue
        first, *others = scene.things
        other = next(name for name in COLOURS if name != first.colour)
        things = others if what == "one thing away" else [replace(first, colour=other), *others]
        before.append(Case(f"before-{index}", "drawn", draw(scene)))
        after.append(Case(f"after-{index}", "drawn", draw(replace(scene, things=tuple(things))), what))
    return before, after


def sparse_pages(count: int, half: int) -> list[Case]:
    """A word on a white page, or a thin closed line: nearly all of it is one colour, and it is no bad picture."""
    rng, cases = random.Random(f"sparse/{SEEDS[half]}"), []
    for index in range(count):
        side = rng.choice([224, 336, 512])
        page = Image.new("RGB", (side, side), "white")
        pen, at = ImageDraw.Draw(page), (rng.randint(0, side // 2), rng.randint(0, side // 2))
        if index % 2:
            pen.text(at, rng.choice(["Exit", "Page 7", "42"]), fill="black", font=font(rng.randint(14, 24)))
        else:
            pen.ellipse((*at, at[0] + side // 3, at[1] + side // 3), outline="black")
        cases.append(Case(f"page-{index}", "drawn", page, "a word" if index % 2 else "a thin line"))
    return cases


def apart() -> list[Case]:
    """Bundled pictures that are no photographs, or no sharp ones: shown one by one, counted nowhere."""
    return [Case(n, "apart", Image.open(bundled("skimage", "data", n)).convert("RGB"), n) for n in APART]
