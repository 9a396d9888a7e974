"""The tokenizer: a byte-level BPE in which every word of the generated questions is one token.

Capitals and digits stay single characters, so that reading a sign means reading its characters.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mmaccel.benchmarks.scene_graph import CELLS, COLOURS, SHAPES, SIZES

SPECIAL = ["<pad>", "<s>", "</s>", "<image>"]
# words of today's questions and, with room to spare, of kinds and caption templates to come
PLAIN = """a an the is are there in on at of to and or not no yes it this that what where which how many color shape
size picture image scene object objects marked written says say sign chart bar bars value tallest shortest has have
shows show describe left right above below between near next row column table cell unknown letter number text answer
with from by as one two three four five six seven eight nine ten zero can see contains contain you we i made up first
second last then also side corner middle placed drawn found sits lies stands stand other others nothing only both all
any small sized colored labelled labeled reads read holds hold upper lower list briefly detail name tell me please about
same different more less than most fewest biggest smallest larger smaller line order background light pale plain here
for if would be will does do its their them they each every without answerable cannot told question instruction ignore
reply total altogether count counting"""
CAPITALISED = """Is Are There What Where Which How The A An In On At Describe List Tell Name Count Briefly From It This
One Two"""


def words() -> list[str]:
    plural = [shape + ("es" if shape == "cross" else "s") for shape in SHAPES]
    cells = [word for cell in CELLS for word in cell.split()]
    lower = sorted({*PLAIN.split(), *COLOURS, *SHAPES, *plural, *SIZES, *cells})
    return [*lower, *CAPITALISED.split(), "USER", "ASSISTANT"]


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    # a capital without small letters behind it and every digit is a piece of its own, so no merge crosses it
    pieces = Regex(r" ?(?:USER|ASSISTANT)| ?[A-Z]?[a-z]+|[A-Z0-9]|\s|[^\sA-Za-z0-9]")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000, min_frequency=1, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator([f" {word}" for word in words()] + words(), trainer)
    return tokenizer
