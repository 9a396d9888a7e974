"""Holds our drafts, acceptance and tokens against the public EAGLE code, on the same random weights.

    git clone https://github.com/SafeAILab/EAGLE DIR
    python scripts/parity_reference.py --clone DIR

The reference is imported from its checkout and run whole: its own Llama as the target, its own draft layer, its own
loop. It is asked for text, one row and temperature 0, which is all that both sides can be held to. What is compared:

folder   a head as `save_head` writes it, read by the reference: every tensor arrives, and the embedding is the target's
tree     at every step of the reference's run, the draft that both propose from the hidden states that it had
accept   the accepted path and the token after it, on the reference's logits and tree; `posed`: on logits bent so that
         the target follows the tree down to a random node, for lengths that a run seldom shows
tokens   whole generations, each side with its own target: the reference, ours, and the library's plain greedy search
steps    the tokens of every one of those steps, whose mean is tau
control  ours with one level less must not propose the same trees: else the comparison sees nothing

The reference's (depth, top_k, total_token) are our levels = depth + 1, for it grows `depth` times below a first level,
beam = top_k and nodes = total_token − 1, for it counts the root. Heads are trained for a moment on the target's own
greedy text, or no draft would be accepted.
"""

import argparse
import json
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

from mmaccel.decoding.accept import accept  # noqa: E402
from mmaccel.decoding.sampling import Committed, Sampler  # noqa: E402
from mmaccel.decoding.speculate import Speculate  # noqa: E402
from mmaccel.drafting.base import Draft, Seen, Target  # noqa: E402
from mmaccel.drafting.eagle import Eagle  # noqa: E402
from mmaccel.drafting.eagle3 import Eagle3, default_taps  # noqa: E402
from mmaccel.training.formats import load_head, save_head, sizes_of  # noqa: E402

Head = Eagle | Eagle3
Setting = tuple[int, int, int]  # the reference's depth, top_k, total_token
SETTINGS: tuple[Setting, ...] = ((7, 10, 60), (5, 8, 30), (3, 4, 16), (2, 12, 100), (4, 1, 6), (0, 6, 6))
THETA, VOCABULARY, SPOKEN = 5000.0, 128, 96  # SPOKEN: of the EAGLE-3 head that has a vocabulary of its own
ASKED = 12  # tokens of a prompt
SURE = 6.0  # times the output weights: of flat laws a draft would be all breadth and no depth
ENOUGH = 1.2  # tau below which a generation says nothing about acceptance


# -- the two sides --


def tiny_target(seed: int) -> LlamaForCausalLM:
    """Eight layers: with fewer than seven the reference's three taps are not three different layers."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, initializer_range=0.12,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.lm_head.weight.data *= SURE
    return model


def new_heads(model: LlamaForCausalLM) -> dict[str, Head]:
    sizes, taps = sizes_of(model.config), default_taps(model.config.num_hidden_layers)
    wide = replace(sizes, read=2 * sizes.width)
    own = Eagle3(wide, taps=taps, vocabulary=SPOKEN, target_vocabulary=VOCABULARY)
    own.speak(torch.randperm(VOCABULARY)[:SPOKEN].sort().values)
    return {
        "eagle": Eagle(sizes),
        "eagle biased": Eagle(replace(sizes, qkv_bias=True), fc_bias=True),
        "eagle3": Eagle3(wide, taps=taps, vocabulary=VOCABULARY, target_vocabulary=VOCABULARY),
        "eagle3 own words": own,
    }


def train(heads: dict[str, Head], model: LlamaForCausalLM, ids: Tensor, asked: int, steps: int) -> None:
    """ids: [n, m] prompts of `asked` tokens and the target's greedy text behind them, to be known by heart."""
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    answer = torch.arange(ids.shape[1]).expand_as(ids) >= asked
    position, target = torch.arange(ids.shape[1]).expand_as(ids), Target.of(model)
    for head in heads.values():
        more = {"ce": 1.0, "steps": 2} if isinstance(head, Eagle) else {"steps": 4}
        optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3)
        for step in range(steps):
            rows = torch.arange(8 * step, 8 * step + 8) % len(ids)
            taps = tuple(states[tap][rows] for tap in head.taps)
            seen = Seen(ids[rows], position[rows], hidden=states[-1][rows], taps=taps)
            optimizer.zero_grad()
            head.loss(seen, answer[rows], target, **more).total.backward()
            optimizer.step()
        head.eval().requires_grad_(False)


