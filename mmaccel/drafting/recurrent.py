"""What EAGLE heads share: one decoder layer that feeds its own guesses back, over keys of everything verified.

A column is run when the token after it is known: (hidden state of the column, embedding of the token after). Drafted
nodes run level by level; what they leave is dropped, and the target's own hidden states take their place. A subclass
says what is paired, what is fed back and how a token is read off it. Knows tensors and drafts, no layers of the target.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmaccel.drafting.base import Draft, DraftHead, DraftState, Seen, Target, packed
from mmaccel.drafting.layer import Attention, Keys, Sizes
from mmaccel.drafting.trees import Frontier, Pool

ROPES = ("sequential", "mrope")
IMAGE_INPUTS = ("placeholder", "merged", "hidden", "none")
Pair = tuple[Tensor, Tensor]  # (residual stream [B, q, D], what attention reads [B, q, R])


@dataclass(frozen=True)
class Entered:
    """Pairs on their way into the layer. residual: [B, q, D].  read: [B, q, R].  stands: [B, q] those that are there at
    all, None = all.  sight: [B, q, D] what each knows of the picture before it, None where a head has no such thing."""

    residual: Tensor
    read: Tensor
    stands: Tensor | None = None
    sight: Tensor | None = None


@dataclass
class Drafting(DraftState):
    """keys: of columns whose pair (hidden state, token after) is known.  waiting: those that lack the token after.
    sight: [B, 1, D] of the last column."""

    target: Target
    keys: Keys
    waiting: Seen | None = None
    sight: Tensor | None = None

    def fork(self) -> "Drafting":
        return replace(self, keys=self.keys.fork())

    def select(self, rows: Tensor) -> "Drafting":
        waiting = None if self.waiting is None else self.waiting.select(rows)
        sight = None if self.sight is None else self.sight[rows]
        return replace(self, keys=self.keys.select(rows), waiting=waiting, sight=sight)


class Recurrent(DraftHead):
    """levels: depth of the tree.  beam: nodes that go on at each level; 1 drafts a chain.  nodes: of the verified tree.
    image_input: what stands for the token at a picture's columns: the `placeholder`'s embedding, the `merged` features
    as the decoder gets them, or nothing, so that the `hidden` state speaks alone; `none` leaves those pairs out, so
    that all it knows of the picture is in the text's hidden states (https://arxiv.org/abs/2509.23928).
    rope: where columns stand: `sequential` on one axis (the time of a target with M-RoPE, as vLLM feeds a head), or
    `mrope` on all three."""

    image_inputs: tuple[str, ...] = IMAGE_INPUTS

    watches = True

    def __init__(self, sizes: Sizes, levels: int, beam: int, nodes: int, image_input: str, rope: str) -> None:
        super().__init__()
        if rope not in ROPES or (rope == "mrope" and not sizes.sections):
            valid = ", ".join(ROPES) if sizes.sections else "sequential: its target has no M-RoPE"
            raise ValueError(f"rope: got {rope!r}, valid are {valid}")
        for name, value in (("levels", levels), ("beam", beam), ("nodes", nodes)):
            if value < 1:
                raise ValueError(f"{name}: got {value}, valid are whole numbers from 1 on")
        if image_input not in self.image_inputs:
            raise ValueError(f"image_input: got {image_input!r}, valid are {', '.join(self.image_inputs)}")
        self.sizes, self.levels, self.beam, self.nodes = sizes, levels, beam, nodes
        self.image_input, self.rope = image_input, rope
        self.shape = "chain" if beam == 1 else "tree"

    # -- what a head is made of --

    @property
    @abstractmethod
    def attention(self) -> Attention: ...

    @abstractmethod
    def given(self, seen: Seen) -> Tensor:
        """[B, m, D] what of the target stands for each column."""

    @abstractmethod
    def pair(self, embeds: Tensor, hidden: Tensor) -> Pair: ...

    def enter(
        self, embeds: Tensor, hidden: Tensor, visual: Tensor | None = None, sight: Tensor | None = None
    ) -> Entered:
        """Pairs of embeds [B, q, D], of the tokens after, and hidden [B, q, D].

        visual: [B, q] tokens after that are a picture's, None = none of them.  sight: [B, 1 or q, D] from before.
        """
        residual, read = self.pair(embeds, hidden)
        left_out = visual is not None and self.image_input == "none"
        return Entered(residual, read, ~visual if left_out else None, sight)  # type: ignore[operator]

    @abstractmethod
    def rest(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """[B, q, D] the layer's output, which is fed back."""

    @abstractmethod
    def logits(self, target: Target, feature: Tensor) -> Tensor:
        """[…, V] fp32, over the head's own vocabulary."""

    def names(self) -> Tensor | None:
        """[V] the target's id of each own token; None where they are the same."""
        return None

    # -- drafting --

    def start(self, target: Target, rows: int) -> Drafting:
        self.fits(target.width, target.vocabulary)
        weight = self.attention.o_proj.weight
        return Drafting(target, Keys.none(rows, self.sizes, weight.device, weight.dtype))

    def observe(self, state: DraftState, seen: Seen) -> None:
        assert isinstance(state, Drafting)
        state.waiting = seen if state.waiting is None else state.waiting.then(seen)

    def propose(self, state: DraftState, token: Tensor, position: Tensor, limit: int, sampler: Any) -> Draft:
        assert isinstance(state, Drafting)
        if limit < 1:
            return Draft.empty(len(token), token.device)
        feature = self.catch_up(state, token)  # [B, 1, D]
        at = self.place(position)  # [A, B, 1]
        if self.beam == 1:
            return self.chain(state, feature, at, min(self.levels, self.nodes, limit))
        pool = Pool(self.beam, self.names())
        frontier = pool.offer(self.logits(state.target, feature).log_softmax(-1))
        tree = Grown.none(state.keys)
        hidden = feature.expand(-1, frontier.tokens.shape[1], -1)
        for level in range(1, min(self.levels, limit)):
            tree = tree.add(frontier.tokens.shape[1])
            laid = tree.sees.shape[2] - frontier.tokens.shape[1]
            hidden = self.run(state, frontier.tokens, hidden, at + level - 1, laid, state.keys.mask(tree.sees))
            before = frontier
            frontier = pool.offer(self.logits(state.target, hidden).log_softmax(-1), before)
            came = tree.came_from(frontier, pool, before)  # [B, k] which of the nodes just run each child hangs on
            hidden, tree = pick(hidden, came), tree.follow(came)
        return pool.best(self.nodes)

    def catch_up(self, state: Drafting, token: Tensor) -> Tensor:
        """Runs the columns that waited for the token after them; [B, 1, D] the feature of the last."""
        seen, state.waiting = state.waiting, None
        assert seen is not None
        embeds = self.embeds(state.target, seen)  # [B, m, D]
        embeds = torch.cat([embeds[:, 1:], state.target.embed(token)[:, None].to(embeds.dtype)], 1)
        visual = None if state.keys.valid.shape[1] else following(seen)  # pictures stand in the prompt alone
        entered = self.enter(embeds, self.given(seen), visual, state.sight)
        valid, position = seen.whole, self.place(seen.position)
        residual, read = entered.residual, entered.read
        if entered.sight is not None:
            state.sight = entered.sight[:, -1:]
        if entered.stands is not None:
            order, valid = packed(valid & entered.stands)
            residual, read = pick(residual, order), pick(read, order)
            position = position.expand(-1, len(order), -1).gather(2, order.expand(len(position), -1, -1))
        q, k, v = self.attention.heads(read, position)
        keys, values = state.keys.lay(k, v)
        alone = len(valid) == 1  # one row has no holes but those of its prompt
        state.keys.hold(valid, alone and (state.keys.length > 0 or bool(valid.all())))
        mixed = self.attention(q[:, :, -1:], keys, values, state.keys.mask())  # the last one sees all that is valid
        return self.rest(residual[:, -1:], mixed)

    def place(self, position: Tensor) -> Tensor:
        """[1, B, m], or [3, B, m] under mrope, of [B, m] or [axes, B, m]; `generate` puts an axis of text in front."""
        if self.rope == "mrope":
            return position[-3:] if position.ndim == 3 else position.expand(3, -1, -1)
        return (position if position.ndim == 2 else position[-3])[None]  # the time, which text counts up on all alike

    def embeds(self, target: Target, seen: Seen) -> Tensor:
        """[B, m, D] of the columns' own tokens."""
        if self.image_input in ("merged", "compressed") and seen.embeds is not None:
            return seen.embeds
        embeds = target.embed(seen.ids)
        if self.image_input == "hidden" and seen.visual is not None:
            embeds = embeds.masked_fill(seen.visual[..., None], 0.0)
        return embeds

    def chain(self, state: Drafting, feature: Tensor, at: Tensor, count: int) -> Draft:
        """`count` first choices, each below the one before; at: [A, B, 1] of the token above the first."""
        tokens, names = list[Tensor](), self.names()
        for level in range(count):
            if level:
                own = None if state.keys.whole else state.keys.valid.new_ones(len(feature), 1, level)
                mask = None if own is None else state.keys.mask(own)
                feature = self.run(state, tokens[-1][:, None], feature, at + level - 1, level - 1, mask)
            best = self.logits(state.target, feature)[:, -1].argmax(-1)
            tokens.append(best if names is None else names[best])
        return Draft.chain(torch.stack(tokens, 1))

    def run(
        self, state: Drafting, tokens: Tensor, hidden: Tensor, position: Tensor, laid: int, mask: Tensor | None
    ) -> Tensor:
        """[B, k, D] the features of drafted tokens [B, k], whose parents' are hidden [B, k, D]; their keys are laid
        behind those of `laid` nodes.  mask: [B, k, L], None = they see all columns, nodes and themselves."""
        entered = self.enter(state.target.embed(tokens), hidden, sight=state.sight)
        query, key, value = self.attention.heads(entered.read, position.expand(-1, -1, tokens.shape[1]))
        keys, values = state.keys.lay(key, value, laid)
        return self.rest(entered.residual, self.attention(query, keys, values, mask))

    # -- training --

    def unrolled(self, seen: Seen, target: Target, steps: int, noise: float = 0.0, first: int = 0) -> list[Tensor]:
        """Per step [B, n − first, D]: what place t ≥ first feels of the column `step` + 1 further on, when it sees the
        target up to t and its own guesses behind. noise: width of what is added to the given states, uniform around 0.
        """
        given, embeds = self.given(seen), self.embeds(target, seen)
        noisy = given + noise * (torch.rand_like(given) - 0.5) if noise else given
        entered = self.enter(shifted(embeds, 1), noisy, following(seen))
        stand = seen.whole if entered.stands is None else seen.whole & entered.stands
        position, sees = self.place(seen.position), causal(stand)[:, first:]
        query, key, value = self.attention.heads(entered.read, position)  # of all places: they are seen, asked or not
        query, residual, keys, values = query[:, :, first:], entered.residual[:, first:], [key], [value]
        sight = None if entered.sight is None else entered.sight[:, first:]
        found = [self.rest(residual, self.attention.unrolled(query, keys, values, sees))]
        for step in range(1, steps):
            entered = self.enter(shifted(embeds, step + 1)[:, first:], found[-1], sight=sight)
            query, key, value = self.attention.heads(entered.read, position[..., first:] + step)
            keys.append(key)
            values.append(value)
            found.append(self.rest(entered.residual, self.attention.unrolled(query, keys, values, sees)))
        return found


