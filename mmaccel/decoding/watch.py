"""What a draft head is shown of the target: hidden states of the columns that reached the end, read by hooks.

Knows the text model's layers and the cache's columns. Does not know heads or drafts. Nothing of the model is changed,
and `output_hidden_states` is never asked for: it would keep every layer's.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from mmaccel.cache import columns, logical_length
from mmaccel.drafting.base import Seen


class Watch:
    """`with watch: model(…)`, then `hidden` [B, r, D], `embeds` [B, n, D] and `taps` as they were in that forward."""

    def __init__(self, model: Any, taps: Sequence[int]) -> None:
        self.text: Any = model.get_decoder()
        depth = len(self.text.layers)
        wrong = [tap for tap in taps if not 0 <= tap < depth]
        if wrong:
            raise ValueError(f"taps: got {wrong}, valid are 0 … {depth - 1} (the last hidden states are always shown)")
        self.wanted = tuple(taps)
        self.hidden: Tensor | None = None
        self.embeds: Tensor | None = None
        self.position: Tensor | None = None
        self.taps: dict[int, Tensor] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Watch":
        self.hidden, self.embeds, self.taps = None, None, {}
        stack = ExitStack()
        handles = [self.text.register_forward_pre_hook(self._before, with_kwargs=True)]
        handles.append(self.text.register_forward_hook(self._after))
        handles += [
            self.text.layers[tap].register_forward_pre_hook(self._tap(tap), with_kwargs=True) for tap in self.wanted
        ]
        for handle in handles:
            stack.callback(handle.remove)
        self._stack = stack
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _before(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        embeds = kwargs.get("inputs_embeds")
        self.position = kwargs.get("position_ids")
        self.embeds = embeds if embeds is not None else module.get_input_embeddings()(kwargs["input_ids"])  # type: ignore[operator]

    def _after(self, module: nn.Module, args: tuple, output: Any) -> None:
        self.hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state

    def _tap(self, tap: int) -> Callable[..., None]:
        def read(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            self.taps[tap] = args[0] if args else kwargs["hidden_states"]

        return read

    def prompt(
        self, cache: Any, ids: Tensor, position: Tensor, mask: Tensor | None, image: int | None
    ) -> tuple[Seen, Tensor]:
        """(the columns of a prompt that reached the end, [B, P] their places in it).

        ids, mask: [B, N] of the prompt.  position: [B or 1, N] or [axes, B or 1, N].  image: the placeholder's id.
        """
        length, rows = logical_length(cache), len(ids)
        column, (embeds, hidden, *taps) = self.settled(cache, length)
        at = (column - (length - ids.shape[1])).clamp(min=0)  # [B, P]
        valid = column >= 0 if mask is None else (column >= 0) & mask.bool().gather(1, at)
        position = position.expand(*position.shape[:-2], rows, -1)
        position = position.gather(-1, at.expand(*position.shape[:-2], -1, -1))
        shown = ids.gather(1, at)
        visual = shown == image if image is not None else torch.zeros_like(shown, dtype=torch.bool)
        return Seen(shown, position, valid, hidden, tuple(taps), embeds, visual), at

    def settled(self, cache: Any, length: int) -> tuple[Tensor, list[Tensor]]:
        """(columns [B, P] that reached the end, −1 = filler; [embeds, hidden, *taps] of those), after a prompt of
        `length` columns."""
        assert self.hidden is not None
        assert self.embeds is not None
        depth = len(self.text.layers)
        final = columns(cache, depth - 1)[:, -self.hidden.shape[1] :]  # [B, P]
        first = torch.arange(length - self.embeds.shape[1], length, device=final.device).expand(len(final), -1)
        held = [(first, self.embeds), (final, self.hidden)]
        for tap in self.wanted:
            states = self.taps[tap]
            # a station gathers what enters its own layer behind this hook: then the layer before has the columns
            sides = [first] if tap == 0 else [columns(cache, layer)[:, -states.shape[1] :] for layer in (tap - 1, tap)]
            held.append((next(side for side in sides if side.shape[1] == states.shape[1]), states))
        return final, [gathered(states, have, final) for have, states in held]


def gathered(states: Tensor, have: Tensor, want: Tensor) -> Tensor:
    """states [B, r, D] at columns have [B, r] (increasing, fillers first) → [B, P, D] at want [B, P]."""
    if have.shape == want.shape and torch.equal(have, want):
        return states
    at = torch.searchsorted(have.contiguous(), want.contiguous()).clamp(max=have.shape[1] - 1)  # [B, P]
    return states.gather(1, at[..., None].expand(-1, -1, states.shape[2]))
