"""The lmms-eval door, on their real classes where lmms-eval is installed, else on a stand-in of the same shape."""

import importlib
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import lmms_stand_in
import pytest
from PIL import Image

from mmaccel.attach import attach
from mmaccel.benchmarks.scenes import Scenes
from mmaccel.decoding.speculate import Speculate
from mmaccel.pruning.fastv import FastV

ROOT = Path(__file__).parents[1]
DOOR = "mmaccel.integrations.lmms_eval"
KINDS = ("exist", "caption", "count")
SAMPLES = [Scenes(n=3, kinds=list(KINDS), split="door")[index] for index in range(3)]


@pytest.fixture(scope="module")
def door():
    """Our module, beside the real lmms-eval or the stand-in, which is taken away again."""
    names = [] if find_spec("lmms_eval") else lmms_stand_in.install()
    yield importlib.import_module(DOOR)
    for name in [*names, DOOR]:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def plain(door):
    return door.MMAccel.create_from_arg_string("pretrained=pico,pruner=fastv,ratio=0.5,device=cpu", {"batch_size": 1})


@pytest.fixture(scope="module")
def vlm(plain):
    return plain.vlm


@pytest.fixture
def made(door, vlm, monkeypatch):
    """A model of these arguments; the weights are read once for all tests."""
    monkeypatch.setattr(door.VLM, "load", lambda *args, **kwargs: vlm)
    return lambda arguments: door.MMAccel.create_from_arg_string(f"pretrained=pico,device=cpu,{arguments}")


def messages(document):
    picture = [{"type": "image", "url": document.image}] if document.image is not None else []
    return [{"role": "user", "content": [*picture, {"type": "text", "text": document.turns[0]}]}]


def requests(model, documents, settings, to_messages=messages, kind="generate_until"):
    """Instances as a task makes them, and the documents where the evaluator puts them."""
    from lmms_eval.api.instance import Instance

    model.task_dict["door"] = {"test": documents}
    return [
        Instance(
            request_type=kind,
            arguments=("", to_messages, given, at, "door", "test"),
            idx=0,
            metadata={"task": "door", "doc_id": at, "repeats": 1},
        )
        for at, given in enumerate(settings)
    ]


def metrics():
    from lmms_eval.models.model_utils.gen_metrics import get_logged_metrics_history

    return get_logged_metrics_history()[-1]


def reply(vlm, sample, most, pruner=FastV(layer=2, ratio=0.5)):  # noqa: B008
    """(text, number of its tokens) of our own generate under attach."""
    parts = [{"type": "image", "image": sample.image}, {"type": "text", "text": sample.turns[0]}]
    inputs = vlm.inputs([[{"role": "user", "content": parts}]])
    with attach(vlm.model, pruner):
        out = vlm.model.generate(**inputs, do_sample=False, max_new_tokens=most, custom_generate=Speculate())
    ids = out[0, inputs["input_ids"].shape[1] :]
    return vlm.tokenizer.decode(ids, skip_special_tokens=True).strip(), len(ids)


def test_answers_are_those_of_our_own_generate_each_with_its_own_settings(plain, vlm):
    lengths = (12, 24, 3)
    results = plain.generate_until(requests(plain, SAMPLES, [{"max_new_tokens": n, "temperature": 0} for n in lengths]))
    expected = [reply(vlm, sample, most) for sample, most in zip(SAMPLES, lengths)]
    assert [(result.text, result.token_counts.output_tokens) for result in results] == expected
    assert expected[1][1] == 24
    assert all(result.token_counts.input_tokens > 576 for result in results)


def test_the_throughput_channel_has_kept_tokens_and_acceptance(made, plain):
    settings = [{"max_new_tokens": 40}] * 3
    words = [result.text for result in plain.generate_until(requests(plain, SAMPLES, settings))]
    said = metrics()
    visual = said["visual_tokens"]
    layers = plain.vlm.model.config.get_text_config().num_hidden_layers
    assert said["total_requests"] == 3
    assert said["failed_requests"] == 0
    assert said["visual_tokens_kept"] == visual / 2
    assert said["visual_tokens_per_layer"] == pytest.approx((2 * visual + (layers - 2) * visual / 2) / layers)
    assert said["tau"] == 1.0
    assert "alpha" not in said

    drafted = made("pruner=fastv,ratio=0.5,draft=eagle")
    results = drafted.generate_until(requests(drafted, SAMPLES, settings))
    said = metrics()
    assert [result.text for result in results] == words
    assert said["tau"] == said["spec_emitted"] / said["spec_steps"] > 1.5
    assert said["spec_emitted"] == said["total_gen_tokens"] - 3  # without the prefills' tokens
    assert said["alpha"] == said["spec_accepted"] / said["spec_drafted"]
    assert min(said["prune_ms"], said["draft_ms"], said["verify_ms"], said["prefill_ms"], said["preprocess_ms"]) > 0
    inside = sum(said[f"{stage}_ms"] for stage in ("prefill", "prune", "draft", "verify", "decode"))
    assert 3 * inside == pytest.approx(1e3 * said["total_elapsed_time"])


