"""The one decoding loop: prefill, then propose → verify → accept → commit until every row has ended.

`model.generate(**inputs, custom_generate=Speculate(head))`. With an empty draft this is plain decoding.
Knows drafts, sampling, stopping and streams. Does not know pruning: a pruned cache reports its logical length.

Each step asks the device for its tokens once (processors and criteria that read ids may ask again). A row that has
ended is fed on beside the others and commits nothing. `generate` hands neither `streamer` nor `tokenizer` on, so both
are given here; a streamer receives the prompt, then the tokens column by column, [B] at a time, padded where a row has
ended.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Generator, LongTensor, Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmaccel.decoding.accept import accept
from mmaccel.decoding.laws import Laws
from mmaccel.decoding.sampling import Committed, Sampler
from mmaccel.decoding.stats import Stats
from mmaccel.decoding.stopping import Stopping
from mmaccel.decoding.verify import Verifier
from mmaccel.drafting.base import Draft, DraftHead, NoDraft, Target

MODES = ("greedy_search", "sample")
NOT_RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


class Speculate:
    """A callable for `generate(custom_generate=…)`; what the last call counted is in `stats`, the target's entropy per
    token of plain decoding in `laws`.

    stop_strings: the answer ends with the token that completes one of them (needs `tokenizer`).
    clock: takes the times of the stages "draft" and "verify" of a head that drafts (`with clock.stage(name)`).
    seed: every call draws from a generator started with it; None draws from torch's global one, as the library does.
    """

    def __init__(
        self,
        head: DraftHead | None = None,
        *,
        tokenizer: Any = None,
        streamer: Any = None,
        stop_strings: Sequence[str] = (),
        seed: int | None = None,
        clock: Any = None,
    ) -> None:
        self.stop_strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
        if self.stop_strings and tokenizer is None:
            raise ValueError(f"stop_strings: got {self.stop_strings} without tokenizer=, which reads them")
        if "" in self.stop_strings:
            raise ValueError("stop_strings: got an empty string, valid are strings of at least one character")
        self.head = NoDraft() if head is None else head
        self.tokenizer, self.streamer, self.seed = tokenizer, streamer, seed
        self.clock = clock if self.head.shape != "none" else None
        self.stats, self.laws = Stats(), Laws()

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        _refuse(model, generation_config, self.head)
        generator = None if self.seed is None else Generator(input_ids.device).manual_seed(self.seed)
        sampler = Sampler(logits_processor, bool(generation_config.do_sample), generator)
        committed = Committed(input_ids)
        stopping = Stopping(stopping_criteria, committed, self.tokenizer, self.stop_strings)
        target = Verifier(model, model_kwargs, committed.running, self.head)
        stream = Stream(self.streamer, committed, _pad(generation_config))
        self.stats, self.laws = Stats(finish=[None] * len(input_ids)), Laws()
        with model._optimize_model_for_decode():
            self._loop(target, sampler, stopping, stream, generation_config)
        sequences = committed.sequences(stream.pad)
        if not generation_config.return_dict_in_generate:
            return sequences
        answer: dict[str, Any] = {"sequences": sequences, target.cache_name: target.cache}
        return GenerateDecoderOnlyOutput(**answer)

    def _stage(self, name: str) -> Any:
        return nullcontext() if self.clock is None else self.clock.stage(name)

    def _loop(
        self,
        target: Verifier,
        sampler: Sampler,
        stopping: Stopping,
        stream: "Stream",
        generation_config: GenerationConfig,
    ) -> None:
        stats, head, committed = self.stats, self.head, stopping.committed
        plain = head.shape == "none"
        stream.prompt()
        began = time.perf_counter()
        logits = target.prefill(committed.prompt, generation_config)
        if plain:
            self.laws.keep(logits[:, 0], committed.running)
        draft = Draft.empty(target.rows, logits.device)
        path, token = accept(draft, logits, sampler, committed)
        _emit(draft, path, token, stopping, stats, first=True)
        stats.first_token_at = time.perf_counter()
        stats.prefill_ms = 1000 * (stats.first_token_at - began)
        stream.put()
        state = head.start(Target.of(target.model), target.rows)
        head.observe(state, target.prompt)
        look: float | None = None
        while any(committed.running):
            began = time.perf_counter()
            limit = max(stopping.room(row) for row, running in enumerate(committed.running) if running) - 1
            with self._stage("draft"):
                draft = head.propose(state, token, target.position, limit, sampler)
            with self._stage("verify"):
                logits = target.verify(token, draft)
            if plain:
                self.laws.keep(logits[:, 0], committed.running)
            path, token = accept(draft, logits, sampler, committed)
            kept = _emit(draft, path, token, stopping, stats)
            seen = target.commit(path, kept)
            head.observe(state, seen)
            if seen.looked is not None:
                look = _note(stats, look, seen.looked, kept)
            stats.step_ms.append(1000 * (time.perf_counter() - began))
            stream.put()
        stream.end()


def _emit(
    draft: Draft, path: Tensor, token: Tensor, stopping: Stopping, stats: Stats, *, first: bool = False
) -> list[int]:
    """Appends what each running row says now, marks rows that end, and returns how many tokens each row said.

    first: these are the prefill's tokens, which are no step.
    """
    said, offered, nodes = _to_host(draft, path, token)  # the step's one synchronisation
    kept, committed = [0] * len(said), stopping.committed
    for row, fresh in enumerate(said):
        if not committed.running[row]:
            continue
        room = stopping.room(row)
        tokens, finish = stopping.cut(row, fresh)
        committed.new[row] += tokens
        kept[row] = len(tokens)
        if not first:
            stats.count(len(tokens), min(len(fresh) - 1, len(tokens)), min(offered[row], room), nodes[row])
        if finish:
            committed.running[row], stats.finish[row] = False, finish
    return kept


def _note(stats: Stats, before: float | None, looked: Tensor, kept: list[int]) -> float:
    """A step's tokens beside the look it began with; returns the look that the next one begins with."""
    rows = [row for row, count in enumerate(kept) if count]
    stats.looked.append(before)
    stats.said.append(sum(kept) / len(rows))
    return float(looked[rows].mean())


