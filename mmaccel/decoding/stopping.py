"""When a row ends, and after which token exactly.

Knows ids, text and the library's stopping criteria. Does not know models, caches or drafts.

The rule: a row ends with the first token that completes a stop: an end-of-sequence id, a stop string in the decoded new
text, the last allowed position, or any other criterion handed to `generate`. That token is emitted whole, once, even
where the stop string ends inside it, as in the library; accepted tokens behind it are dropped. A stop string that is
only in the prompt, or begins there, does not count. `Stopping` never trims text: whoever shows it does.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import MaxLengthCriteria, MaxTimeCriteria, StoppingCriteriaList

from mmaccel.decoding.sampling import Committed


class Stopping:
    def __init__(
        self,
        criteria: StoppingCriteriaList,
        committed: Committed,
        tokenizer: Any = None,
        stop_strings: Sequence[str] = (),
    ) -> None:
        if criteria.max_length is None:
            raise ValueError("max_new_tokens: got no limit at all, valid is max_new_tokens or max_length")
        self.max_length: int = criteria.max_length
        self.committed, self.tokenizer, self.stop_strings = committed, tokenizer, tuple(stop_strings)
        self.eos = {token for criterion in criteria for token in _eos(criterion)}
        self.others = [c for c in criteria if not isinstance(c, MaxLengthCriteria) and not hasattr(c, "eos_token_id")]
        # A match spans at most as many tokens as the string has bytes.
        self._window = max((len(text.encode()) for text in self.stop_strings), default=0)

    def room(self, row: int) -> int:
        return self.max_length - self.committed.length(row)

    def cut(self, row: int, fresh: list[int]) -> tuple[list[int], str | None]:
        """What of the row's fresh tokens is emitted, and why it ends there: "stop", "stop_string", "length" or None."""
        room = self.room(row)
        tokens, finish = fresh[:room], "length" if len(fresh) >= room else None
        for name, end in (("stop", self._at_eos(tokens)), ("stop_string", self._at_text(row, tokens))):
            if end is not None and (end < len(tokens) or finish in (None, "length")):
                tokens, finish = tokens[:end], name
        for criterion in self.others:
            end = self._at_criterion(criterion, row, tokens)
            if end is not None and (end < len(tokens) or finish is None):
                tokens, finish = tokens[:end], "length" if isinstance(criterion, MaxTimeCriteria) else "stop"
        return tokens, finish

    def _at_eos(self, tokens: list[int]) -> int | None:
        return next((at + 1 for at, token in enumerate(tokens) if token in self.eos), None)

    def _at_text(self, row: int, tokens: list[int]) -> int | None:
        if not self.stop_strings:
            return None
        before = self.committed.new[row][-self._window :]
        for end in range(1, len(tokens) + 1):
            text = self.tokenizer.decode(
                before + tokens[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            if any(stop in text for stop in self.stop_strings):
                return end
        return None

    def _at_criterion(self, criterion: Any, row: int, tokens: list[int]) -> int | None:
        before = self.committed.row(row)  # [n]
        ids = torch.cat([before, before.new_tensor(tokens)])[None]
        lengths = range(len(before) + 1, ids.shape[1] + 1)
        return next((n - len(before) for n in lengths if bool(criterion(ids[:, :n], None).any())), None)


def _eos(criterion: Any) -> list[int]:
    ids = getattr(criterion, "eos_token_id", None)
    if ids is None:
        return []
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    return list(ids) if isinstance(ids, list) else [ids]
