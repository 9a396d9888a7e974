"""What a training needs before it is started: bytes of memory, bytes of disk for kept features, hours.

Memory is arithmetic over shapes (weights may be on the meta device), time and disk are one batch measured. An upper
bound by intent: autograd holds what a step needs, the target's forward holds one layer at a time. Knows numbers only.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

OPTIMISER = 12  # bytes a weight of fp32 beside itself: its gradient and AdamW's two moments
LINEAR = 14  # values of the residual's width that autograd holds of a decoder layer, a column
MASS = 3  # copies of the attention scores and of the logits: themselves, their softmax, the gradient


@dataclass(frozen=True)
class Memory:
    """Bytes. target: its weights.  head: weights, gradients, AdamW.  forward: the target's own pass.  features: what is
    shown of it.  step: what autograd holds of the head's steps."""

    target: int
    head: int
    forward: int
    features: int
    step: int

    @property
    def total(self) -> int:
        return self.target + self.head + max(self.forward, self.step) + self.features

    def __str__(self) -> str:
        parts = {"target": self.target, "head and AdamW": self.head, "features": self.features,
                 "a step": max(self.forward, self.step)}  # fmt: skip
        return f"{giga(self.total)} ({', '.join(f'{name} {giga(size)}' for name, size in parts.items())})"


def giga(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"


def memory(
    model: nn.Module, head: nn.Module, *, columns: int, answer: int, batch: int, taps: int = 0, steps: int = 1
) -> Memory:
    """columns: of a conversation, visual tokens included.  answer: those that are guessed.  steps: of guesses."""
    text: Any = model.config.get_text_config()  # type: ignore[operator, union-attr]
    width, heads, ffn = text.hidden_size, text.num_attention_heads, text.intermediate_size
    groups = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or width // heads
    each = next(model.parameters()).element_size()
    own = sum(p.numel() for p in head.parameters())
    cells = batch * columns
    kept = text.num_hidden_layers * 2 * groups * head_dim
    layer = cells * (LINEAR * width + 3 * ffn) * 4
    later = batch * answer * (LINEAR * width + 3 * ffn) * 4 * (steps - 1)
    scores = MASS * steps * batch * heads * answer * columns * 4
    logits = MASS * steps * batch * answer * text.vocab_size * 4
    return Memory(
        target=sum(p.numel() * p.element_size() for p in model.parameters()),
        head=own * (4 + OPTIMISER),
        forward=cells * (kept + 6 * width + 2 * ffn) * each,
        features=cells * width * (2 + taps) * each,
        step=layer + later + scores + logits,
    )


@dataclass(frozen=True)
class Trial:
    """One batch, measured. feel: seconds of the target's part.  learn: of the head's.  columns, answer: of a row.
    kept: bytes of a row's features.  sums: names of what the loss counts."""

    feel: float
    learn: float
    columns: int
    answer: int
    kept: int
    sums: tuple[str, ...] = ()


def said(trial: Trial, need: Memory, plan: Any, size: int, cached: bool) -> str:
    """The lines that are printed before the first step. size: conversations there are."""
    forwards = plan.steps * plan.accumulate
    felt = min(forwards, -(-size // plan.batch)) if cached else forwards  # kept features are felt once
    seconds = felt * trial.feel + forwards * trial.learn
    disk = f"{giga(trial.kept * size)} for {size} conversations" if cached else "none kept"
    return (
        f"memory: about {need}\ntime: about {clock(seconds)} ({trial.feel:.2f} s the target, {trial.learn:.2f} s the "
        f"head, a forward of {plan.batch})\nfeatures on the disk: {disk}, {giga(trial.kept)} each"
    )


def clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes else f"{seconds:.0f} s"