class Stream:
    """Hands a streamer the prompt and then every emitted token, as the library does."""

    def __init__(self, streamer: Any, committed: Committed, pad: int) -> None:
        self.streamer, self.committed, self.pad, self.sent = streamer, committed, pad, 0

    def prompt(self) -> None:
        if self.streamer is not None:
            self.streamer.put(self.committed.prompt.cpu())

    def put(self) -> None:
        """Sends every column [B] that all running rows have reached."""
        if self.streamer is None:
            return
        new = self.committed.new
        reached = [len(tokens) for tokens, running in zip(new, self.committed.running) if running]
        ready = min(reached) if reached else max(map(len, new))
        for at in range(self.sent, ready):
            self.streamer.put(torch.tensor([tokens[at] if at < len(tokens) else self.pad for tokens in new]))
        self.sent = ready

    def end(self) -> None:
        if self.streamer is not None:
            self.streamer.end()


def _to_host(draft: Draft, path: Tensor, token: Tensor) -> tuple[list[list[int]], list[int], list[int]]:
    """Per row: the accepted tokens and the one that follows, the deepest level offered, the number of nodes."""
    if draft.size == 0:
        return [[one] for one in token.tolist()], [0] * len(token), [0] * len(token)
    tokens = draft.tokens.gather(1, path.clamp(min=0)).masked_fill(path < 0, -1)  # [B, t]
    facts = [draft.depth.amax(1, keepdim=True), draft.real.sum(1, keepdim=True), token[:, None]]
    table = torch.cat([*facts, tokens], 1).tolist()
    said = [[one for one in row[3:] if one >= 0] + [row[2]] for row in table]
    return said, [row[0] for row in table], [row[1] for row in table]


def _pad(generation_config: GenerationConfig) -> int:
    pad = generation_config._pad_token_tensor
    return 0 if pad is None else int(pad)


def _refuse(model: Any, config: GenerationConfig, head: DraftHead) -> None:
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams: got {config.num_beams}, valid with Speculate is 1 (beams are the library's own)")
    if config.get_generation_mode() not in MODES:
        raise ValueError(f"generation mode: got {config.get_generation_mode()}, valid with Speculate are {MODES}")
    if model.config.is_encoder_decoder:
        raise ValueError(f"{type(model).__name__}: is an encoder-decoder, valid with Speculate are decoder-only models")
    if config.use_cache is False:
        raise ValueError("use_cache: got False, valid with Speculate is True")
    if config.guidance_scale not in (None, 1) and head.shape != "none":
        got = config.guidance_scale
        raise ValueError(f"guidance_scale: got {got}, valid with a draft is 1 (guidance keeps a cache of its own)")
    asked = [name for name in NOT_RETURNED if getattr(config, name, False)]
    if config.return_dict_in_generate and asked:
        raise ValueError(f"got {asked} with return_dict_in_generate; Speculate returns sequences and the cache alone")
