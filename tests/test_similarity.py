"""Text and picture by a CLIP-style model: a tiny random one, against the library's own forward."""

import json

import pytest
import torch
from PIL import Image

from mmaccel.models.similarity import similarity


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("clip")
    words = Tokenizer(models.WordLevel({"<unk>": 0, "red": 1, "blue": 2, "</s>": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>").save_pretrained(folder)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config=small | {"vocab_size": 8, "max_position_embeddings": 8, "eos_token_id": 3},
        vision_config=small | {"image_size": 28, "patch_size": 14}, projection_dim=8,
    )  # fmt: skip
    CLIPModel(config).save_pretrained(folder)
    settings = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}}
    settings |= {"crop_size": {"height": 28, "width": 28}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_the_cosine_is_that_of_the_models_own_logits(clip):
    from transformers import CLIPModel

    compare, picture = similarity(str(clip)), Image.new("RGB", (40, 30), "red")
    said = compare(picture, "red")
    assert -1 <= said <= 1
    assert compare(picture, "blue red blue") != said
    assert compare(picture, "red " * 50) == compare(picture, "red " * 8), "a long text is cut, not refused"
    model = CLIPModel.from_pretrained(clip).eval()
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    pixels = CLIPImageProcessorPil.from_pretrained(clip)(images=[picture], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[1]]), pixel_values=pixels).logits_per_image
    assert said == pytest.approx(float(logits) / float(model.logit_scale.detach().exp()), abs=1e-5)