def asked(answer: Tensor, steps: int) -> int:
    """The first place from which some row's answer [B, n] is guessed: step i guesses the token i + 2 places on."""
    said = answer.any(0)
    return max(int(said.int().argmax()) - steps - 1, 0) if bool(said.any()) else answer.shape[1] - 1


def causal(valid: Tensor) -> Tensor:
    """[B, m, m] every place sees the valid ones up to itself; a hole sees itself, so that no row is empty."""
    m = valid.shape[1]
    order = torch.ones(m, m, dtype=torch.bool, device=valid.device).tril()
    return order & valid[:, None] | torch.eye(m, dtype=torch.bool, device=valid.device)


def following(seen: Seen) -> Tensor | None:
    """[B, m] the column after is a picture's; behind the last one stands text."""
    return None if seen.visual is None else shifted(seen.visual & seen.whole, 1)


def shifted(x: Tensor, by: int) -> Tensor:
    """x [B, n, …] moved left, zeros behind."""
    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], 1)


def pick(x: Tensor, at: Tensor) -> Tensor:
    """x [B, n, D] at [B, k]."""
    return x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))


@dataclass(frozen=True)
class Grown:
    """sees: [B, k, n] which of the n nodes that have run each node of the last level sees."""

    sees: Tensor

    @classmethod
    def none(cls, like: Keys) -> "Grown":
        return cls(like.valid.new_zeros(len(like.valid), 1, 0))

    def add(self, count: int) -> "Grown":
        """With `count` nodes more, which see themselves too."""
        own = torch.eye(count, dtype=torch.bool, device=self.sees.device).expand(len(self.sees), -1, -1)
        return Grown(torch.cat([self.sees.expand(-1, count, -1), own], 2))

    def came_from(self, frontier: Frontier, pool: Pool, before: Frontier) -> Tensor:
        """[B, k] the index, among the nodes that ran last, of each frontier node's parent."""
        parents = torch.cat(pool.parents, 1).gather(1, frontier.pool)  # [B, k] places in the pool
        return (parents[:, :, None] == before.pool[:, None, :]).to(torch.int8).argmax(2)

    def follow(self, came: Tensor) -> "Grown":
        return Grown(self.sees.gather(1, came[..., None].expand(-1, -1, self.sees.shape[2])))