def test_an_answer_ends_before_its_stop_string(plain, vlm):
    whole, length = reply(vlm, SAMPLES[1], 24)
    stop = whole.split()[3]
    (cut,) = plain.generate_until(requests(plain, SAMPLES[1:], [{"max_new_tokens": 24, "until": [stop, "\n"]}]))
    assert cut.text == whole[: whole.index(stop)].strip()
    assert cut.token_counts.output_tokens < length


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"do_sample": False, "max_new_tokens": 1024}),
        ({"max_new_tokens": 16, "temperature": 0, "top_p": 1.0}, {"do_sample": False, "max_new_tokens": 16}),
        ({"do_sample": True, "temperature": 0.0}, {"do_sample": False, "max_new_tokens": 1024}),
        ({"do_sample": False, "temperature": 0.7}, {"do_sample": True, "max_new_tokens": 1024, "temperature": 0.7}),
        ({"do_sample": True, "top_p": 0.9}, {"do_sample": True, "max_new_tokens": 1024, "top_p": 0.9}),
    ],
)
def test_what_a_task_asks_of_generation(door, given, expected):
    assert door.options(given) == expected


def test_the_filler_of_lmms_eval_is_no_stop_string(door):
    assert door.stops(["\n\n"]) == door.stops(None) == ()
    assert door.stops(["\n\n", "Q:"]) == ("\n\n", "Q:")
    assert door.stops("</s>") == ("</s>",)


def test_a_setting_that_is_not_read_is_said_and_a_wrong_one_refused_before_anything_runs(plain):
    with pytest.warns(UserWarning, match="image_aspect_ratio is not read, valid are max_new_tokens"):
        plain.generate_until(requests(plain, SAMPLES, [{"max_new_tokens": 1, "image_aspect_ratio": "pad"}]))
    with pytest.raises(ValueError, match=r"document 1: generation_kwargs\.num_beams: got 4"):
        plain.generate_until(requests(plain, SAMPLES, [{}, {"num_beams": 4}]))


def test_one_picture_that_cannot_be_read_does_not_end_the_run(plain, vlm):
    broken = SimpleNamespace(image=Image.new("RGB", (2000, 2)), turns=SAMPLES[0].turns)
    asked = requests(plain, [SAMPLES[0], broken, SAMPLES[2]], [{"max_new_tokens": 4}] * 3)
    with pytest.warns(UserWarning, match="task door, document 1: ValueError: .*2000×2"):
        results = plain.generate_until(asked)
    assert [result.text for result in results] == [reply(vlm, SAMPLES[0], 4)[0], "", reply(vlm, SAMPLES[2], 4)[0]]
    assert results[1].token_counts is None
    assert (metrics()["total_requests"], metrics()["failed_requests"]) == (2, 1)


@pytest.mark.filterwarnings("ignore:task door")
def test_a_run_in_which_nothing_works_ends(plain):
    video = [{"role": "user", "content": [{"type": "video", "url": "clip.mp4"}, {"type": "text", "text": "What?"}]}]
    with pytest.raises(RuntimeError, match=r"the first 8 requests all failed; .*type 'video', valid are 'image'"):
        plain.generate_until(requests(plain, [None] * 20, [{}] * 20, lambda document: video))


def test_text_alone_and_nothing_attached(made):
    model = made("pruner=none")
    documents = [SAMPLES[0], SimpleNamespace(image=None, turns=("Say yes.",))]
    model.generate_until(requests(model, documents, [{"max_new_tokens": 2}] * 2))
    assert metrics()["visual_tokens_kept"] == metrics()["visual_tokens"] == 576
    assert metrics()["total_requests"] == 2
    pruned = made("pruner=fastv,keep=0.25")
    pruned.generate_until(requests(pruned, documents, [{"max_new_tokens": 2}] * 2))
    assert metrics()["visual_tokens_kept"] == 144