@dataclass(frozen=True)
class Proposal:
    """hidden: [1, m, D or 3·D] of the columns that are new.  ids: [1, n + 1], the last without a column yet.
    draft, retrieve: what came of it, the latter [leaves, levels + 1] with −1 behind a short path."""

    hidden: Tensor
    ids: Tensor
    draft: Draft
    retrieve: Tensor


@dataclass(frozen=True)
class Verdict:
    """logits: [leaves, levels + 1, V].  candidates: tokens [leaves, levels + 1].  tokens: the accepted path's.
    after: the token that follows."""

    logits: Tensor
    candidates: Tensor
    tokens: list[int]
    after: int

    @classmethod
    def of(cls, logits: Tensor, candidates: Tensor, answer: tuple[Tensor, Tensor, Tensor]) -> "Verdict":
        best, length, law = answer
        path = candidates[int(best), 1 : 1 + int(length)].tolist()
        return cls(logits, candidates, path, int(law.argmax()))


@dataclass
class Trace:
    """Of one generation of the reference; proposals[i] is what verdicts[i] is about."""

    ids: Tensor = field(default_factory=lambda: torch.empty(1, 0))
    proposals: list[Proposal] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


class Reference:
    """The public code from a checkout."""

    def __init__(self, clone: Path) -> None:
        if not (clone / "eagle" / "model" / "ea_model.py").is_file():
            raise FileNotFoundError(f"--clone: {clone} has no eagle/model/ea_model.py, valid is a checkout of EAGLE")
        sys.path.insert(0, str(clone.resolve()))
        for family, name in (("mixtral", "Mixtral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3")):
            module = types.ModuleType(f"eagle.model.modeling_{family}_kv")  # imports what the library has dropped
            setattr(module, f"{name}ForCausalLM", object)
            sys.modules[module.__name__] = module
        from eagle.model import ea_model  # type: ignore[import-not-found]

        self.module: Any = ea_model
        ea_model.AutoTokenizer = NoTokenizer  # the loop only asks which token ends the text: none does
        self.config = with_theta(ea_model.EConfig)

    def target(self, model: LlamaForCausalLM) -> Any:
        """Its own Llama with those weights."""
        own = self.module.KVLlamaForCausalLM(self.config(**model.config.to_dict()))
        missing, unknown = own.load_state_dict(model.state_dict(), strict=False)
        if unknown or not all(name.endswith("inv_freq") for name in missing):  # a buffer that it has made itself
            raise ValueError(f"reference: its Llama has no place for {unknown} and finds no {missing}")
        return own.eval()

    def model(self, target: Any, folder: Path, head: Path, setting: Setting) -> Any:
        """folder: of the target, which the embedding is read from.  head: of the head."""
        depth, top_k, total = setting
        tensors, config = load_file(head / "model.safetensors"), str(head / "config.json")
        three = "lm_head.weight" in tensors
        return self.module.EaModel(three, target, str(folder), config, total, depth, top_k, 1.0, tensors).eval()

    def generate(self, model: Any, ids: Tensor, tokens: int) -> Trace:
        """More than `tokens` tokens: it looks at their number after a step."""
        trace = Trace()
        draft, judge = model.ea_layer.topK_genrate, self.module.evaluate_posterior

        def drafted(hidden_states: Tensor, input_ids: Tensor, head: Any, logits_processor: Any) -> Any:
            out = draft(hidden_states, input_ids, head, logits_processor)
            trace.proposals.append(Proposal(hidden_states, input_ids, as_draft(out[0], out[1]), out[1]))
            return out

        def judged(logits: Tensor, candidates: Tensor, logits_processor: Any) -> Any:
            out = judge(logits, candidates, logits_processor)
            trace.verdicts.append(Verdict.of(logits, candidates, out))
            return out

        with (
            mock.patch.object(model.ea_layer, "topK_genrate", drafted),
            mock.patch.object(self.module, "evaluate_posterior", judged),
        ):
            trace.ids = model.eagenerate(ids, temperature=0.0, max_new_tokens=tokens)
        return trace

    def judge(self, logits: Tensor, candidates: Tensor) -> Verdict:
        return Verdict.of(logits, candidates, self.module.evaluate_posterior(logits, candidates, None))


