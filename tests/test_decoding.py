"""The one loop against the library's own generate, and against itself with drafts of every kind."""

import inspect
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from mmaccel.attach import attach
from mmaccel.cache import cache_in, logical_length
from mmaccel.decoding.accept import accept
from mmaccel.decoding.diverge import Divergence, divergence
from mmaccel.decoding.sampling import Committed, Sampler
from mmaccel.decoding.speculate import Speculate
from mmaccel.decoding.verify import Verifier
from mmaccel.drafting.base import Draft, DraftHead, DraftState, NoDraft, Seen, Target
from tests import tiny as tiny_models
from tests.tiny import FAMILIES, RAGGED

NEW = 10


class Counted(DraftState):
    """How many new columns each row has; the prompt does not count."""

    def __init__(self, new: Tensor | None = None) -> None:
        self.new = new

    def fork(self) -> "Counted":
        return Counted(None if self.new is None else self.new.clone())

    def select(self, rows: Tensor) -> "Counted":
        return Counted(None if self.new is None else self.new[rows])


class Scripted(DraftHead):
    """Knows each row's true continuation and says what it is told to: write(row's truth from here, limit, dice)."""

    def __init__(self, truth: Tensor, write: Callable, shape: str = "tree", seed: int = 0) -> None:
        super().__init__()
        self.truth, self.write, self.shape, self.dice = truth.tolist(), write, shape, random.Random(seed)
        self.seen: list[Seen] = []

    def start(self, target: Target, rows: int) -> Counted:
        return Counted()

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Counted)
        self.seen.append(seen)
        if state.new is None:
            state.new = torch.zeros(len(seen.ids), dtype=torch.long)
        else:
            state.new += seen.ids.shape[1] if seen.valid is None else seen.valid.sum(1)

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Counted)
        assert state.new is not None
        trees = [
            self.write(truth[new + 1 :] + [0] * limit, limit, self.dice)
            for truth, new in zip(self.truth, state.new.tolist())
        ]
        size = max(len(tokens) for tokens, _ in trees)
        tokens = torch.tensor([tokens + [0] * (size - len(tokens)) for tokens, _ in trees], dtype=torch.long)
        parent = torch.tensor([parent + [-2] * (size - len(parent)) for _, parent in trees], dtype=torch.long)
        return Draft(tokens.view(len(trees), size), parent.view(len(trees), size))


def anything(truth: list[int], limit: int, dice: random.Random) -> tuple[list[int], list[int]]:
    """A random tree of 0 … 7 nodes, some on the right path, some twins, some wrong."""
    tokens: list[int] = []
    parents: list[int] = []
    depths = [0]
    right = {-1}
    for node in range(dice.randrange(8) if limit else 0):
        parent = dice.choice([at for at in range(-1, node) if depths[at + 1] < limit])
        depth = depths[parent + 1]
        tokens.append(truth[depth] if dice.random() < 0.6 else dice.randrange(3, 80))
        parents.append(parent)
        depths.append(depth + 1)
        if parent in right and tokens[-1] == truth[depth]:
            right.add(node)
    return tokens, parents


def right_chain(truth: list[int], limit: int, dice: random.Random) -> tuple[list[int], list[int]]:
    t = min(4, limit)
    return truth[:t], list(range(-1, t - 1))


def wrong_chain(truth: list[int], limit: int, dice: random.Random) -> tuple[list[int], list[int]]:
    t = min(4, limit)
    return [(token + 1) % 128 for token in truth[:t]], list(range(-1, t - 1))


def mixed_chain(truth: list[int], limit: int, dice: random.Random) -> tuple[list[int], list[int]]:
    t = min(dice.randrange(5), limit)
    return [token if dice.random() < 0.7 else 5 for token in truth[:t]], list(range(-1, t - 1))


WRITERS = {
    "anything": (anything, "tree"),
    "right": (right_chain, "tree"),
    "mixed": (mixed_chain, "chain"),
    "wrong": (wrong_chain, "chain"),
}


