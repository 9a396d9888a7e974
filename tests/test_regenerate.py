"""Answers in the target's own words: those of its own greedy decoding, row by row; a run that was killed goes on."""

import json
from typing import Any

import pytest
from PIL import Image
from running import typed, write_tiny_llava

from mmaccel.attach import attach
from mmaccel.models.load import VLM
from mmaccel.pruning.fastv import FastV
from mmaccel.training.data import Conversation, Llava, SceneChats
from mmaccel.training.regenerate import record, regenerated, written

OPTIONS = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_tiny_llava(tmp_path_factory.mktemp("tiny") / "llava")


@pytest.fixture(scope="module")
def vlm(checkpoint):
    return VLM.load(checkpoint)


def alone(vlm: Any, prompt: list[dict], stops: set[int]) -> str | None:
    """The slow way: one prompt, the library's own greedy decoding."""
    inputs = vlm.inputs([prompt])
    ids = vlm.model.generate(**inputs, **OPTIONS)[0, inputs["input_ids"].shape[1] :].tolist()
    return vlm.tokenizer.decode(ids, skip_special_tokens=True).strip() if stops & set(ids) else None


@pytest.mark.parametrize("pruner", [None, FastV(layer=1, ratio=0.6)], ids=["whole", "pruned"])
def test_every_turn_is_said_anew_after_what_was_said_anew(vlm, monkeypatch, pruner):
    """The tiny model never stops by itself, so some of its words are made to end an answer."""
    words = {vlm.model.generate(**vlm.inputs([SceneChats(6)[k].messages[:-1]]), **OPTIONS)[0, -3:].tolist()[0]
             for k in range(3)}  # fmt: skip
    monkeypatch.setattr(vlm.model.generation_config, "eos_token_id", [*vlm.stop_ids, *words])
    monkeypatch.setattr(VLM, "stop_ids", property(lambda self: tuple(self.model.generation_config.eos_token_id)))
    stops = set(vlm.stop_ids)
    first = [SceneChats(6)[k].messages for k in range(6)]
    talks = [[*m, {"role": "user", "content": "And then?"}, {"role": "assistant", "content": "x"}] for m in first[:3]]
    talks += first[3:]
    found = regenerated(vlm, talks, OPTIONS, pruner)
    ended = 0
    for messages, told in zip(talks, found):
        prompt, kept = [], True
        for message in messages:
            if message["role"] == "assistant":
                if pruner is None:
                    said = alone(vlm, prompt, stops)
                else:
                    with attach(vlm.model, pruner):
                        said = alone(vlm, prompt, stops)
                kept = kept and bool(said)
                message = {"role": "assistant", "content": said}
            if kept:
                prompt.append(message)
        assert told == (prompt if kept else None)
        ended += kept
    assert ended > 0


def test_the_job_writes_what_llava_reads_and_goes_on_where_it_was_killed(monkeypatch, tmp_path, checkpoint, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("job=regenerate", "data.n=7", "data.kinds=[colour]", "job.batch=3", "job.most=1", "machine.threads=1")
    from mmaccel.training import regenerate

    monkeypatch.setattr(regenerate, "answered", lambda vlm, prompts, *_: ["a cat" for _ in prompts])

    def run(*more: str) -> int:
        return typed(monkeypatch, *words, "model=llava", f"model.path={checkpoint}", *more)

    assert run("output=whole") == 0
    assert "7 kept, 0 left out" in capsys.readouterr().err
    file = tmp_path / "whole" / "conversations.jsonl"
    source = Llava(str(file), str(tmp_path / "whole" / "images"))
    assert (len(source), source.problems) == (7, [])
    scene, mine = SceneChats(7, kinds=["colour"])[4], source[4]
    assert mine.id == scene.id
    assert mine.messages[0]["content"][1]["text"] == scene.messages[0]["content"][1]["text"]
    picture = mine.messages[0]["content"][0]["image"]
    assert picture.tobytes() == scene.messages[0]["content"][0]["image"].tobytes()
    assert mine.messages[1]["content"] == "a cat"
    whole = file.read_text()
    lines = whole.splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + lines[3][:40])  # killed while it wrote
    assert run("resume=whole") == 0
    assert file.read_text() == whole
    assert run("resume=whole", "job.most=2") == 2
    assert "job.most: was 1, now 2" in capsys.readouterr().err
    assert run("output=whole") == 2
    assert "already holds a run" in capsys.readouterr().err
    assert run("output=other", "job.batch=0") == 2
    assert "job.batch: got 0" in capsys.readouterr().err


def test_pictures_are_kept_as_the_target_saw_them(tmp_path):
    """Upright and in RGB, whatever their file says; texts may hold any mark that ends a line."""
    (tmp_path / "images").mkdir()
    sideways, ink = Image.new("RGB", (64, 32), "red"), Image.new("CMYK", (8, 8), (0, 200, 0, 0))
    sideways.getexif()[0x0112] = 6
    parts = [{"type": "image", "image": picture} for picture in (sideways, ink)]
    messages = [
        {"role": "user", "content": [*parts, {"type": "text", "text": "a\u2028b"}]},
        {"role": "assistant", "content": "c\u0085d"},
    ]
    line = record(Conversation("x", messages), messages, 3, tmp_path, 10**6)
    shown = [Image.open(tmp_path / "images" / name) for name in line["image"]]
    assert [(one.size, one.mode) for one in shown] == [((32, 64), "RGB"), ((8, 8), "RGB")]
    file = tmp_path / "conversations.jsonl"
    whole = json.dumps(line, ensure_ascii=False) + "\n"
    file.write_text(whole + whole[:30], encoding="utf-8")
    assert written(file) == [line]
    assert file.read_text(encoding="utf-8") == whole
    assert Llava(str(file), str(tmp_path / "images"))[0].messages[1]["content"] == "c\u0085d"


def test_what_does_not_end_is_left_out(monkeypatch, tmp_path, checkpoint, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("data.n=3", "data.kinds=[colour]", "job.most=2", "machine.threads=1", "output=run")
    assert typed(monkeypatch, "job=regenerate", "model=llava", f"model.path={checkpoint}", *words) == 0
    assert "0 kept, 3 left out" in capsys.readouterr().err
    assert written(tmp_path / "run" / "conversations.jsonl") == []
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["weights"]