class NoTokenizer:
    eos_token_id = -1

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> "NoTokenizer":
        return cls()


def with_theta(config: Any) -> Any:
    """The library now keeps the rotation under `rope_parameters`; the reference asks for it where it was."""

    def theta(self: Any) -> float:
        return self.__dict__["theta"] if "theta" in self.__dict__ else self.rope_parameters["rope_theta"]

    def keep(self: Any, value: float) -> None:
        self.__dict__["theta"] = value

    config.rope_theta = property(theta, keep)
    config.rope_scaling = property(lambda self: None, lambda self, value: None)
    return config


def as_draft(tokens: Tensor, retrieve: Tensor) -> Draft:
    """tokens: [1, 1 + t], the root first.  retrieve: [leaves, levels + 1] places in it, −1 behind a short path."""
    parent = torch.full_like(tokens, -1)
    for path in retrieve.tolist():
        for above, node in pairwise(path):
            if node > 0:
                parent[0, node] = above - 1
    return Draft(tokens[:, 1:], parent[:, 1:])


def seen_by(head: Head, proposal: Proposal) -> Seen:
    """The columns that are new to the head, from the hidden states that the reference's had."""
    new, n = proposal.hidden.shape[1], proposal.ids.shape[1] - 1
    seen = Seen(proposal.ids[:, n - new : n], torch.arange(n - new, n)[None])
    if isinstance(head, Eagle3):
        return replace(seen, taps=proposal.hidden.chunk(len(head.taps), -1))
    return replace(seen, hidden=proposal.hidden)


def greedy(model: LlamaForCausalLM, ids: Tensor, tokens: int, **more: Any) -> Tensor:
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, pad_token_id=0, **more)


# -- comparisons: each yields, case by case, (what the reference says, what ours says) --

Pairs = Iterator[tuple[Any, Any]]


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Sorted: from the root to every node, the tokens."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens[0].tolist(), draft.parent[0].tolist()):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return sorted(found)


def trees(head: Head, target: Target, traces: list[Trace]) -> Pairs:
    for trace in traces:
        state = head.start(target, 1)
        for proposal in trace.proposals:
            head.observe(state, seen_by(head, proposal))
            at = torch.tensor([[proposal.ids.shape[1] - 1]])
            yield paths(proposal.draft), paths(head.propose(state, proposal.ids[:, -1], at, head.levels, None))


def ours_accepts(proposal: Proposal, logits: Tensor) -> tuple[list[int], int]:
    """logits: [leaves, levels + 1, V] as the reference lays them out."""
    there = proposal.retrieve >= 0
    nodes = logits.new_zeros(1, 1 + proposal.draft.size, logits.shape[-1])
    nodes[0, proposal.retrieve[there]] = logits[there]
    path, token = accept(proposal.draft, nodes, Sampler(), Committed(proposal.ids))
    return proposal.draft.tokens[0, path[0][path[0] >= 0]].tolist(), int(token)


def acceptance(traces: list[Trace]) -> Pairs:
    for trace in traces:
        for proposal, verdict in zip(trace.proposals, trace.verdicts):
            yield (verdict.tokens, verdict.after), ours_accepts(proposal, verdict.logits)


def posed(reference: Reference, traces: list[Trace]) -> Pairs:
    for trace in traces:
        for proposal, verdict in zip(trace.proposals, trace.verdicts):
            leaf = int(torch.randint(len(proposal.retrieve), ()))
            goal = proposal.retrieve[leaf][: int(torch.randint(1, proposal.retrieve.shape[1] + 1, ()))].tolist()
            nodes = torch.randn(1 + proposal.draft.size, VOCABULARY)
            for above, node in pairwise(goal):
                if node > 0:
                    nodes[above, proposal.draft.tokens[0, node - 1]] = 10.0
            logits = nodes[proposal.retrieve]
            told = reference.judge(logits, verdict.candidates)
            yield (told.tokens, told.after), ours_accepts(proposal, logits)


