"""Whether a picture reaches the model at all. Runs the loaded model twice on one sample."""

from typing import Any

import torch

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.wire import blank_like
from mmaccel.jobs.conversation import conversation


@torch.no_grad()
def picture_reaches(vlm: Any, sample: Sample) -> None:
    """Raises where the pictures and grey ones of their sizes give the same first-token logits."""
    seen, unseen = (
        vlm.model(**vlm.inputs([conversation(sample, [], pictures)]), logits_to_keep=1).logits[0, -1]
        for pictures in (sample.pictures, [blank_like(picture) for picture in sample.pictures])
    )  # [V]
    if torch.equal(seen, unseen):
        raise ValueError(
            f"the picture does not reach the model: sample {sample.id!r} and a plain grey picture give the same "
            "first-token logits. Check that processor and weights are of one checkpoint (image token, chat template)"
        )
