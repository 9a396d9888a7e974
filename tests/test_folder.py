"""The folder benchmark on real photographs (those scikit-image and scikit-learn bundle) and on broken ones."""

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mmaccel.benchmarks.folder import Folder, read_picture
from mmaccel.benchmarks.quality import picture_facts
from mmaccel.benchmarks.text import judge, normal, number, words, yes_no

ORIENTATION = 0x0112


@pytest.fixture(scope="session")
def photographs():
    skimage_data = pytest.importorskip("skimage.data")
    samples = pytest.importorskip("sklearn.datasets").load_sample_images()
    named = dict(zip(("china", "flower"), samples.images))
    named |= {"astronaut": skimage_data.astronaut(), "coffee": skimage_data.coffee(), "chelsea": skimage_data.chelsea()}
    return {name: Image.fromarray(pixels) for name, pixels in named.items()}


@pytest.fixture
def pictures(tmp_path, photographs):
    photographs["china"].save(tmp_path / "china.jpg", quality=90)
    photographs["flower"].save(tmp_path / "FLOWER.JPEG", quality=90)
    photographs["astronaut"].save(tmp_path / "astronaut.PNG")
    photographs["coffee"].save(tmp_path / "coffee.webp", lossless=True)
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / "deeper").mkdir()
    photographs["chelsea"].save(tmp_path / "deeper" / "chelsea.png")
    return tmp_path


def table(folder, text):
    (folder / "questions.csv").write_text(text, encoding="utf-8")
    return Folder(folder, questions="questions.csv")


def test_reads_the_three_formats_in_any_case(pictures, photographs):
    folder = Folder(pictures, ask=("What is it?",))
    assert [folder[i].id.split("#")[0] for i in range(len(folder))] == sorted(
        ["china.jpg", "FLOWER.JPEG", "astronaut.PNG", "coffee.webp"]
    )
    by_name = {folder[i].id.split("#")[0]: folder[i] for i in range(len(folder))}
    for name, stem in (("astronaut.PNG", "astronaut"), ("coffee.webp", "coffee")):  # the lossless ones: pixel for pixel
        assert np.array_equal(np.asarray(by_name[name].image), np.asarray(photographs[stem]))
    sample = by_name["china.jpg"]
    assert (sample.facts["width"], sample.facts["height"]) == photographs["china"].size
    assert sample.reference == (None,)
    assert sample.image.mode == "RGB"


def test_subfolders_only_when_asked(pictures):
    assert len(Folder(pictures, ask=("?",))) == 4
    folder = Folder(pictures, ask=("?",), recursive=True)
    assert len(folder) == 5
    assert any(folder[i].id.startswith("deeper/chelsea.png") for i in range(5))


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_orientation_is_honoured(tmp_path, photographs, orientation):
    upright = photographs["coffee"]
    turns = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    upright.transpose(turns[orientation]).save(tmp_path / "phone.png", exif=exif)
    sample = Folder(tmp_path, ask=("?",))[0]
    assert np.array_equal(np.asarray(sample.image), np.asarray(upright))
    assert (sample.facts["width"], sample.facts["height"]) == upright.size


def test_large_pictures_are_reduced_and_keep_their_shown_size(tmp_path, photographs):
    photographs["china"].save(tmp_path / "a.jpg")
    sample = Folder(tmp_path, ask=("?",), longest_side=200)[0]
    assert max(sample.image.size) == 200
    assert sample.facts["width"] == photographs["china"].width


def test_sixteen_bit_and_transparent_pictures(tmp_path):
    Image.fromarray(np.full((8, 8), 40000, dtype=np.uint16)).save(tmp_path / "deep.png")
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert read_picture(tmp_path / "deep.png", 64)[0].getpixel((0, 0)) == (156, 156, 156)
    assert read_picture(tmp_path / "clear.png", 64)[0].getpixel((0, 0)) == (255, 255, 255)


def test_questions_answers_and_kinds_come_from_the_table(pictures):
    text = 'image,question,answer,kind\nchina.jpg,"A roof, here?",yes,look\ncoffee.webp,What is it?,,\n'
    folder = table(pictures, text)
    first, second = folder[0], folder[1]
    assert (first.turns, first.reference, first.kind) == (("A roof, here?",), ("yes",), "look")
    assert (second.reference, second.kind) == ((None,), "open")
    assert folder.score(first, ["Yes, there is."]) == {"correct": 1.0, "parsed": "yes"}
    assert folder.score(second, ["A cup."]) == {"correct": None, "parsed": "cup"}
    assert len(Folder(pictures, questions=pictures / "questions.csv", kinds=["look"])) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("picture,question\nchina.jpg,?\n", r"row 1: unknown columns \['picture'\], missing columns \['image'\]"),
        ("image;question\nchina.jpg;?\n", "row 1: .*separated by commas"),
        ("image,question\nchina.jpg,ok?\nnowhere.jpg,?\n", "row 3, column 'image': no picture 'nowhere.jpg'"),
        ("image,question\nchina.jpg,\n", "row 2, column 'question': empty"),
        ("image,question,answer\nchina.jpg,what?\n", "row 2, column 'answer': no value"),
        ("image,question\nchina.jpg,what, exactly?\n", "row 2: 1 values more than columns"),
        ("image,question\n../outside.jpg,?\n", "row 2, column 'image': .* lies outside"),
        ("image,question\nnotes.txt,?\n", "row 2, column 'image': 'notes.txt': read are"),
        ("image,question\n", "leaves nothing"),
    ],
)
def test_every_complaint_about_the_table_names_its_place(pictures, text, message):
    with pytest.raises(ValueError, match=message):
        table(pictures, text)