def ours_says(head: Head, model: LlamaForCausalLM, ids: Tensor, tokens: int) -> tuple[Tensor, list[int]]:
    """(ids, tokens of every step), the steps counted by the columns that the head is shown after the prompt."""
    shown: list[int] = []
    observe = head.observe

    def observed(state: Any, seen: Seen) -> None:
        shown.append(seen.ids.shape[1])
        observe(state, seen)

    with mock.patch.object(head, "observe", observed):
        out = greedy(model, ids, tokens, custom_generate=Speculate(head))
    return out, shown[1:]


# -- the table --


@dataclass(frozen=True)
class Line:
    what: str
    head: str
    setting: str
    compared: str
    wrong: str = ""

    def __str__(self) -> str:
        told = self.wrong or ("as it must" if self.what == "control" else "equal")
        return f"{self.what:8} {self.head:17} {self.setting:9} {self.compared:52} {told}"


def held(pairs: Pairs, unit: Callable[[Any], str]) -> tuple[str, str]:
    """(how many were compared, in words; the first difference, empty where there is none)."""
    wrong, said, differ = "", [], 0
    for at, (theirs, ours) in enumerate(pairs):
        said.append(theirs)
        if theirs != ours:
            wrong = wrong or f"first at case {at}: reference {clip(theirs, ours)}, ours {clip(ours, theirs)}"
            differ += 1
    return unit(said), f"{differ} of {len(said)} differ, {wrong}" if wrong else ""


def clip(one: Any, other: Any) -> str:
    """Of a tree (a list of paths) what only it has, of a tuple what stands where they part; three of it at most."""
    if isinstance(one, list):
        return f"alone has {[x for x in one if x not in other][:3]}"
    part = next((at for at, (x, y) in enumerate(zip(one, other)) if x != y), min(len(one), len(other)))
    return f"{list(one[part : part + 3])} at {part}"


def lengths(said: list[tuple[list[int], int]]) -> str:
    counts: dict[int, int] = {}
    for tokens, _ in said:
        counts[len(tokens)] = counts.get(len(tokens), 0) + 1
    return f"{len(said)} cases, lengths " + " ".join(f"{n}:{counts[n]}" for n in sorted(counts))


def folder(name: str, head: Path, made: Any, model: LlamaForCausalLM) -> Line:
    """Whether the reference holds what the folder says; lends it the embedding where it did not find it."""
    stored, there = load_file(head / "model.safetensors"), made.ea_layer.state_dict()
    wrong = [f"{key} was not read" for key, x in stored.items() if key in there and not torch.equal(there[key], x)]
    wrong += [f"{key} is not in the folder" for key in there.keys() - stored.keys() - {"embed_tokens.weight"}]
    unread = stored.keys() - there.keys()
    if unread and (unread != {"d2t", "t2d"} or bool(stored["d2t"].any())):  # of one vocabulary it needs neither
        wrong.append(f"{sorted(unread)} have no place")
    if not torch.equal(there["embed_tokens.weight"], model.get_input_embeddings().weight):
        keys = json.loads((head / "config.json").read_text(encoding="utf-8"))
        why = " (its config has target_hidden_size)" if "target_hidden_size" in keys else ""
        wrong.append(f"embed_tokens is not the target's{why}")
    return Line("folder", name, "", f"{len(stored)} tensors and the embedding", "; ".join(wrong))


def lend(made: Any, model: LlamaForCausalLM) -> None:
    made.ea_layer.embed_tokens.weight.data = model.get_input_embeddings().weight.data.clone()