@cache
def model_of(family: str, attention: str = "sdpa") -> Any:
    return tiny_models.tiny(family, attention)


def generate(model: Any, inputs: dict, speculate: Any = None, **kwargs: Any) -> Any:
    kwargs = {"max_new_tokens": NEW, "do_sample": False, **kwargs}
    return model.generate(**inputs, custom_generate=speculate, **kwargs)


_known: dict[tuple, Tensor] = {}


def library(model: Any, inputs: dict, **kwargs: Any) -> Tensor:
    """What the library's own greedy generate returns, asked once."""
    key = (id(model), inputs["input_ids"].numpy().tobytes(), repr(sorted(kwargs.items())))
    if key not in _known:
        _known[key] = generate(model, inputs, **kwargs)
    return _known[key]


def new_tokens(model: Any, inputs: dict, speculate: Any = None, **kwargs: Any) -> Tensor:
    return generate(model, inputs, speculate, **kwargs)[:, inputs["input_ids"].shape[1] :]


def scripted(model: Any, inputs: dict, writer: str, seed: int = 0, **kwargs: Any) -> tuple[Speculate, Scripted]:
    write, shape = WRITERS[writer]
    truth = library(model, inputs, **{**kwargs, "max_new_tokens": NEW + 4})
    head = Scripted(truth[:, inputs["input_ids"].shape[1] :], write, shape, seed)
    return Speculate(head), head


# --- plain decoding is the library's ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_equals_the_library(family: str, attention: str, rows: list | None) -> None:
    model, inputs = model_of(family, attention), tiny_models.inputs(family, rows)
    speculate = Speculate()
    assert torch.equal(generate(model, inputs, speculate), library(model, inputs))
    stats = speculate.stats
    assert stats.finish == ["length"] * len(inputs["input_ids"])
    assert (stats.tau, stats.alpha, stats.nodes, stats.accepted) == (1.0, None, 0, 0)
    assert len(stats.step_ms) == NEW - 1
    assert stats.prefill_ms > 0
    assert stats.first_token_at > 0


OPTIONS: dict[str, dict[str, Any]] = {
    "one token": {"max_new_tokens": 1},
    "allowed": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(20 + row, 90 + len(ids) % 7))},
    "penalty": {"repetition_penalty": 1.6},
    "no repeat": {"no_repeat_ngram_size": 2},
    "several eos": {"eos_token_id": list(range(3, 40))},
    "min new": {"eos_token_id": list(range(3, 90)), "min_new_tokens": 5},
    "forced eos": {"forced_eos_token_id": 9},
    "max length": {"max_length": 60, "max_new_tokens": None},
    "chunked": {"prefill_chunk_size": 64},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
def test_options_equal_the_library(option: str, rows: list | None) -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava", rows)
    ours = generate(model, inputs, Speculate(), **OPTIONS[option])
    assert torch.equal(ours, library(model, inputs, **OPTIONS[option]))


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
def test_sampling_equals_the_library_from_the_same_seed(rows: list | None) -> None:
    model, inputs = model_of("qwen2_5_vl"), tiny_models.inputs("qwen2_5_vl", rows)
    warped = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "num_return_sequences": 2}
    torch.manual_seed(3)
    theirs = generate(model, inputs, **warped)
    torch.manual_seed(3)
    assert torch.equal(generate(model, inputs, Speculate(), **warped), theirs)


