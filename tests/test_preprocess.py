"""How pictures are prepared: the checkpoint's own settings, what differs from them, and that it shows."""

import json
import shutil
from types import SimpleNamespace

import pytest
from PIL import Image

from mmaccel.jobs.prepared import prepared
from mmaccel.models.checkpoint import checkpoint
from mmaccel.models.inputs import Processor

PICO = checkpoint("pico", None).folder
STRETCH = {"do_center_crop": False, "size": {"height": 336, "width": 336}}
WIDE = Image.linear_gradient("L").rotate(90).resize((600, 300)).convert("RGB")
TALK = [{"role": "user", "content": [{"type": "image", "image": WIDE}, {"type": "text", "text": "what?"}]}]


@pytest.mark.parametrize("layout", ["llava", "qwen2_5_vl", "qwen3_vl", "smolvlm"])
def test_every_layout_is_prepared_as_its_files_say(layout):
    folder = PICO.parents[2] / "tests" / "layouts" / layout
    processor = Processor.load(folder)
    assert processor.written, "a file that says nothing would agree with everything"
    assert processor.differing == {}


def test_other_settings_change_pixels_hash_and_are_named():
    own, other = Processor.load(PICO), Processor.load(PICO, settings=STRETCH)
    assert own.differing == {}
    assert other.differing == {
        "size": [{"shortest_edge": 336}, {"height": 336, "width": 336}], "do_center_crop": [True, False],
    }  # fmt: skip
    assert own.hash != other.hash
    cropped, stretched = (p.inputs([TALK])["pixel_values"][0, 0] for p in (own, other))  # [h, w]
    assert cropped.shape == stretched.shape
    assert (cropped - stretched).abs().max() > 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [("image_mean", [0.4, 0.5, 0.6]), ("resample", 2), ("crop_size", {"height": 300, "width": 300}), ("size", 224)],
)
def test_whatever_the_file_says_otherwise_is_found(tmp_path, name, value):
    folder = tmp_path / "copy"
    shutil.copytree(PICO, folder)
    file = folder / "processor_config.json"
    said = json.loads(file.read_text())
    processor = Processor.load(folder)
    said["image_processor"][name] = value
    file.write_text(json.dumps(said))
    assert Processor.load(folder).differing == {}, "what is read is what is used"
    assert list(Processor.load(PICO, settings={name: value}).differing) == [name]
    assert list(Processor(**{**vars_of(processor), "written": said["image_processor"]}).differing) == [name]


@pytest.mark.parametrize("layout", ["qwen2_5_vl", "qwen3_vl"])
def test_a_setting_that_the_file_leaves_to_the_library_is_found_too(layout):
    folder = PICO.parents[2] / "tests" / "layouts" / layout
    assert list(Processor.load(folder, settings={"resample": 0}).differing) == ["resample"]
    smaller = Processor.load(folder, settings={"max_pixels": 3136})
    assert smaller.image_processor.size["longest_edge"] == 3136
    assert {"size"} <= set(smaller.differing) <= {"size", "max_pixels"}


def vars_of(processor: Processor) -> dict:
    return {name: getattr(processor, name) for name in Processor.__dataclass_fields__}


def test_an_unknown_setting_is_refused_with_the_valid_names():
    with pytest.raises(ValueError, match=r"model.image_processor: unknown settings \['crop'\], valid are .*crop_size"):
        Processor.load(PICO, settings={"crop": 1})


def test_the_difference_is_a_warning_and_stays_with_the_run(capsys):
    said = prepared(Processor.load(PICO, settings={"do_center_crop": False}))
    assert said["processor"]["differs"] == {"do_center_crop": [True, False]}
    assert "warning: pictures are not prepared as the checkpoint says (do_center_crop" in capsys.readouterr().err
    prepared(SimpleNamespace(differing={}, hash="x"))
    assert capsys.readouterr().err == ""
