"""The training form of the embedded model: the same numbers as `LlavaForConditionalGeneration`, faster on a CPU core.

Parameters carry the hub's key names, so a checkpoint is exported by copying. Knows token subsets (any part of the
picture's patches at their true raster positions) and block masks (several independent turns behind one picture).
Does not know data, optimisers or transformers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmaccel.benchmarks.scene_graph import HEADS, ROWS

GRID = 24  # patches a side; 336 / 14
PATCH_VALUES = 3 * 14 * 14
GUIDED = (2, 3, 4)  # decoder layers in which half of the heads are told where to look (training only)
CHOOSING = (5, 6)  # … in which they are told which of the lettered options to look at


@dataclass(frozen=True)
class Shape:
    """Widths and depths. The defaults are the shipped model."""

    vision_width: int = 192
    vision_layers: int = 6
    vision_heads: int = 3
    vision_ffn: int = 768
    width: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 512
    vocab: int = 1024
    colours: int = 8
    shapes: int = 6
    characters: int = 26
    values: int = 8

    @property
    def read_layer(self) -> int:
        """How many tower layers lie before the features that the projector reads (vision_feature_layer = -2)."""
        return self.vision_layers - 1

    def patch_targets(self) -> dict[str, int]:
        """Outputs of the auxiliary head on a patch; class 0 is "none" except in size, cell and centre."""
        sizes = {"colour": self.colours, "shape": self.shapes, "character": self.characters, "value": self.values}
        table = {"row": 1 + len(ROWS), "column": 1 + len(HEADS)}
        return {**{name: n + 1 for name, n in sizes.items()}, "size": 2, "cell": 9, "centre": 2, **table}

    def picture_targets(self) -> dict[str, int]:
        """Outputs of the auxiliary head on CLS."""
        return {"colours": self.colours, "shapes": self.shapes, "count": 11}

    def dict(self) -> dict[str, int]:
        return asdict(self)


def parameter_shapes(s: Shape) -> dict[str, tuple[int, ...]]:
    """Every parameter under its name in the shipped file; names under `aux.` are dropped at export."""
    v, d, head = s.vision_width, s.width, s.width // s.heads
    tower, text = "vision_tower.vision_model.", "language_model.model."
    shapes: dict[str, tuple[int, ...]] = {
        tower + "embeddings.class_embedding": (v,),
        tower + "embeddings.patch_embedding.weight": (v, PATCH_VALUES),
        tower + "embeddings.position_embedding.weight": (GRID * GRID + 1, v),
    }
    for norm in ("pre_layrnorm", "post_layernorm"):
        shapes |= {f"{tower}{norm}.weight": (v,), f"{tower}{norm}.bias": (v,)}
    for layer in range(s.vision_layers):
        at = f"{tower}encoder.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= {f"{at}self_attn.{name}.weight": (v, v), f"{at}self_attn.{name}.bias": (v,)}
        shapes |= {at + "mlp.fc1.weight": (s.vision_ffn, v), at + "mlp.fc1.bias": (s.vision_ffn,)}
        shapes |= {at + "mlp.fc2.weight": (v, s.vision_ffn), at + "mlp.fc2.bias": (v,)}
        for norm in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{at}{norm}.weight": (v,), f"{at}{norm}.bias": (v,)}
    for name, fan_in in (("linear_1", v), ("linear_2", d)):
        shapes |= {f"multi_modal_projector.{name}.weight": (d, fan_in), f"multi_modal_projector.{name}.bias": (d,)}
    shapes[text + "embed_tokens.weight"] = (s.vocab, d)
    for layer in range(s.layers):
        at = f"{text}layers.{layer}."
        sizes = {"q_proj": s.heads * head, "k_proj": s.kv_heads * head, "v_proj": s.kv_heads * head}
        shapes |= {f"{at}self_attn.{name}.weight": (out, d) for name, out in sizes.items()}
        shapes[at + "self_attn.o_proj.weight"] = (d, s.heads * head)
        shapes |= {at + "mlp.gate_proj.weight": (s.ffn, d), at + "mlp.up_proj.weight": (s.ffn, d)}
        shapes |= {at + "mlp.down_proj.weight": (d, s.ffn)}
        shapes |= {at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,)}
    shapes[text + "norm.weight"] = (d,)
    shapes["aux.patch.weight"] = (sum(s.patch_targets().values()), v)
    shapes["aux.picture.weight"] = (sum(s.picture_targets().values()), v)
    return shapes


def sine_positions(width: int) -> Tensor:
    """[GRID² + 1, width] 2-D sine–cosine table, CLS first with zeros."""
    quarter = width // 4
    rate = 1.0 / (30.0 ** (torch.arange(quarter) / quarter))  # [width / 4]
    angle = torch.arange(GRID)[:, None] * rate  # [GRID, width / 4]
    one = torch.cat([angle.sin(), angle.cos()], -1)  # [GRID, width / 2]
    y, x = one[:, None].expand(-1, GRID, -1), one[None].expand(GRID, -1, -1)
    return torch.cat([torch.zeros(1, width), torch.cat([y, x], -1).reshape(GRID * GRID, width)])


def initial(name: str, shape: tuple[int, ...], s: Shape, generator: torch.Generator) -> Tensor:
    """The value of a parameter before training."""
    if name.endswith("position_embedding.weight"):
        return 0.5 * sine_positions(s.vision_width)  # with small random values they stay unlearned for long
    if len(shape) == 1:
        return (
            torch.ones(shape)
            if name.endswith("norm.weight") or "norm1.w" in name or "norm2.w" in name
            else torch.zeros(shape)
        )
    noise = torch.randn(shape, generator=generator)
    if name.endswith("embed_tokens.weight"):
        return 0.04 * noise
    scale = 0.7 / math.sqrt(shape[1])
    if name.endswith(("out_proj.weight", "o_proj.weight", "fc2.weight", "down_proj.weight", "linear_2.weight")):
        scale *= 0.3
    return scale * noise


@dataclass
class Batch:
    """Micro-batch of b pictures: n patches each reach the tower, m of them the decoder, t text tokens in turns."""

    patches: Tensor  # [b, n, 588] normalised
    where: Tensor  # [b, n] raster index of each patch
    shown: (
        Tensor | None
    )  # [b, m] index into n of the patches that reach the decoder, None = all; None text = tower only
    ids: Tensor | None  # [b, t]
    turn: Tensor | None  # [b, t] which turn a token belongs to, -1 = padding
    position: Tensor | None  # [b, t] RoPE position
    target: Tensor | None  # [b, t] next token to predict, -100 = none
    weight: Tensor | None  # [b, t] of the loss
    kind: Tensor | None  # [b, t] which kind of question a telling answer token belongs to, -1 = none
    evidence: Tensor | None  # [b, t, m] bool: the patches that a place should look at
    own: Tensor | None  # [b, t, t] bool: at a token of an option's value, its letter
    right: Tensor | None  # [b, t, t] bool: where a letter is answered, the right option's value
    blind: Tensor | None  # [b] bool: text does not see the picture in the first layers
    patch_labels: dict[str, Tensor]  # see labels.py
    picture_labels: dict[str, Tensor]


class Pico:
    """Forward passes over a dict of parameters (bf16 or fp32)."""

    def __init__(self, parameters: dict[str, Tensor], shape: Shape, prefix: list[int], blind_layers: int = 2) -> None:
        self.p, self.shape, self.prefix, self.blind_layers = parameters, shape, prefix, blind_layers

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.p[name + ".weight"], self.p[name + ".bias"], 1e-5)

    def rms(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.p[name + ".weight"], 1e-5)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.p[name + ".weight"], self.p.get(name + ".bias"))

    def tower(self, patches: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """([b, n, v] features that the projector reads, [b, v] CLS after the last layer)."""
        at, s = "vision_tower.vision_model.", self.shape
        b, table = len(patches), self.p[at + "embeddings.position_embedding.weight"]
        x = F.linear(patches, self.p[at + "embeddings.patch_embedding.weight"]) + F.embedding(where + 1, table)
        cls = (self.p[at + "embeddings.class_embedding"] + table[0]).expand(b, 1, -1)
        x = self.norm(torch.cat([cls, x], 1), at + "pre_layrnorm")
        for layer in range(s.read_layer):
            x = self.tower_layer(x, f"{at}encoder.layers.{layer}.")
        cls = self.tower_layer(x, f"{at}encoder.layers.{s.read_layer}.", asked=1)  # nobody reads its patches
        return x[:, 1:], self.norm(cls[:, 0], at + "post_layernorm")

    def tower_layer(self, x: Tensor, at: str, asked: int | None = None) -> Tensor:
        """[b, n, v] → [b, asked or n, v]: only the first `asked` tokens are computed where that is given."""
        h = self.norm(x, at + "layer_norm1")
        rows, x = h[:, :asked], x[:, :asked]
        b, heads, head = len(x), self.shape.vision_heads, self.shape.vision_width // self.shape.vision_heads
        q, k, value = (
            self.linear(side, f"{at}self_attn.{name}_proj").view(b, side.shape[1], heads, head).transpose(1, 2)
            for name, side in (("q", rows), ("k", h), ("v", h))
        )  # [b, heads, asked or n, head]
        share = torch.softmax((q * head**-0.5) @ k.transpose(2, 3), -1)
        x = x + self.linear((share @ value).transpose(1, 2).reshape(x.shape), at + "self_attn.out_proj")
        h = F.gelu(self.linear(self.norm(x, at + "layer_norm2"), at + "mlp.fc1"))
        return x + self.linear(h, at + "mlp.fc2")

    def project(self, features: Tensor) -> Tensor:
        return self.linear(
            F.gelu(self.linear(features, "multi_modal_projector.linear_1")), "multi_modal_projector.linear_2"
        )

    def decoder(
        self, x: Tensor, position: Tensor, bias: Tensor, blind_bias: Tensor
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """([b, T, d] after the final norm, {layer: attention} of the guided layers).

        Scores get `bias` [b, 1, 1, T, T], in the first layers `blind_bias`.
        """
        head = self.shape.width // self.shape.heads
        rate = 1.0 / (10000.0 ** (torch.arange(0, head, 2) / head))
        angle = position[..., None] * rate  # [b, T, head / 2]
        angle = torch.cat([angle, angle], -1)[:, None]  # [b, 1, T, head]
        turn = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        looks = {}
        for layer in range(self.shape.layers):
            mask = blind_bias if layer < self.blind_layers else bias
            x, share = self.decoder_layer(x, f"language_model.model.layers.{layer}.", turn, mask)
            if layer in (*GUIDED, *CHOOSING):
                looks[layer] = share[:, 0]  # [b, per, T, T] of the first key/value group
        return self.rms(x, "language_model.model.norm"), looks

    def decoder_layer(self, x: Tensor, at: str, turn: tuple[Tensor, Tensor], bias: Tensor) -> tuple[Tensor, Tensor]:
        b, T, d = x.shape
        groups, head = self.shape.kv_heads, d // self.shape.heads
        h = self.rms(x, at + "input_layernorm")
        q = rotate(self.linear(h, at + "self_attn.q_proj").view(b, T, -1, head).transpose(1, 2), turn) * head**-0.5
        k = rotate(self.linear(h, at + "self_attn.k_proj").view(b, T, groups, head).transpose(1, 2), turn)
        value = self.linear(h, at + "self_attn.v_proj").view(b, T, groups, head).transpose(1, 2)
        per = self.shape.heads // groups
        score = (q.reshape(b, groups, per * T, head) @ k.transpose(2, 3)).view(b, groups, per, T, T)
        share = torch.softmax(score + bias, -1)  # [b, groups, per, T, T]
        mixed = (
            (share.view(b, groups, per * T, T) @ value)
            .view(b, self.shape.heads, T, head)
            .transpose(1, 2)
            .reshape(b, T, d)
        )
        x = x + self.linear(mixed, at + "self_attn.o_proj")
        h = self.rms(x, at + "post_attention_layernorm")
        h = F.silu(self.linear(h, at + "mlp.gate_proj")) * self.linear(h, at + "mlp.up_proj")
        return x + self.linear(h, at + "mlp.down_proj"), share

    def masks(self, batch: Batch, m: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Additive masks [b, 1, 1, T, T]: causal, each turn behind the picture alone; the second also blind."""
        b, t = batch.ids.shape
        before = len(self.prefix) + m
        T = before + t
        turn = torch.cat([torch.full((b, before), -2), batch.turn], 1)  # [b, T]
        open_ = (turn[:, :, None] == turn[:, None]) | (turn[:, None] == -2)
        open_ &= torch.ones(T, T, dtype=torch.bool).tril()
        bias = torch.zeros(b, T, T, dtype=dtype).masked_fill(~open_, -1e4)
        hidden = batch.blind[:, None, None] & (turn[:, :, None] != -2)  # [b, T, 1]
        picture = torch.zeros(T, dtype=torch.bool)
        picture[len(self.prefix) : before] = True
        return bias[:, None, None], bias.masked_fill(hidden & picture, -1e4)[:, None, None]

    def look(self, batch: Batch, features: Tensor) -> Tensor:
        """[b, m, d] what the decoder gets of the tower's features."""
        return self.project(features if batch.shown is None else choose(features, batch.shown))

    def read(self, batch: Batch, seen: Tensor) -> tuple[Tensor, Tensor]:
        """([k, vocab] logits at the k places with a target, loss of the guided attention); `seen` comes from `look`."""
        b = seen.shape[0]
        where = batch.where if batch.shown is None else batch.where.gather(1, batch.shown)
        table = self.p["language_model.model.embed_tokens.weight"]
        first = F.embedding(torch.tensor(self.prefix), table).expand(b, -1, -1)
        x = torch.cat([first, seen, F.embedding(batch.ids, table)], 1)
        start = len(self.prefix)
        position = torch.cat([torch.arange(start).expand(b, -1), where + start, batch.position], 1)
        x, looks = self.decoder(x, position, *self.masks(batch, where.shape[1], x.dtype))
        t, m = batch.ids.shape[1], where.shape[1]
        logits = x[:, -t:][batch.target >= 0] @ table.T
        early, late = ([looks[layer][:, :, -t:] for layer in at if layer in looks] for at in (GUIDED, CHOOSING))
        guide = guide_loss([share[..., start : start + m] for share in early], batch.evidence)
        guide = guide + 0.3 * guide_loss([share[..., -t:] for share in early], batch.own)
        return logits, guide + guide_loss([share[..., -t:] for share in late], batch.right)