def test_a_seed_makes_every_call_the_same() -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    first, again, other = (generate(model, inputs, Speculate(seed=seed), do_sample=True) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_answer_as_a_dictionary_and_the_callers_own_cache() -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    own = DynamicCache(config=model.config.get_text_config())
    named = inspect.signature(model.prepare_inputs_for_generation).parameters
    name = "cache" if "cache" in named else "past_key_values"
    answer = generate(model, {**inputs, name: own}, Speculate(), return_dict_in_generate=True)
    assert torch.equal(answer.sequences, generate(model, inputs))
    assert cache_in(answer) is own
    assert logical_length(own) == answer.sequences.shape[1] - 1


@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
def test_the_entropy_of_every_plain_token_is_that_of_the_targets_law(rows: list | None) -> None:
    """Against one forward over prompt and answer; with a draft nothing is kept."""
    model, inputs = model_of("llava"), tiny_models.inputs("llava", rows)
    speculate = Speculate()
    said = generate(model, inputs, speculate)
    total, count = speculate.laws.entropy()
    prompt = inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(said[:, prompt:])], 1)
    with torch.no_grad():
        logits = model(**{**inputs, "input_ids": said, "attention_mask": mask}).logits
    law = logits[:, prompt - 1 : -1].double().softmax(-1)  # no row of the tiny model stops by itself
    assert count == said[:, prompt:].numel()
    assert total == pytest.approx(float(-(law * law.log()).sum()), rel=1e-4)
    speculate, _ = scripted(model, inputs, "right")
    generate(model, inputs, speculate)
    assert speculate.laws.entropy() == (0.0, 0)
    speculate.laws.room = 0
    speculate.laws.keep(logits[:, 0], [True] * len(logits))
    assert speculate.laws.kept == [], "no more than the room there is"


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_second_turn_on_the_same_cache(family: str) -> None:
    model, inputs = model_of(family), tiny_models.inputs(family)
    answers = []
    for make in (lambda: None, Speculate, lambda: scripted(model, inputs, "anything")[0]):
        first = generate(model, inputs, make(), return_dict_in_generate=True)
        ids = torch.cat([first.sequences, torch.tensor([[11, 12, 13]])], 1)
        second = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "mm_token_type_ids" in inputs:
            second["mm_token_type_ids"] = (ids == tiny_models.IMAGE).int()
        known = {"cache" if "cache" in first else "past_key_values": cache_in(first)}
        speculate = make() and Speculate()
        answers.append(model.generate(**second, **known, max_new_tokens=6, do_sample=False, custom_generate=speculate))
    assert torch.equal(answers[1], answers[0])
    assert torch.equal(answers[2], answers[0])


# --- drafts change nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attention", "writer"), [*(("sdpa", writer) for writer in WRITERS), ("eager", "anything"), ("eager", "mixed")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_change_nothing(family: str, attention: str, writer: str) -> None:
    model, inputs = model_of(family, attention), tiny_models.inputs(family)
    speculate, _ = scripted(model, inputs, writer)
    assert torch.equal(generate(model, inputs, speculate), library(model, inputs))


