"""Holds our benchmarks' prompts and scores against the kits' own functions, on miniatures, made rows and made replies.

    pip download --no-deps lmms-eval==0.7.3 && unzip lmms_eval-0.7.3-py3-none-any.whl -d LMMS
    git clone https://github.com/open-compass/VLMEvalKit KIT
    python scripts/scorer_parity.py --lmms-eval LMMS --vlmevalkit KIT

The kits are imported from these folders and run as they are (scorer_kits); modules of theirs that are not installed and
do not score are stood in for by empty ones, and no judge is asked. Compared are

prompt   the text asked about a row: lmms-eval's doc_to_text with its yaml's defaults, VLMEvalKit's build_prompt
limit    the tokens that a reply may have, where the kit sets them by benchmark
reply    the score of one reply under the variant (`compat`) that names the kit
total    the benchmark's own numbers, by the kit's aggregation, over drawings of replies that both sides score alike
default  the score of one reply under our default instead: how often it is not the kit's

Rows are those of tests/data and made ones that both sides read from one file; replies are made of right and wrong
answers: case, marks, articles, sentences, refusals, letters, full-width letters, nothing, anything (scorer_cases).
Every difference but those of the default has to be explained by one of KNOWN; any other is printed, and the exit code
is 1. --out DIR writes the table as points.csv.
"""

import argparse
import ast
import csv
import logging
import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT)]

import pandas as pd  # noqa: E402
from datasets import disable_progress_bars  # noqa: E402
from scorer_cases import Gold, replies, written  # noqa: E402
from scorer_kits import (  # noqa: E402
    GUESSED,
    MARK,
    Doc,
    Lmms,
    LmmsHallusion,
    LmmsMmbench,
    LmmsMme,
    LmmsMmmu,
    LmmsOcr,
    LmmsPope,
    LmmsSide,
    Side,
    Vlm,
    VlmChoice,
    VlmOcr,
    VlmSide,
    VlmVqa,
    VlmYesNo,
    average,
)

from mmaccel.benchmarks.base import Sample  # noqa: E402
from mmaccel.benchmarks.chartqa import ChartQa  # noqa: E402
from mmaccel.benchmarks.choice import READERS  # noqa: E402
from mmaccel.benchmarks.docvqa import DocVqa  # noqa: E402
from mmaccel.benchmarks.gqa import Gqa  # noqa: E402
from mmaccel.benchmarks.hallusionbench import Hallusionbench  # noqa: E402
from mmaccel.benchmarks.infovqa import InfoVqa  # noqa: E402
from mmaccel.benchmarks.mmbench import WORDING, MMBench  # noqa: E402
from mmaccel.benchmarks.mme import Mme  # noqa: E402
from mmaccel.benchmarks.mmmu import MMMU  # noqa: E402
from mmaccel.benchmarks.ocrbench import OcrBench  # noqa: E402
from mmaccel.benchmarks.pope import Pope  # noqa: E402
from mmaccel.benchmarks.realworldqa import RealWorldQA  # noqa: E402
from mmaccel.benchmarks.scienceqa import ScienceQA  # noqa: E402
from mmaccel.benchmarks.table import SHORT_ANSWER, Table  # noqa: E402
from mmaccel.benchmarks.textvqa import TextVqa  # noqa: E402
from mmaccel.benchmarks.vqav2 import Vqav2  # noqa: E402

LMMS, KIT = "lmms-eval", "VLMEvalKit"
DATA = ROOT / "tests/data"
ROWS, ROUNDS = 100, 40  # made rows of a benchmark, drawings of replies
UNKNOWN, DEFAULT = "UNKNOWN", "our default has another reader, or another kit's"
CLIP = 60  # characters of a text in an example

# -- what is compared --


