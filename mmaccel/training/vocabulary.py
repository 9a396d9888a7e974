"""Which of the target's tokens a head with a smaller vocabulary can say: those its answers use most.

Knows a tokenizer and the texts of answers. Opens no picture.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mmaccel.drafting.eagle3 import Eagle3, frequent

MOST = 20_000  # conversations that are counted


def counted(tokenizer: Any, answers: Iterable[str], size: int) -> Tensor:
    """[size] how often each id is said."""
    counts = torch.zeros(size, dtype=torch.long)
    for answer in answers:
        ids = torch.tensor(tokenizer.encode(answer, add_special_tokens=False), dtype=torch.long)
        counts += torch.bincount(ids, minlength=size)
    return counts


def give_vocabulary(head: Any, vlm: Any, source: Any, size: int) -> None:
    """The words of the first `size` conversations for a head that cannot say all; those that end an answer always."""
    if not isinstance(head, Eagle3) or len(head.d2t) == len(head.t2d):
        return
    answers = (f" {answer}" for at in range(min(size, MOST)) for answer in source.answers(at))
    counts = counted(vlm.tokenizer, answers, len(head.t2d))
    head.speak(frequent(counts, len(head.d2t), [token for token in vlm.stop_ids if token is not None]))