@torch.no_grad()
def compare(
    name: str, head: Path, setting: Setting, reference: Reference, sides: tuple[LlamaForCausalLM, Any, Path],
    prompts: list[Tensor], tokens: int,
) -> Iterator[Line]:  # fmt: skip
    model, theirs, base = sides
    depth, top_k, total = setting
    made = reference.model(theirs, base, head, setting)
    if setting == SETTINGS[0]:
        yield folder(name, head, made, model)
    lend(made, model)
    traces = [reference.generate(made, ids, tokens) for ids in prompts]
    label, target = ",".join(map(str, setting)), Target.of(model)
    dials = dict(beam=top_k, nodes=total - 1)
    ours: Any = load_head(head, levels=depth + 1, **dials)

    def nodes(said: list[Any]) -> str:
        return f"{len(said)} trees, {sum(map(len, said))} nodes, depth {max(len(path) for x in said for path in x)}"

    counted, wrong = held(trees(ours, target, traces), nodes)
    yield Line("tree", name, label, counted, wrong)
    if depth:
        shallow: Any = load_head(head, levels=depth, **dials)
        same = [one == other for one, other in trees(shallow, target, traces)]
        told = f"{len(same) - sum(same)} of {len(same)} trees differ with a level less"
        yield Line("control", name, label, told, "the comparison sees no depth" if all(same) else "")
    counted, wrong = held(acceptance(traces), lengths)
    yield Line("accept", name, label, counted, wrong)
    counted, wrong = held(posed(reference, traces), lengths)
    yield Line("posed", name, label, counted, wrong)
    yield from generations(name, label, ours, model, prompts, traces, tokens)


def generations(
    name: str, label: str, head: Head, model: LlamaForCausalLM, prompts: list[Tensor], traces: list[Trace], tokens: int
) -> Iterator[Line]:
    """Ours may say a few tokens more, so that the steps that are compared are not cut short by the end."""
    enough, said, steps = tokens + head.levels + 2, [], []
    for ids, trace in zip(prompts, traces):
        end = ids.shape[1] + tokens
        mine, counts = ours_says(head, model, ids, enough)
        plain = greedy(model, ids, enough)
        said += [(tuple(other[0, :end].tolist()), tuple(mine[0, :end].tolist())) for other in (trace.ids, plain)]
        wanted = tuple(1 + len(verdict.tokens) for verdict in trace.verdicts)
        steps.append((wanted, tuple(counts[: len(wanted)])))
    unit = f"{len(prompts)} × {tokens} tokens, reference and plain greedy"
    yield Line("tokens", name, label, unit, held(iter(said), str)[1])
    every = [count for wanted, _ in steps for count in wanted]
    tau = sum(every) / len(every)
    wrong = held(iter(steps), str)[1]
    if not wrong and tau < ENOUGH:
        wrong = f"tau below {ENOUGH} says nothing"
    yield Line("steps", name, label, f"{len(every)} steps, tau {tau:.3f}", wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clone", type=Path, required=True, metavar="DIR", help="a checkout of the EAGLE reference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=40, help="of each generation")
    parser.add_argument("--train", type=int, default=100, metavar="STEPS", help="for each head")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    reference = Reference(chosen.clone)
    model = tiny_target(chosen.seed)
    heads = new_heads(model)
    asked = torch.randint(0, VOCABULARY, (16, ASKED))
    text = greedy(model, asked, chosen.tokens + 3 * chosen.prompts)
    train(heads, model, text, ASKED, chosen.train)
    # the first is cut short, so that what follows is new to the heads; the others begin within what they know
    prompts = [row[None, : ASKED - 3 + 3 * at] for at, row in enumerate(text[: chosen.prompts])]
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as place:
        base = Path(place) / "target"
        model.save_pretrained(base, max_shard_size="100KB")  # in shards: the reference looks into their index
        sides = (model, reference.target(model), base)
        for name, head in heads.items():
            saved = save_head(head, Path(place) / name.replace(" ", "_"))
            for setting in SETTINGS:
                for line in compare(name, saved, setting, reference, sides, prompts, chosen.tokens):
                    print(line, flush=True)
                    lines.append(line)
    wrong = sum(bool(line.wrong) for line in lines)
    print(f"{len(lines)} comparisons, {wrong} differ (settings: the reference's depth, top_k, total_token)")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