@dataclass(frozen=True)
class Trial:
    """settings: of ours, with the variant that names the kit; none is empty. mini: a file of tests/data/<benchmark>,
    with settings of its own. scored: False where only prompts differ from another trial."""

    benchmark: str
    kit: str
    make: Callable[..., Table]
    settings: Mapping[str, Any]
    mini: str
    side: Callable[[Any], Side]
    own: Mapping[str, Any] = field(default_factory=dict)
    scored: bool = True

    @property
    def variant(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def lmms(task: str, file: str, kind: type[LmmsSide] = LmmsSide, headline: str = "accuracy") -> Callable[[Any], Side]:
    return lambda kit: kind(kit, task, f"{file}.yaml", headline)


def vlm(kind: type[VlmSide], name: str, built: str, *more: str) -> Callable[[Any], Side]:
    return lambda kit: kind(kit, name, built, *more)


THEIRS, PLAIN = {"compat": "vlmevalkit"}, {"compat": "vlmevalkit", "prompt": "plain"}
ONE = "-00000-of-00001.parquet"
TRIALS = (
    Trial("vqav2", LMMS, Vqav2, {"compat": "lmms"}, f"validation{ONE}",
          lmms("vqav2", "vqav2_val", headline="overall")),
    Trial("vqav2", KIT, Vqav2, THEIRS, "", vlm(VlmVqa, "VQAv2", "ImageVQADataset")),
    Trial("gqa", LMMS, Gqa, {"compat": "lmms"}, "testdev_balanced_instructions",
          lmms("gqa", "gqa", headline="overall"), {"pictures": str(DATA / "gqa/testdev_balanced_images")}),
    Trial("gqa", KIT, Gqa, THEIRS, "GQA_TestDev_Balanced.tsv", vlm(VlmVqa, "GQA", "ImageVQADataset", "accuracy")),
    Trial("textvqa", LMMS, TextVqa, {"compat": "lmms"}, f"validation{ONE}",
          lmms("textvqa", "textvqa_val", headline="overall")),
    Trial("textvqa", KIT, TextVqa, THEIRS, "TextVQA_VAL.tsv", vlm(VlmVqa, "TextVQA", "ImageVQADataset")),
    Trial("pope", LMMS, Pope, {"compat": "lmms"}, "test.parquet", lmms("pope", "pope", LmmsPope)),
    Trial("pope", KIT, Pope, PLAIN, "POPE.tsv", vlm(VlmYesNo, "POPE", "ImageYORNDataset")),
    Trial("mme", LMMS, Mme, {"compat": "official"}, "test.parquet", lmms("mme", "mme", LmmsMme)),
    Trial("mme", KIT, Mme, PLAIN, "MME.tsv", vlm(VlmYesNo, "MME", "ImageYORNDataset")),
    Trial("mmbench", LMMS, MMBench, {"compat": "ours"}, f"dev{ONE}",
          lmms("mmbench", "mmbench_en_dev_static", LmmsMmbench)),
    Trial("mmbench cn", LMMS, MMBench, {"language": "cn"}, "", lmms("mmbench", "mmbench_cn_dev"), scored=False),
    Trial("mmbench", KIT, MMBench, THEIRS, "MMBench_DEV_EN.tsv", vlm(VlmChoice, "MMBench", "ImageMCQDataset"),
          {"circular": False}),
    Trial("mmmu", LMMS, MMMU, {"compat": "mmmu_random"}, f"validation{ONE}", lmms("mmmu", "mmmu_val", LmmsMmmu)),
    Trial("mmmu", KIT, MMMU, {"compat": "ours"}, "MMMU_DEV_VAL.tsv", vlm(VlmChoice, "MMMU", "MMMUDataset")),
    Trial("hallusionbench", LMMS, Hallusionbench, THEIRS, "image.parquet",
          lmms("hallusion_bench", "hallusion_bench_image", LmmsHallusion)),
    Trial("hallusionbench", KIT, Hallusionbench, THEIRS, "HallusionBench.tsv",
          vlm(VlmYesNo, "HallusionBench", "ImageYORNDataset")),
    Trial("realworldqa", LMMS, RealWorldQA, THEIRS, f"test{ONE}", lmms("realworldqa", "realworldqa")),
    Trial("realworldqa", KIT, RealWorldQA, THEIRS, "RealWorldQA.tsv",
          vlm(VlmChoice, "RealWorldQA", "ImageMCQDataset")),
    Trial("chartqa", LMMS, ChartQa, {}, f"test{ONE}", lmms("chartqa", "chartqa", headline="overall")),
    Trial("chartqa", KIT, ChartQa, {}, "ChartQA_TEST.tsv",
          vlm(VlmVqa, "ChartQA", "ImageVQADataset", "relaxed_accuracy")),
    Trial("docvqa", LMMS, DocVqa, {"compat": "kits"}, f"validation{ONE}",
          lmms("docvqa", "docvqa_val", headline="anls")),
    Trial("docvqa", KIT, DocVqa, {"compat": "kits"}, "DocVQA_VAL.tsv",
          vlm(VlmVqa, "DocVQA", "ImageVQADataset", "anls", "anls")),
    Trial("infovqa", LMMS, InfoVqa, {"compat": "kits"}, f"validation{ONE}",
          lmms("infovqa", "infovqa_val", headline="anls")),
    Trial("infovqa", KIT, InfoVqa, {"compat": "kits"}, "", vlm(VlmVqa, "InfoVQA", "ImageVQADataset", "anls", "anls")),
    Trial("ocrbench", LMMS, OcrBench, {"compat": "lmms"}, f"test{ONE}", lmms("ocrbench", "ocrbench", LmmsOcr)),
    Trial("ocrbench", KIT, OcrBench, THEIRS, "OCRBench.tsv", vlm(VlmOcr, "OCRBench", "OCRBench")),
    Trial("scienceqa", LMMS, ScienceQA, {"compat": "lmms_eval"}, f"test{ONE}", lmms("scienceqa", "scienceqa_img")),
    Trial("scienceqa", KIT, ScienceQA, THEIRS, "ScienceQA_TEST.tsv",
          vlm(VlmChoice, "ScienceQA", "ImageMCQDataset")),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Something that was compared. name: the family of a reply, or of what a total is. mine, again: our score and the
    kit's of another text in the place of this reply."""

    trial: Trial
    what: str
    name: str
    ours: Any
    theirs: Any
    sample: Sample | None = None
    doc: Doc = field(default_factory=dict)
    said: str = ""
    mine: Callable[[str], float | None] = lambda _: None
    again: Callable[[str], float | None] = lambda _: None

    @property
    def example(self) -> str:
        one, other = clipped(self.ours, self.theirs), clipped(self.theirs, self.ours)
        if self.what not in ("reply", "default") or self.sample is None:
            return f"{self.name}: ours {one}, theirs {other}"
        return f"{self.said[:CLIP]!r} to {self.sample.reference[0]!r}: ours {one}, theirs {other}"


def clipped(one: Any, other: Any) -> str:
    """A text from where it parts from the other; a number short."""
    if not isinstance(one, str):
        return f"{one:.3g}" if isinstance(one, float) else str(one)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, str(other)))))
    return f"{'…' if same > 8 else ''}{one[max(same - 8, 0) : same + CLIP]!r}"