def test_a_table_that_is_not_utf8_is_named(pictures):
    (pictures / "questions.csv").write_bytes("image,question\nchina.jpg,où?\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"questions\.csv row \d: not readable as UTF-8 CSV"):
        Folder(pictures, questions="questions.csv")


def test_bad_folders_and_files_are_refused_by_name(tmp_path, photographs):
    with pytest.raises(ValueError, match=r"benchmark\.path: the folder benchmark needs a folder"):
        Folder("")
    with pytest.raises(ValueError, match="is no folder"):
        Folder(tmp_path / "nowhere")
    (tmp_path / "scan.tiff").write_bytes(b"II*")
    with pytest.raises(ValueError, match=r"no picture in .*\.tiff.*recursive=true"):
        Folder(tmp_path)
    (tmp_path / "liar.jpg").write_text("GIF89a and more")
    with pytest.raises(ValueError, match=r"'liar\.jpg': not readable"):
        Folder(tmp_path)
    (tmp_path / "liar.jpg").unlink()
    photographs["china"].save(tmp_path / "big.jpg")
    with pytest.raises(ValueError, match=r"'big\.jpg': 640 × 427 = 273,280 pixels, .* benchmark\.max_pixels=1,000"):
        Folder(tmp_path, max_pixels=1000)


def test_a_decompression_bomb_is_refused_from_its_header(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(png)
    with pytest.raises(ValueError, match="decompression bomb"):
        Folder(tmp_path)


def test_picture_facts_order_real_pictures(photographs):
    from PIL import ImageFilter

    sharp = photographs["china"]
    blurred, flat = sharp.filter(ImageFilter.GaussianBlur(8)), Image.new("RGB", (64, 64), (90, 90, 90))
    facts = {name: picture_facts(image) for name, image in {"s": sharp, "b": blurred, "f": flat}.items()}
    assert facts["s"]["sharpness"] > 20 * facts["b"]["sharpness"]
    assert facts["s"]["edges"] > facts["b"]["edges"]
    assert facts["f"]["entropy"] == 0.0
    assert 6 < facts["s"]["entropy"] <= 8
    assert facts["s"]["bucket"] in ("ordinary", "busy")
    assert facts["b"]["bucket"] == facts["f"]["bucket"] == "blurred"
    assert picture_facts(Image.new("RGB", (1, 1)))["sharpness"] == 0.0


@pytest.mark.parametrize(
    ("text", "form"),
    [("The Cat!", "cat"), ("3.", "3"), ("3.5", "3.5"), (".5", "0.5"), ("1,000 dogs", "1000 dogs"), ("two", "2"),
     ("Don't", "dont"), ("A", "a"), ("-4", "-4"), ("well-known", "well known"), ("It is 50%.", "it is 50%")],
)  # fmt: skip
def test_normal_form(text, form):
    assert normal(text) == form
    assert normal(form) == form


def test_parsers_read_what_is_there_and_nothing_else():
    assert [yes_no(t) for t in ("Yes.", "no", "Well, yes", "yes or no?")] == ["yes", "no", "yes", "yes"]
    assert yes_no("Not sure") is None
    assert yes_no("I say no, not yes") is None
    assert [number(t) for t in ("three", "There are 3.", "3 or 4", "none", "many")] == [3, 3, None, 0, None]
    assert words("10-20") == ["10", "20"]


def test_judge_uses_the_parser_of_the_reference():
    assert judge("Yes, it is", "yes") == ("yes", 1.0)
    assert judge("there are two", "2") == ("2", 1.0)
    assert judge("2 or 3", "2") == (None, 0.0)
    assert judge("a red car", "red car") == ("red car", 1.0)
    assert judge("it is red", "red") == ("it is red", 0.0)
    assert judge("it is red", "red", contains=True) == ("it is red", 1.0)
    assert judge("it is reddish", "red", contains=True)[1] == 0.0


def test_the_digest_follows_questions_answers_and_pictures_and_nothing_else(pictures):
    text = "image,question,answer\nchina.jpg,a roof?,yes\ncoffee.webp,what?,\n"
    first = table(pictures, text).digest(2)
    os.utime(pictures / "china.jpg", (1, 1))
    assert table(pictures, text).digest(2) == first
    assert table(pictures, text.replace("yes", "no")).digest(2) != first
    assert table(pictures, text.replace("a roof", "the roof")).digest(2) != first
    Image.open(pictures / "china.jpg").rotate(180).save(pictures / "china.jpg")
    assert table(pictures, text).digest(2) != first


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"ask": "What?"}, r"benchmark\.ask: got 'What\?', valid is a list"),
        ({"ask": []}, r"benchmark\.ask: got \[\]"),
        ({"kinds": "look"}, r"benchmark\.kinds: got 'look', valid is a list"),
        ({"longest_side": 0}, r"benchmark\.longest_side: got 0, valid are whole numbers"),
        ({"max_pixels": 1.5}, r"benchmark\.max_pixels: got 1\.5"),
        ({"max_new_tokens": -5}, r"benchmark\.max_new_tokens: got -5"),
    ],
)
def test_settings_that_cannot_work_are_named(pictures, setting, message):
    with pytest.raises(ValueError, match=message):
        Folder(pictures, **setting)


def test_broken_files_are_refused_or_kept(tmp_path, photographs):
    photographs["coffee"].save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"'b.png': not readable .*benchmark.broken=keep goes on without it"):
        Folder(tmp_path, ask=("?",))
    kept = Folder(tmp_path, ask=("?",), broken="keep")
    assert kept[0].image.size == photographs["coffee"].size
    with pytest.raises(ValueError, match=r"'b.png': cannot be decoded"):
        kept[1]
    with pytest.raises(ValueError, match=r"benchmark.broken: got 'drop', valid are refuse, keep"):
        Folder(tmp_path, broken="drop")
