"""How the target's logits become tokens: the library's own processors, each row and node on its own ids, then one draw.

Knows ids, logits and drafts. Does not know models, caches or when to stop.
Processors are taken as functions of (ids, logits). As in the library, a row's ids hold its left padding.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as library

from mmaccel.drafting.base import Draft

# These read the logits alone, so that all nodes of all rows go through them in one call.
IGNORES_IDS = tuple(
    getattr(library, name)
    for name in (
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TopHLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "SuppressTokensLogitsProcessor",
        "LogitNormalization",
        "InfNanRemoveLogitsProcessor",
    )
    if hasattr(library, name)
)


def generate_options(sampler: Mapping[str, Any]) -> dict[str, Any]:
    """What `generate` is given for a sampler's yaml. null means no cut; left out, the library would cut to its own or
    the checkpoint's."""
    given = {key: value for key, value in sampler.items() if value is not None}
    return {"top_k": 0, "top_p": 1.0, "temperature": 1.0} | given if given.get("do_sample") else given


class Committed:
    """Each row's own ids: the prompt [B, N] and what was emitted since. The host's lists lead, the device follows."""

    def __init__(self, prompt: Tensor) -> None:
        self.prompt = prompt
        self.new: list[list[int]] = [[] for _ in range(len(prompt))]
        self.running = [True] * len(prompt)
        self._copy = prompt  # [B, ≥ N + longest new]
        self._copied = [0] * len(prompt)

    def length(self, row: int) -> int:
        return self.prompt.shape[1] + len(self.new[row])

    def row(self, row: int) -> Tensor:
        """[n] the ids of that row."""
        self._follow()
        return self._copy[row, : self.length(row)]

    def sequences(self, pad: int) -> Tensor:
        """[B, N + longest new], shorter rows padded on the right."""
        longest = max(map(len, self.new))
        new = [tokens + [pad] * (longest - len(tokens)) for tokens in self.new]
        return torch.cat([self.prompt, torch.tensor(new, dtype=torch.long).to(self.prompt.device)], 1)

    def _follow(self) -> None:
        fresh = [
            (row, self.prompt.shape[1] + at, tokens[at])
            for row, tokens in enumerate(self.new)
            for at in range(self._copied[row], len(tokens))
        ]
        if not fresh:
            return
        short = max(map(self.length, range(len(self.new)))) - self._copy.shape[1]
        if short > 0:
            self._copy = torch.cat([self._copy, self._copy.new_zeros(len(self.new), max(short, 256))], 1)
        row, column, token = torch.tensor(fresh, dtype=torch.long).to(self._copy.device).unbind(1)
        self._copy[row, column] = token
        self._copied = [len(tokens) for tokens in self.new]


@dataclass(frozen=True)
class Sampler:
    """Draws from processed logits. generator None = torch's global one, as the library draws."""

    processors: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    do_sample: bool = False
    generator: torch.Generator | None = None

    def scores(self, logits: Tensor, draft: Draft, prefix: Committed) -> Tensor:
        """[B, 1+t, V] every node's logits, processed with the ids that lead to that node."""
        if not self.processors:
            return logits
        if all(isinstance(processor, IGNORES_IDS) for processor in self.processors):
            flat = logits.flatten(0, 1)
            return self._process(prefix.prompt.new_empty(len(flat), 0), flat).view_as(logits)
        scores = logits.clone()
        for (length, _), nodes in _calls(draft, prefix).items():
            ids = prefix.prompt.new_zeros(len(logits), length)  # [B, n] a row without such a node is not read
            for row, (_, path) in nodes.items():
                ids[row] = torch.cat([prefix.row(row), ids.new_tensor(path)]) if path else prefix.row(row)
            at = [nodes[row][0] if row in nodes else 0 for row in range(len(logits))]
            processed = self._process(ids, logits[range(len(logits)), at])  # [B, V]
            rows = list(nodes)
            scores[rows, [at[row] for row in rows]] = processed[rows]
        return scores

    def _process(self, ids: Any, logits: Any) -> Tensor:
        return self.processors(ids, logits)  # ids [B, n], logits [B, V]

    def probabilities(self, scores: Tensor) -> Tensor:
        """[…, V] the law tokens are drawn from; temperature 0 puts everything on the best."""
        if self.do_sample:
            return scores.softmax(-1)
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)

    def draw(self, scores: Tensor) -> Tensor:
        """[…] one token of each row of scores […, V]."""
        if not self.do_sample:
            return scores.argmax(-1)
        return self.pick(scores.softmax(-1))

    def pick(self, probabilities: Tensor) -> Tensor:
        """[…] one token of each law […, V]."""
        flat = probabilities.flatten(0, -2)
        return torch.multinomial(flat, 1, generator=self.generator).view(probabilities.shape[:-1])

    def uniform(self, shape: Sequence[int], device: torch.device) -> Tensor:
        return torch.rand(tuple(shape), generator=self.generator, device=device)


def _calls(draft: Draft, prefix: Committed) -> dict[tuple[int, int], dict[int, tuple[int, list[int]]]]:
    """(length of the ids, turn) → row → (node, tokens below the committed ones), for the rows still running.

    Processors may hold something per row of the batch, so each call carries one node of every row, in the batch's
    order. This asks the host for the draft: one more synchronisation.
    """
    calls: dict[tuple[int, int], dict[int, tuple[int, list[int]]]] = defaultdict(dict)
    tokens, parents = draft.tokens.tolist(), draft.parent.tolist()
    for row in (row for row, running in enumerate(prefix.running) if running):
        paths: list[list[int]] = [[]]
        turns: dict[int, int] = defaultdict(int)
        for token, parent in zip(tokens[row], parents[row]):
            paths.append([*paths[max(parent, -1) + 1], token])
        for node, path in enumerate(paths):
            length = prefix.length(row) + len(path)
            calls[length, turns[length]][row] = (node, path)
            turns[length] += 1
    return calls