@dataclass(frozen=True)
class Known:
    """A difference that is there for a reason. holds: whether it is why a case differs."""

    name: str
    reason: str
    what: str
    kit: str
    benchmarks: str
    holds: Callable[[Case], bool]

    def explains(self, case: Case) -> bool:
        here = (
            case.what == self.what and case.trial.kit in self.kit and case.trial.benchmark in self.benchmarks.split(",")
        )
        return here and self.holds(case)


def unseen(case: Case) -> bool:
    """An option or the answer is an empty cell to the kit; without that option we read the reply as it does."""
    assert case.sample is not None
    options = case.sample.truth.get("options") or {}
    seen = {letter: text for letter, text in options.items() if not pd.isna(case.doc[letter])}
    if seen == options:
        return bool(pd.isna(case.doc["answer"]))
    return case.theirs == float(READERS["vlmevalkit"](case.said, seen) == case.sample.reference[0])


def worded(case: Case) -> bool:
    """The same question and options in other words around them."""
    assert case.sample is not None
    options = case.sample.truth["options"]
    lines = [f"{letter}. {text}" for letter, text in options.items() if not pd.isna(case.doc[letter])]
    return MARK.sub("<image>", case.doc["question"]) in case.theirs and all(line in case.theirs for line in lines)


def as_list(case: Case) -> bool:
    """The kit's own function, given the list instead of its text, scores as we do."""
    module: Any = sys.modules["lmms_eval.tasks.mmmu.utils"]
    if case.doc["question_type"] != "open" or not case.doc["answer"].startswith("["):
        return False
    read = module.parse_open_response(case.said.strip())
    return float(module.eval_open(ast.literal_eval(case.doc["answer"]), read)) == case.ours


def in_english(case: Case) -> bool:
    (english, _), (chinese, _) = WORDING["en"], WORDING["cn"]
    hint = case.doc["hint"]
    shown = "" if hint not in ("nan", "") else f"{hint} "
    return case.theirs.replace(english, chinese) == shown + case.ours