def guide_loss(looks: list[Tensor], evidence: Tensor) -> Tensor:
    """How little of the attention [b, per, t, m] of these places falls on what they should look at [b, t, m]."""
    rows = evidence.any(-1)  # [b, t]
    if not looks or not rows.any():
        return torch.zeros(())
    mass = [(share.float() * evidence[:, None]).sum(-1).mean(1)[rows] for share in looks]
    return -torch.log(torch.stack(mass) + 1e-3).mean()


def choose(x: Tensor, index: Tensor) -> Tensor:
    """x [b, n, …] at index [b, m] → [b, m, …]."""
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:]))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of x [b, heads, T, head]."""
    half = x.shape[-1] // 2
    return x * turn[0] + torch.cat([-x[..., half:], x[..., :half]], -1) * turn[1]


def text_loss(logits: Tensor, batch: Batch, kinds: int) -> tuple[Tensor, Tensor]:
    """(weighted mean cross entropy, [kinds, 2] right and all telling answer tokens of each kind)."""
    at = batch.target >= 0
    target, weight, kind = batch.target[at], batch.weight[at], batch.kind[at]
    each = F.cross_entropy(logits.float(), target, reduction="none")
    right, tally = logits.argmax(-1) == target, torch.zeros(kinds, 2)
    tally[:, 0].index_add_(0, kind[kind >= 0], right[kind >= 0].float())
    tally[:, 1].index_add_(0, kind[kind >= 0], torch.ones(int((kind >= 0).sum())))
    return (each * weight).sum() / weight.sum(), tally


def tower_losses(model: Pico, batch: Batch, features: Tensor, cls: Tensor) -> dict[str, Tensor]:
    """Auxiliary losses: what stands on each patch, and what the picture holds (on CLS)."""
    s, out = model.shape, {}
    answer = F.linear(features, model.p["aux.patch.weight"]).float().split(list(s.patch_targets().values()), -1)
    for name, logits in zip(s.patch_targets(), answer):
        label = batch.patch_labels[name]
        if name == "centre":
            known = batch.patch_labels["cell"] >= 0
            out[name] = (logits[known] - label[known]).abs().mean()
        elif name in ("size", "cell"):
            out[name] = F.cross_entropy(logits[label >= 0], label[label >= 0])
        else:  # patches with nothing on them are many: they count as a fifth
            weight = torch.where(label > 0, 1.0, 0.2)
            each = F.cross_entropy(logits.flatten(0, 1), label.flatten(), reduction="none")
            out[name] = (each * weight.flatten()).sum() / weight.sum()
    answer = F.linear(cls, model.p["aux.picture.weight"]).float().split(list(s.picture_targets().values()), -1)
    for name, logits in zip(s.picture_targets(), answer):
        label = batch.picture_labels[name]
        out[name] = (
            F.cross_entropy(logits, label) if name == "count" else F.binary_cross_entropy_with_logits(logits, label)
        )
    return out


def word_losses(model: Pico, batch: Batch, seen: Tensor, words: dict[str, Tensor]) -> Tensor:
    """Draws a projected patch to the embeddings of the words for what stands on it.

    `words`: token ids per label. With both in one space, finding "the star" is one matching head for every word.
    """
    table = model.p["language_model.model.embed_tokens.weight"]
    level, total = F.rms_norm(seen, seen.shape[-1:]), seen.new_zeros((), dtype=torch.float32)
    for name, ids in words.items():
        label = batch.patch_labels[name]
        label = label if batch.shown is None else choose(label, batch.shown)
        logits = (level @ table[ids].T).float()  # [b, m, words]
        known = label >= (0 if name in ("size", "cell") else 1)
        if not known.any():
            continue
        if name == "cell":  # "top left" is two words
            target = CELL_WORDS.to(logits.dtype)[label[known]]
            total = total + F.binary_cross_entropy_with_logits(logits[known], target)
        else:
            total = total + F.cross_entropy(logits[known], label[known] - (0 if name == "size" else 1))
    return total


# [9 cells, 5 words]: top, bottom, left, right, center
CELL_WORDS = torch.tensor(
    [[1, 0, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0],
     [0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [0, 1, 0, 1, 0]]
)  # fmt: skip