@pytest.mark.parametrize("writer", ["anything", "mixed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_batches_and_their_rows_alone(family: str, writer: str) -> None:
    """Rows accept different numbers, end at different steps, and each says what it says alone."""
    model, inputs = model_of(family), tiny_models.inputs(family, RAGGED)
    ends = {"eos_token_id": list(range(3, 14))}
    speculate, head = scripted(model, inputs, writer)
    batch = new_tokens(model, inputs, speculate, **ends)
    assert torch.equal(batch, library(model, inputs, **ends)[:, inputs["input_ids"].shape[1] :])
    assert any(seen.valid is not None and not seen.valid.all() for seen in head.seen[1:])
    for row in range(len(RAGGED)):
        alone = tiny_models.row_inputs(family, RAGGED, row)
        single = new_tokens(model, alone, scripted(model, alone, writer)[0], **ends)[0]
        assert torch.equal(batch[row, : len(single)], single), row
        assert (batch[row, len(single) :] == tiny_models.PAD).all()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
def test_options_with_drafts(option: str, rows: list | None) -> None:
    """The script knows the continuation without options, so it is often wrong, also beyond an end."""
    model, inputs = model_of("llava"), tiny_models.inputs("llava", rows)
    speculate, _ = scripted(model, inputs, "anything", seed=1)
    ours = generate(model, inputs, speculate, **OPTIONS[option])
    assert torch.equal(ours, library(model, inputs, **OPTIONS[option]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_node_gets_the_logits_of_decoding_its_path(family: str, attention: str) -> None:
    """All paths, not only the accepted one: what a lenient draft would hide."""
    model, inputs = model_of(family, attention), tiny_models.inputs(family, RAGGED)
    draft = Draft(
        torch.tensor([[5, 6, 7, 8, 9, 10]] * 3), torch.tensor([[-1, -1, 0, 2, 1, 2], [-1, 0, 1, 2, -2, -2], [-1] * 6])
    )
    tree = logits_after(model, inputs, draft, "tree")  # [B, 1+t, V]
    for row in range(3):
        for node in range(draft.size):
            if draft.parent[row, node] < -1:
                continue
            path, at = [], node
            while at >= 0:
                path.insert(0, at)
                at = int(draft.parent[row, at])
            line = draft.tokens[row, path].expand(3, -1)
            expected = logits_after(model, inputs, Draft.chain(line), "chain")[row, -1]
            assert (tree[row, node + 1] - expected).abs().max() < 2e-5, (row, node)


def logits_after(model: Any, inputs: dict, draft: Draft, shape: str) -> Tensor:
    """One verify forward, through the library's own generate."""
    found = []

    def look(model: Any, input_ids: Tensor, generation_config: Any, **kwargs: Any) -> Tensor:
        kwargs = {k: v for k, v in kwargs.items() if k not in ("logits_processor", "stopping_criteria")}
        target = Verifier(model, kwargs, [True] * len(input_ids), Scripted(torch.zeros(1, 1), right_chain, shape))
        target.prefill(input_ids, generation_config)
        found.append(target.verify(torch.full((len(input_ids),), 4), draft))
        return input_ids

    generate(model, inputs, look)
    return found[0]


@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_the_cache_after_commits_is_that_of_a_fresh_prefill(family: str) -> None:
    model, inputs = model_of(family), tiny_models.inputs(family)
    answer = generate(model, inputs, scripted(model, inputs, "anything", seed=2)[0], return_dict_in_generate=True)
    plain = generate(model, inputs, return_dict_in_generate=True)
    for ours, theirs in zip(cache_in(answer).layers, cache_in(plain).layers):
        assert ours.keys.shape == theirs.keys.shape
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_rope_deltas_are_never_read_after_the_prefill(family: str) -> None:
    """Another conversation on the same model would overwrite them."""
    model, inputs = model_of(family), tiny_models.inputs(family, RAGGED)
    expected = generate(model, inputs)

    class Vandal(Scripted):
        def propose(self, *args: Any) -> Draft:
            model.model.rope_deltas = torch.full((1, 1), 1000)
            return super().propose(*args)

    truth = expected[:, inputs["input_ids"].shape[1] :]
    assert torch.equal(generate(model, inputs, Speculate(Vandal(truth, anything))), expected)


def test_sampling_with_drafts_keeps_the_law() -> None:
    """Three sampled tokens of 2000 rows, drafted from one greedy line, against the exact joint law."""
    model = model_of("llava")
    prompt = torch.tensor([[5, 17, 33, 40]])
    warped = {"do_sample": True, "top_k": 3, "temperature": 1.3, "max_new_tokens": 3}
    rows = 2000
    truth = generate(model, {"input_ids": prompt})[:, 4:].expand(rows, -1)
    speculate = Speculate(Scripted(truth, anything), seed=9)
    inputs = {"input_ids": prompt.expand(rows, -1), "attention_mask": torch.ones(rows, 4, dtype=torch.long)}
    drawn = new_tokens(model, inputs, speculate, **warped)
    assert 0 < speculate.stats.accepted < speculate.stats.nodes
    law = exact_law(model, prompt, depth=3, k=3, temperature=1.3)
    observed: dict[tuple, int] = dict.fromkeys(law, 0)
    for line in map(tuple, drawn.tolist()):
        observed[line] += 1  # a KeyError is a line that may not occur
    statistic = sum((observed[line] - rows * p) ** 2 / (rows * p) for line, p in law.items())
    assert statistic < 26 + 5 * (2 * 26) ** 0.5, statistic


def exact_law(model: Any, prompt: Tensor, depth: int, k: int, temperature: float) -> dict[tuple, float]:
    law: dict[tuple, float] = {(): 1.0}
    for _ in range(depth):
        grown = {}
        for line, mass in law.items():
            ids = torch.cat([prompt, torch.tensor([line], dtype=torch.long)], 1)
            with torch.no_grad():
                best = (model(input_ids=ids).logits[0, -1] / temperature).topk(k)
            for token, p in zip(best.indices.tolist(), best.values.softmax(-1).tolist()):
                grown[(*line, token)] = mass * p
        law = grown
    return law


# --- counting --------------------------------------------------------------------------------------------------------


def test_a_right_draft_is_accepted_whole_and_a_wrong_one_not_at_all() -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    right, _ = scripted(model, inputs, "right")
    generate(model, inputs, right)  # 10 tokens: prefill 1, then 5 + 4
    stats = right.stats
    assert (stats.steps, stats.emitted, stats.accepted, stats.drafted) == (2, 9, 7, 7)
    assert stats.accepted_by_depth == [2, 2, 2, 1]
    assert stats.alpha == 1.0
    assert stats.tau == 4.5
    wrong, _ = scripted(model, inputs, "wrong")
    generate(model, inputs, wrong)
    assert (wrong.stats.steps, wrong.stats.tau, wrong.stats.alpha) == (9, 1.0, 0.0)
    assert wrong.stats.accepted_by_depth == [0, 0, 0, 0]


def test_an_accepted_stop_token_ends_the_count() -> None:
    """The stop is the 2nd of 4 accepted tokens: the bonus is dropped, two count as accepted, the cache follows."""
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    truth = library(model, inputs)[0, inputs["input_ids"].shape[1] :].tolist()
    stop = truth[2]
    assert stop not in truth[:2]
    right, _ = scripted(model, inputs, "right")
    answer = generate(model, inputs, right, eos_token_id=[stop, 127], return_dict_in_generate=True)
    assert answer.sequences[0, inputs["input_ids"].shape[1] :].tolist() == truth[:3]
    assert (right.stats.steps, right.stats.emitted, right.stats.accepted) == (1, 2, 2)
    assert right.stats.finish == ["stop"]
    assert logical_length(cache_in(answer)) == answer.sequences.shape[1] - 1


def test_a_drafted_stop_token_that_is_refused_stops_nothing() -> None:
    """The draft says the end at every step, the target does not."""
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    truth = new_tokens(model, inputs)
    stop = next(token for token in range(3, 80) if token not in truth)
    head = Scripted(truth, lambda row, limit, dice: ([row[0], stop][:limit], [-1, 0][:limit]), "chain")
    assert torch.equal(new_tokens(model, inputs, Speculate(head), eos_token_id=stop), truth)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7])
def test_exactly_max_new_tokens(count: int) -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    for speculate in (Speculate(), scripted(model, inputs, "right")[0]):
        assert new_tokens(model, inputs, speculate, max_new_tokens=count).shape[1] == count
        assert speculate.stats.emitted == count - 1
        assert speculate.stats.finish == ["length"]


# --- ends and streams ------------------------------------------------------------------------------------------------


class Letters:
    """Token n is the n-th letter: a tokenizer as far as stopping needs one."""

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        return "".join(chr(0x100 + token) for token in ids)


@pytest.mark.parametrize("writer", [None, "right", "anything"])
def test_a_stop_string_ends_with_the_token_that_completes_it(writer: str | None) -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    truth = library(model, inputs)[0, inputs["input_ids"].shape[1] :].tolist()
    text = Letters().decode(truth)
    head = scripted(model, inputs, writer)[1] if writer else NoDraft()
    speculate = Speculate(head, tokenizer=Letters(), stop_strings=["never", text[2:5]])
    assert new_tokens(model, inputs, speculate)[0].tolist() == truth[:5]
    assert speculate.stats.finish == ["stop_string"]


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    prompt = Letters().decode(inputs["input_ids"][0].tolist())
    first = Letters().decode(new_tokens(model, inputs)[0].tolist())[0]
    speculate = Speculate(tokenizer=Letters(), stop_strings=[prompt[:2], prompt[-1] + first])
    assert new_tokens(model, inputs, speculate).shape[1] == NEW


def words() -> Any:
    """A real tokenizer over the tiny vocabulary: short pieces with spaces, in random order."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    letters = list("abcdefghijklm \n.")
    pairs = [(a, b) for a in letters for b in letters][: 128 - len(letters)]
    pieces = [*letters, *(a + b for a, b in pairs)]
    random.Random(0).shuffle(pieces)
    backend = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, pairs))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("writer", [None, "right"])
def test_stop_strings_equal_the_library(writer: str | None) -> None:
    """Every substring of the answer of up to five letters, beginning and ending inside tokens."""
    model, inputs, tokenizer = model_of("llava"), tiny_models.inputs("llava"), words()
    plain = new_tokens(model, inputs)[0].tolist()
    text = tokenizer.decode(plain)
    for start in range(0, len(text) - 5, 3):
        stop = text[start : start + 2 + start % 4]
        head = scripted(model, inputs, writer)[1] if writer else None
        ours = new_tokens(model, inputs, Speculate(head, tokenizer=tokenizer, stop_strings=[stop]))
        theirs = new_tokens(model, inputs, stop_strings=[stop], tokenizer=tokenizer)
        assert torch.equal(ours, theirs), repr(stop)


class Third(StoppingCriteria):
    """Ends a row whose own ids hold `token`, whatever the other rows do."""

    def __init__(self, token: int, start: int) -> None:
        self.token, self.start = token, start

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return (input_ids[:, self.start :] == self.token).any(1)


def test_other_criteria_are_asked_after_every_token() -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    truth = library(model, inputs)[0, inputs["input_ids"].shape[1] :].tolist()
    own = StoppingCriteriaList([Third(truth[3], inputs["input_ids"].shape[1])])
    speculate = scripted(model, inputs, "right")[0]
    assert new_tokens(model, inputs, speculate, stopping_criteria=own)[0].tolist() == truth[: truth.index(truth[3]) + 1]
    assert speculate.stats.finish == ["stop"]
    speculate = Speculate()
    generate(model, inputs, speculate, max_time=0.0)
    assert speculate.stats.finish == ["length"]
    assert speculate.stats.steps == 0


class Tape(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def put(self, value: Tensor) -> None:
        assert value.device.type == "cpu"
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")


@pytest.mark.parametrize("writer", [None, "anything"])
@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
def test_a_streamer_hears_what_the_library_would_tell_it(rows: list | None, writer: str | None) -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava", rows)
    ends = {"eos_token_id": list(range(3, 14))}
    ours, theirs = Tape(), Tape()
    head = scripted(model, inputs, writer)[1] if writer else None
    generate(model, inputs, Speculate(head, streamer=ours), **ends)
    generate(model, inputs, streamer=theirs, **ends)
    assert ours.heard == theirs.heard


# --- refusals --------------------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "guidance": ({"guidance_scale": 2.0}, "guidance_scale: got 2.0"),
    "beams": ({"num_beams": 3}, "num_beams: got 3"),
    "no cache": ({"use_cache": False}, "use_cache: got False"),
    "prompt lookup": ({"prompt_lookup_num_tokens": 3}, "generation mode: got"),
    "scores": ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    kwargs, message = REFUSED[case]
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    with pytest.raises(ValueError, match=message):
        generate(model, inputs, scripted(model, inputs, "right")[0], **kwargs)


def test_stop_strings_need_a_tokenizer_and_letters() -> None:
    with pytest.raises(ValueError, match="without tokenizer="):
        Speculate(stop_strings=["\n"])
    with pytest.raises(ValueError, match="empty string"):
        Speculate(tokenizer=Letters(), stop_strings=[""])


def test_a_static_cache_decodes_plainly_and_refuses_drafts() -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    static = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(generate(model, inputs, Speculate(), **static), generate(model, inputs))
    with pytest.raises(ValueError, match="layer 0 is a StaticLayer"):
        generate(model, inputs, scripted(model, inputs, "right")[0], **static)


def test_trees_need_a_mask_that_the_backend_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    speculate = scripted(model, inputs, "anything")[0]
    monkeypatch.setattr(model.config.text_config, "_attn_implementation", "flash_attention_2")
    with pytest.raises(ValueError, match="valid are sdpa and eager"):
        Verifier(model, {"position_ids": inputs["input_ids"]}, [True], speculate.head)


def test_a_draft_never_passes_the_limit_it_was_given() -> None:
    """A head that ignores `limit` may offer too much; the row still ends exactly."""
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    truth = new_tokens(model, inputs, max_new_tokens=NEW + 8)
    greedy_head = Scripted(truth, lambda line, limit, dice: (line[:4], [-1, 0, 1, 2]))
    assert new_tokens(model, inputs, Speculate(greedy_head)).tolist() == truth[:, :NEW].tolist()


def test_accept_is_where_the_loop_decides() -> None:
    """The loop's plain step and accept on an empty draft are one and the same."""
    logits = torch.randn(2, 1, 7)
    path, token = accept(Draft.empty(2), logits, Sampler(), Committed(torch.zeros(2, 1, dtype=torch.long)))
    assert path.shape == (2, 0)
    assert torch.equal(token, logits[:, 0].argmax(-1))


# --- on a pruned target ----------------------------------------------------------------------------------------------


def every_other(station: Any) -> Tensor:
    """Keeps every second visual token: rows keep different numbers."""
    return ~station.visual | (station.grid[..., 4] % 2 == 0)


@pytest.mark.parametrize("writer", [None, "anything", "mixed"])
@pytest.mark.parametrize("rows", [None, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_lossless_with_respect_to_the_pruned_target(family: str, rows: list | None, writer: str | None) -> None:
    model, inputs = model_of(family), tiny_models.inputs(family, rows)
    full = library(model, inputs)
    with attach(model, every_other, layer=2):
        pruned = generate(model, inputs)
        truth = pruned[:, inputs["input_ids"].shape[1] :]
        head = Scripted(truth, *WRITERS[writer]) if writer else NoDraft()
        assert torch.equal(generate(model, inputs, Speculate(head)), pruned)
    assert not torch.equal(pruned, full)
    assert torch.equal(generate(model, inputs, Speculate()), full)


def test_answers_part_where_the_target_had_no_choice_or_a_tie() -> None:
    """The gap is that of the target's own logits at the place; a rounding apart is a tie, half a unit is not."""
    model, inputs = model_of("llava"), tiny_models.inputs("llava")
    truth = new_tokens(model, inputs)[0].tolist()
    assert divergence(model, inputs, truth, truth[:4]) is None
    other = list(truth)
    other[3] = (truth[3] + 1) % 128
    found = divergence(model, inputs, truth, other)
    assert found is not None
    ids = torch.cat([inputs["input_ids"], torch.tensor([truth[:3]])], 1)
    with torch.no_grad():
        logits = model(**{**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}).logits[0, -1]
    assert found.place == 3
    assert found.gap == pytest.approx(float(logits[truth[3]] - logits[other[3]]), rel=1e-4)
    assert not found.tie()
    assert Divergence(0, 0.0, 2**-8).tie()
    assert Divergence(0, 2**-6, 2**-8).tie()
    assert not Divergence(0, 0.5, 2**-8).tie()