CHOICES = "mmbench,mmmu,scienceqa,realworldqa"
SHORT = "vqav2,gqa,textvqa,chartqa,docvqa,infovqa,ocrbench"
KNOWN = (
    Known("an empty reply", "is never right here; the kits score its form, which articles and marks have too", "reply",
          f"{LMMS} {KIT}", SHORT, lambda case: not case.said.strip() and case.ours == 0),
    Known("spaces around a reply", "VLMEvalKit counts them in the longer text's length", "reply", KIT,
          "docvqa,infovqa", lambda case: case.ours == case.again(case.said.strip())),
    Known("a lost letter", "numpy's lower case keeps the length: İ becomes two letters, and the last one is cut",
          "reply", LMMS, "gqa",
          lambda case: any(len(text) < len(text.lower()) for text in (case.said.strip(), case.doc["answer"]))),
    Known("None is an empty cell", "VLMEvalKit's tables are read with pandas; here None is a word", "reply", KIT,
          f"{CHOICES},{SHORT}", unseen),
    Known("a list of answers", "lmms-eval compares an open answer with the list as it is written", "reply", LMMS,
          "mmmu", as_list),
    Known("spaces around a letter", "lmms-eval removes them before the official reader, which does not", "reply", LMMS,
          "mmmu", lambda case: case.theirs == case.mine(case.said.strip())),
    Known("another reader", "no variant is lmms-eval's (a letter anywhere, 'a' is none); letters alone are equal",
          "reply", LMMS, "mmbench,realworldqa",
          lambda case: bool(case.sample and case.sample.truth["options"]) and case.name != "letter"),
    Known("another reader", "no variant is VLMEvalKit's; letters alone are equal", "reply", KIT, "mmmu",
          lambda case: case.name != "letter"),
    Known("yes ratio", "lmms-eval takes it from the right answers; here it is that of the replies", "total", LMMS,
          "pope", lambda case: case.name.endswith("yes ratio")),
    Known("other words", "all prompts are lmms-eval's, VLMEvalKit words its own", "prompt", KIT, CHOICES, worded),
    Known("other words", "all prompts are lmms-eval's, VLMEvalKit asks for a word or phrase", "prompt", KIT, "chartqa",
          lambda case: case.theirs == case.doc["question"] + SHORT_ANSWER),
    Known("spaces around a question", "removed here as lmms-eval does", "prompt", KIT, "pope,mme,ocrbench",
          lambda case: case.ours == case.theirs.strip()),
    Known("an empty hint", "lmms-eval leaves its space", "prompt", LMMS, "mmbench",
          lambda case: case.doc["hint"] == "" and case.theirs == f" {case.ours}"),
    Known("a hint 'nan'", "is none here; lmms-eval tells it where it stands in the file", "prompt", LMMS, "scienceqa",
          lambda case: case.doc["hint"] == "nan" and case.theirs == f"Context: nan\n{case.ours}"),
    Known("an English line", "lmms-eval 0.7.3 puts the English set's line above the Chinese set's options; also tells "
          "the hint 'nan'", "prompt", LMMS, "mmbench cn", in_english),
    Known("shorter", "128 tokens are room for a letter and more; benchmark.max_new_tokens", "limit", LMMS,
          "mmbench,mmbench cn", lambda case: case.ours == 128),
    Known("the kit sets none", "its models' own default", "limit", LMMS, "textvqa", lambda case: case.theirs is None),
)  # fmt: skip

# -- comparing --


@dataclass
class Sheet:
    """One file under one variant: our samples and the kit's rows, beside each other. agreed: of each sample, replies
    that both sides score alike, with our score."""

    bench: Table
    usual: Table  # with our defaults
    docs: list[Doc]
    samples: list[Sample]
    agreed: list[list[tuple[str, float]]]

    @classmethod
    def of(cls, trial: Trial, side: Side, file: Path, own: Mapping[str, Any]) -> "Sheet":
        bench, usual = (trial.make(path=str(file), **{**more, **own}) for more in (trial.settings, {}))
        docs = side.docs(file, bench)
        kept = [at for at in range(len(bench)) if askable(bench, at)]
        return cls(bench, usual, [docs[at] for at in kept], [bench[at] for at in kept], [[] for _ in kept])

    def gold(self, at: int) -> Gold:
        truth, reference = self.samples[at].truth, self.samples[at].reference[0]
        options = truth.get("options") or {}
        if options:
            wrong = [text for letter, text in options.items() if letter != reference]
            return Gold([options[reference]] if reference else wrong, wrong, options, reference)
        accepted = truth.get("answers") or truth.get("accepted") or [reference]
        others = (sample.reference[0] for sample in self.samples)
        wrong = [one for one in dict.fromkeys(others) if one is not None and one not in accepted]
        return Gold([one for one in accepted if one] or ["yes"], wrong[:12])