def test_rounds_go_on_until_the_task_says_so(plain, vlm):
    seen = []

    def rounds(document, round_idx=None, previous_output=None, previous_round_info=None):
        if round_idx is None:
            return messages(document)
        seen.append((round_idx, list(previous_output), previous_round_info))
        return messages(SAMPLES[2]), round_idx == 2, previous_output, f"after {round_idx}"

    asked = requests(plain, SAMPLES[:1], [{"max_new_tokens": 6}], rounds, "generate_until_multi_round")
    (first, one), (second, two) = reply(vlm, SAMPLES[0], 6), reply(vlm, SAMPLES[2], 6)
    assert plain.generate_until_multi_round(asked) == [[first, second]]
    assert seen == [(1, [first], None), (2, [first, second], "after 1")]
    assert (metrics()["total_requests"], metrics()["total_gen_tokens"]) == (2, one + two)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pruner=fastv,raito=0.5", r"unknown key raito \(did you mean ratio\?\); valid keys are .*layer.*pretrained"),
        ("ratio=0.5", "got ratio without pruner=, valid for pruner are .*fastv.*pretrained"),
        ("pruner=fastvv", r"got 'fastvv' \(did you mean fastv\?\), valid are"),
        ("draft=eagle,draft_deep=3", "draft=eagle: .*'deep'.* Its yaml has folder, levels"),
        ("pruner=fastv,layer=99", "99"),
        ("pruner=fastv,ratio=1.5", "ratio"),
        ("batch_size=8", "batch_size: got 8, valid is 1"),
        ("revision=1234567", "revision: got the number 1234567"),
    ],
)
def test_wrong_arguments_are_refused_with_the_valid_ones(made, arguments, message):
    with pytest.raises(ValueError, match=message):
        made(arguments)


def test_a_head_made_for_another_model_is_refused(made, monkeypatch):
    def fits(head, width, vocabulary):
        raise ValueError(f"made for another width than {width}")

    monkeypatch.setattr("mmaccel.drafting.lookup.Lookup.fits", fits)
    with pytest.raises(ValueError, match="another width than 256"):
        made("draft=lookup")


def test_fields_arrive_as_a_yaml_would_have_them(made):
    assert made("pruner=fastv,tokens=7,layer=scaled").pruner == FastV(layer="scaled", tokens=7)
    assert made("pruner=fastv,ratio=null,mean_tokens=20").pruner == FastV(mean_tokens=20)
    assert made("draft=lookup,draft_ngram=2").head.ngram == 2


def test_the_memory_is_given_back_when_lmms_eval_asks_for_it(made):
    model = made("pruner=fastv,draft=lookup")
    model.clean()
    assert not {"vlm", "head"} & set(vars(model))


def test_log_likelihoods_are_refused_with_the_reason(plain):
    with pytest.raises(NotImplementedError, match="no score of a given continuation"):
        plain.loglikelihood([])


def test_the_entry_point_is_a_manifest_of_a_chat_model(door):
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["lmms_eval.models"]
    module, name = group["mmaccel"].split(":")
    manifest = getattr(importlib.import_module(module), name)()
    module, name = manifest.chat_class_path.rsplit(".", 1)
    model = getattr(importlib.import_module(module), name)
    assert manifest.model_id == "mmaccel"
    assert model is door.MMAccel
    assert model.is_simple is False


def test_it_loads_and_answers_without_hydra_and_wandb():
    code = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
for name in ("hydra", "omegaconf", "wandb", "datasets", "matplotlib", "rich"):
    sys.modules[name] = None
import lmms_stand_in
lmms_stand_in.install()
from {DOOR} import MMAccel
from PIL import Image
model = MMAccel("pico", pruner="fastv", draft="eagle", device="cpu")
model.task_dict["t"] = {{"test": [Image.new("RGB", (96, 96), "red")]}}
parts = lambda image: [{{"type": "image", "url": image}}, {{"type": "text", "text": "Is there a red circle?"}}]
ask = lambda image: [{{"role": "user", "content": parts(image)}}]
arguments = ("", ask, {{"max_new_tokens": 4}}, 0, "t", "test")
request = lmms_stand_in.Instance("generate_until", arguments, 0, {{"task": "t", "doc_id": 0, "repeats": 1}})
assert model.generate_until([request])[0].token_counts.output_tokens > 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