def askable(bench: Table, at: int) -> bool:
    """A row without a picture is an error record of a run."""
    try:
        return bench[at] is not None
    except ValueError:
        return False


def near(one: float | None, other: float | None, exact: float) -> bool:
    return one == other or (one is not None and other is not None and abs(one - other) <= exact)


def asked(trial: Trial, side: Side, sheet: Sheet) -> Iterator[Case]:
    if trial.kit == LMMS:
        yield Case(trial, "limit", "max_new_tokens", sheet.bench.max_new_tokens, side.limit())
    for sample, doc in zip(sheet.samples, sheet.docs):
        yield Case(trial, "prompt", "text", MARK.sub("<image>", sample.turns[0]), side.prompt(doc), sample, doc)


def answered(trial: Trial, side: Side, sheet: Sheet, n: int, dice: random.Random) -> Iterator[Case]:
    """Where the kit would ask a judge nothing is compared, and totals are over all replies."""
    for at, (sample, doc) in enumerate(zip(sheet.samples, sheet.docs)):

        def mine(text: str, sample: Sample = sample) -> float | None:
            return side.ours(sample, sheet.bench.score(sample, [text]))

        def again(text: str, doc: Doc = doc) -> float | None:
            return side.score(doc, text)

        def usual(text: str, sample: Sample = sample) -> float | None:
            return sheet.usual.score(sample, [text])["correct"]

        for family, said in replies(sheet.gold(at), n if sample.reference[0] is not None else 0, dice):
            ours, theirs = mine(said), again(said)
            if ours is not None and ours != GUESSED and (theirs is None or near(theirs, ours, side.exact)):
                sheet.agreed[at].append((said, ours))
            if theirs is not None:
                yield Case(trial, "reply", family, ours, theirs, sample, doc, said, mine, again)
            if theirs is not None and theirs != GUESSED:
                yield Case(trial, "default", family, usual(said), theirs, sample, doc, said)


def summed(trial: Trial, side: Side, sheet: Sheet, dice: random.Random) -> Iterator[Case]:
    """Drawings of which more or fewer are right, over all samples that have a reply."""
    places = [at for at, said in enumerate(sheet.agreed) if said]
    for _ in range(ROUNDS):
        share, said = dice.random(), []
        for at in places:
            hits = [pair for pair in sheet.agreed[at] if pair[1] > 0.5]
            said.append(dice.choice(hits if hits and dice.random() < share else sheet.agreed[at])[0])
        scores = [sheet.bench.score(sheet.samples[at], [one]) for at, one in zip(places, said)]
        records = [
            {"sample": sheet.samples[at].id, "kind": sheet.samples[at].kind, "score": score, "parsed": score["parsed"]}
            for at, score in zip(places, scores)
        ]
        ours = sheet.bench.summary(records) | {"accuracy": average([score["correct"] for score in scores])}
        for name, theirs in side.totals([sheet.docs[at] for at in places], said, scores).items():
            yield Case(trial, "total", name, ours.get(name), theirs)


def cases(trial: Trial, side: Side, folder: Path, n: int, seed: int) -> Iterator[Case]:
    name, dice = trial.benchmark.split()[0], random.Random(f"{seed}/{trial.benchmark}/{trial.kit}")
    made = written(name, ROWS, seed, folder)[trial.kit == KIT]
    for file, own in [(made, {}), *([(DATA / name / trial.mini, trial.own)] if trial.mini else [])]:
        sheet = Sheet.of(trial, side, file, own)
        yield from asked(trial, side, sheet)
        if trial.scored:
            yield from answered(trial, side, sheet, max(n // ROWS, 1), dice)
        if trial.scored and file is made:  # the miniatures lack categories that the kits sum over
            yield from summed(trial, side, sheet, dice)


# -- the table --


@dataclass
class Outcome:
    """By what is compared; differences by their names, with their number and an example."""

    trial: Trial
    compared: Counter[str] = field(default_factory=Counter)
    equal: Counter[str] = field(default_factory=Counter)
    kinds: dict[tuple[str, str, str], list[Any]] = field(default_factory=dict)

    def note(self, case: Case, exact: float) -> None:
        same = case.ours == case.theirs if isinstance(case.ours, str) else near(case.ours, case.theirs, exact)
        self.compared[case.what] += 1
        self.equal[case.what] += same
        if not same:
            found = next((known for known in KNOWN if known.explains(case)), None)
            reason = DEFAULT if case.what == "default" else UNKNOWN if found is None else found.reason
            kind = (case.what, case.name if found is None else found.name, reason)
            self.kinds.setdefault(kind, [0, case.example])[0] += 1

    @property
    def unknown(self) -> int:
        return sum(count for (_, _, reason), (count, _) in self.kinds.items() if reason == UNKNOWN)

    def rows(self) -> Iterator[dict[str, Any]]:
        head = {"benchmark": self.trial.benchmark, "kit": self.trial.kit, "variant": self.trial.variant}
        for what, n in self.compared.items():
            yield {**head, "what": what, "compared": n, "equal": self.equal[what]}
        for (what, name, reason), (count, example) in sorted(self.kinds.items(), key=lambda kind: -kind[1][0]):
            if what != "default":
                yield {**head, "what": what, "difference": name, "count": count, "reason": reason, "example": example}
        yield from ({**head, **row} for row in self.of_default())

    def of_default(self) -> Iterator[dict[str, Any]]:
        """One row: the families of reply that are scored otherwise, the most frequent with its example."""
        found = [
            (count, name, example) for (what, name, _), (count, example) in self.kinds.items() if what == "default"
        ]
        names = ", ".join(f"{name} {count}" for count, name, _ in sorted(found, reverse=True)[:4])
        if found:
            count, example = sum(one[0] for one in found), max(found)[2]
            yield {"what": "default", "difference": names, "count": count, "reason": DEFAULT, "example": example}

    def __str__(self) -> str:
        shares = [
            f"{self.equal[what]}/{n}" if (n := self.compared[what]) else "" for what in ("prompt", "reply", "total")
        ]
        n = self.compared["default"]
        other = f"{1 - self.equal['default'] / n:.1%}" if n else ""
        line = f"{self.trial.benchmark:15}{self.trial.kit:12}{self.trial.variant:34}"
        return line + "".join(f"{share:>13}" for share in shares) + f"{other:>9}"

    def told(self) -> Iterator[str]:
        yield str(self)
        for (what, name, reason), (count, example) in self.kinds.items():
            if what != "default":
                yield f"    {what}, {name}: {count} ({reason})\n        {example}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lmms-eval", type=Path, metavar="DIR", help="lmms-eval 0.7.3, unpacked")
    parser.add_argument("--vlmevalkit", type=Path, metavar="DIR", help="a checkout of VLMEvalKit")
    parser.add_argument("--replies", type=int, default=3000, help="about so many per benchmark and kit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="BENCHMARK", default=[trial.benchmark for trial in TRIALS])
    parser.add_argument("--out", type=Path, metavar="DIR", help="writes points.csv there")
    given = parser.parse_args()
    kits: dict[str, Any] = {
        LMMS: given.lmms_eval and Lmms(given.lmms_eval),
        KIT: given.vlmevalkit and Vlm(given.vlmevalkit),
    }
    if not any(kits.values()):
        parser.error("--lmms-eval, --vlmevalkit: got neither, valid is a folder for one or both")
    quiet()
    print(f"{'benchmark':15}{'kit':12}{'variant':34}{'prompts':>13}{'replies':>13}{'totals':>13}{'default':>9}")
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for trial in (trial for trial in TRIALS if kits[trial.kit] and trial.benchmark in given.only):
            side, outcome = trial.side(kits[trial.kit]), Outcome(trial)
            for case in cases(trial, side, Path(folder) / trial.kit, given.replies, given.seed):
                outcome.note(case, side.exact)
            print("\n".join(outcome.told()), flush=True)
            outcomes.append(outcome)
    if given.out:
        save(given.out / "points.csv", outcomes)
    unknown = sum(outcome.unknown for outcome in outcomes)
    print(f"{unknown} differences without a reason")
    sys.exit(int(unknown > 0))


def quiet() -> None:
    disable_progress_bars()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


def save(file: Path, outcomes: Sequence[Outcome]) -> None:
    names = ("benchmark", "kit", "variant", "what", "compared", "equal", "difference", "count", "reason", "example")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for outcome in outcomes for row in outcome.rows())


if __name__ == "__main__":
    main()
