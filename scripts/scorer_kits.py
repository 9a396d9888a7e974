"""The kits' own functions behind one face, imported from copies that the user names, for scripts/scorer_parity.py.

Knows lmms-eval 0.7.3 and VLMEvalKit: which function of theirs asks, scores and sums a benchmark. Does not know what is
compared. Nothing is changed in them but judges (never called), files that they would write, and the guesses of MMMU.
"""

import ast
import contextlib
import copy
import importlib
import importlib.util
import io
import os
import re
import sys
import types
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import yaml

from mmaccel.benchmarks.base import Sample
from mmaccel.benchmarks.scienceqa import SUBJECTS
from mmaccel.benchmarks.table import Table

Doc = dict[str, Any]
Totals = dict[str, float]
MARK = re.compile(r"<image \d+>")
VLM_SCORERS = ("vqa_eval", "yorn", "multiple_choice")
GUESSED = -1.0  # the score of a reply that MMMU's official script guesses about


# -- the kits --


def bare(name: str, folder: Path) -> types.ModuleType:
    """A package of which only the submodules that are asked for are run."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    return module


def absent(*names: str, **known: Any) -> None:
    """Empty stand-ins for modules that are not installed. known: what is asked of one all the same."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = mock.MagicMock(__name__=name, **known)


def checked(folder: Path, wanted: str, option: str) -> Path:
    if not (folder / wanted).exists():
        raise FileNotFoundError(f"{option}: {folder} has no {wanted}, valid is an unpacked copy of the kit")
    return folder.resolve()


class Tasks(yaml.SafeLoader):
    """lmms-eval's yamls, in which `!function module.name` stands for a function."""


Tasks.add_constructor("!function", lambda loader, node: str(node.value))


class Lmms:
    """lmms-eval from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = checked(folder, "lmms_eval/tasks", "--lmms-eval")
        absent("loguru", "sacrebleu", "evaluate")
        for package in ("", ".api", ".filters", ".tasks", ".tasks._task_utils"):
            bare(f"lmms_eval{package}", self.folder / "lmms_eval" / package[1:].replace(".", "/"))
        for unused in ("verifiers", "verifiers.openai", "api.instance"):
            sys.modules[f"lmms_eval.{unused}"] = mock.MagicMock()
        as_it_is = lambda *_, **__: lambda function: function  # noqa: E731 two decorators that would register
        known = dict(register_metric=as_it_is, register_aggregation=as_it_is)
        sys.modules["lmms_eval.api.registry"] = mock.MagicMock(**known)
        self.metrics: Any = importlib.import_module("lmms_eval.api.metrics")

    def module(self, task: str, name: str = "utils") -> Any:
        package = f"lmms_eval.tasks.{task}"
        if package not in sys.modules:
            bare(package, self.folder / "lmms_eval/tasks" / task)
        return importlib.import_module(f"{package}.{name}")

    def task(self, task: str, file: str) -> dict[str, Any]:
        place = self.folder / "lmms_eval/tasks" / task
        found = yaml.load((place / file).read_text(encoding="utf-8"), Tasks)
        return (self.task(task, found["include"]) if "include" in found else {}) | found


class Vlm:
    """VLMEvalKit from a folder; its modules are attributes."""

    def __init__(self, folder: Path) -> None:
        root = checked(folder, "vlmeval/dataset/utils", "--vlmevalkit") / "vlmeval"
        absent("sty", "tabulate", "portalocker")
        absent("validators", url=lambda _: False)  # whether a table's name is an address
        bare("vlmeval", root)
        bare("vlmeval.dataset", root / "dataset")
        utils: Any = bare("vlmeval.dataset.utils", root / "dataset/utils")
        utils.DEBUG_MESSAGE, utils.build_judge = "", None
        for name in ("image_vqa", "image_mcq", "image_yorn", *(f"utils.{name}" for name in VLM_SCORERS)):
            importlib.import_module(f"vlmeval.dataset.{name}")
        self.load: Any = sys.modules["vlmeval.smp"].load

    def __getattr__(self, name: str) -> Any:
        known = (f"vlmeval.dataset.utils.{name}", f"vlmeval.dataset.{name}")
        return next(sys.modules[full] for full in known if full in sys.modules)

    @property
    def sets(self) -> list[Any]:
        return [self.image_vqa, self.image_mcq, self.image_yorn]


# -- one benchmark of one kit --


class Side(ABC):
    """docs: what the kit is given of each of our samples, from the same file."""

    exact = 1e-9  # so near two equal numbers are

    @abstractmethod
    def docs(self, file: Path, bench: Table) -> list[Doc]: ...

    @abstractmethod
    def prompt(self, doc: Doc) -> str: ...

    def limit(self) -> int | None:
        """Tokens of a reply, where the kit sets them by benchmark."""
        return None

    @abstractmethod
    def score(self, doc: Doc, said: str) -> float | None:
        """None where the kit would ask a judge."""

    @abstractmethod
    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        """In our names. ours: our score of every reply, for a kit that leaves the reading to a judge."""

    def ours(self, sample: Sample, score: Mapping[str, Any]) -> float | None:
        return score["correct"]


@dataclass
class LmmsSide(Side):
    """A task of lmms-eval. headline: our name of the mean."""

    kit: Lmms
    task: str
    file: str
    headline: str = "accuracy"

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.kit.task(self.task, self.file)

    def function(self, key: str) -> Any:
        module, _, name = self.config[key].partition(".")
        return getattr(self.kit.module(self.task, module), name)

    def docs(self, file: Path, bench: Table) -> list[Doc]:
        return [dict(bench.rows[at]) for at in bench.order]

    def prompt(self, doc: Doc) -> str:
        text = self.function("doc_to_text")(copy.deepcopy(doc), self.config["lmms_eval_specific_kwargs"]["default"])
        return MARK.sub("<image>", text)

    def limit(self) -> int | None:
        return self.config["generation_kwargs"].get("max_new_tokens")

    def results(self, doc: Doc, said: str) -> dict[str, Any]:
        """As its task class does: replies lose the spaces around them, and a task without a function of its own is
        scored by the metric that its yaml names."""
        if "process_results" in self.config:
            return self.function("process_results")(copy.deepcopy(doc), [said.strip()])
        target, metric = doc[self.config["doc_to_target"]], self.config["metric_list"][0]
        more = {key: value for key, value in metric.items() if key.startswith("ignore")}
        name = {"exact_match": "exact_match_hf_evaluate"}.get(metric["metric"], metric["metric"])
        return getattr(self.kit.metrics, name)(
            references=target if isinstance(target, list) else [target], predictions=[said.strip()], **more
        )

    def score(self, doc: Doc, said: str) -> float | None:
        return float(next(iter(self.results(doc, said).values())))

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        found = [self.results(doc, one) for doc, one in zip(docs, said)]
        names = dict.fromkeys(name for one in found for name, value in one.items() if not isinstance(value, dict))
        means = {name: average([float(one[name]) for one in found if name in one]) for name in names}
        shown = {"relaxed_human_split": "human", "relaxed_augmented_split": "augmented"}
        return {shown.get(name, self.headline): value for name, value in means.items()}


class LmmsPope(LmmsSide):
    def score(self, doc: Doc, said: str) -> float | None:
        return self.results(doc, said)["pope_accuracy"]["score"]

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        found = [self.results(doc, one)["pope_accuracy"] for doc, one in zip(docs, said)]
        module, kinds = self.kit.module(self.task), sorted({doc["category"] for doc in docs})
        totals = {"pooled F1": module.pope_aggregate_f1_score(found), "accuracy": module.pope_aggregate_accuracy(found)}
        named = {
            "accuracy": "accuracy",
            "precision": "precision",
            "recall": "recall",
            "F1": "f1_score",
            "yes ratio": "yes_ratio",
        }
        for kind in kinds:
            part = [one for doc, one in zip(docs, found) if doc["category"] == kind]
            totals |= {f"{kind} {name}": getattr(module, f"pope_aggregate_{of}")(part) for name, of in named.items()}
        return totals


class LmmsMme(LmmsSide):
    def score(self, doc: Doc, said: str) -> float | None:
        return next(iter(self.results(doc, said).values()))["score"]

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        halves: dict[str, list[Doc]] = {}
        for doc, one in zip(docs, said):
            for name, result in self.results(doc, one).items():
                halves.setdefault(name.split("_")[1], []).append(result)
        return {name: self.kit.module(self.task).mme_aggregate_results(found) for name, found in halves.items()}


class LmmsHallusion(LmmsSide):
    """Its judge is asked for the reading of a reply; totals are compared on ours: right, wrong or unclear."""

    exact = 1e-6  # of per cent with four decimals

    def score(self, doc: Doc, said: str) -> float | None:
        return None

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        module = self.kit.module(self.task)
        read = [{True: "2"}.get(one["parsed"] is None, str(int(one["parsed"] == one["answer"]))) for one in ours]
        rows = [{**doc, "read": one} for doc, one in zip(docs, read)]
        rows = module.assign_correctness(rows, correctness_entry="read")
        found = {
            "aAcc": module.get_eval_all(rows, "read"), "fAcc": module.get_eval_fig(rows),
            "qAcc": module.get_eval_pair_all(rows, "read"),
        }  # fmt: skip
        return {name: round(100 * one["correct"] / one["total"], 4) / 100 for name, one in found.items()}


class LmmsMmbench(LmmsSide):
    """Its reader without a judge (mmbench_en_dev_static)."""

    @property
    def evaluator(self) -> Any:
        return self.kit.module(self.task, "en_utils").mmbench_evaluator

    def score(self, doc: Doc, said: str) -> float | None:
        row = self.results(doc, said)["gpt_eval_score"]
        return float(self.evaluator.eval_sub_data(pd.DataFrame([row]), {doc["index"]: doc["answer"]}, static_only=True))

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        rows = [self.results(doc, one)["gpt_eval_score"] for doc, one in zip(docs, said)]
        with contextlib.redirect_stdout(io.StringIO()):
            overall, category, l2 = self.evaluator.eval_result(rows, eval_method="static")
        return (
            {"circular": overall}
            | {f"category {name}": v for name, v in category.items()}
            | {f"l2 {name}": v for name, v in l2.items()}
        )


class LmmsMmmu(LmmsSide):
    """A guess of the official script is GUESSED on both sides, and in no total."""

    exact = 1e-5  # rounded so

    def results(self, doc: Doc, said: str) -> dict[str, Any]:
        with mock.patch("random.choice", return_value="guess"):
            return super().results(doc, said)

    def score(self, doc: Doc, said: str) -> float | None:
        found = self.results(doc, said)["mmmu_acc"]
        if "guess" in found["parsed_pred"]:
            return GUESSED
        return float(self.kit.module(self.task).evaluate_mmmu([found])[1]["acc"])

    def ours(self, sample: Sample, score: Mapping[str, Any]) -> float | None:
        return GUESSED if sample.truth["options"] and score["parsed"] is None else score["correct"]

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            found = [self.results(doc, one)["mmmu_acc"] for doc, one in zip(docs, said)]
            overall = self.kit.module(self.task).mmmu_aggregate_results(found)
        by_subject = ast.literal_eval(told.getvalue())
        subjects = {f"subject {name}": one["acc"] for name, one in by_subject.items() if not name.startswith("Overall")}
        return {"overall": overall, **subjects}


class LmmsOcr(LmmsSide):
    def score(self, doc: Doc, said: str) -> float | None:
        return float(self.results(doc, said)["ocrbench_accuracy"]["score"])

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        module = self.kit.module(self.task)
        module.OCRBench_score.update(dict.fromkeys(module.OCRBench_score, 0))  # it adds up over a process
        module.generate_submission_file = lambda *_, **__: os.devnull
        found = [self.results(doc, one)["ocrbench_accuracy"] for doc, one in zip(docs, said)]
        with contextlib.redirect_stdout(io.StringIO()):
            final = module.ocrbench_aggregate_accuracy(found, None) * 1000
        counts = Counter(doc["question_type"] for doc in docs)
        return {"final score": final} | {name: module.OCRBench_score[name] / n for name, n in counts.items()}


@dataclass
class VlmSide(Side):
    """A data set of VLMEvalKit. name: as the kit calls it. built: the class whose build_prompt is asked."""

    kit: Vlm
    name: str
    built: str

    def docs(self, file: Path, bench: Table) -> list[Doc]:
        table = self.kit.load(str(file))
        return [dict(table.iloc[at]) for at in bench.order]

    def prompt(self, doc: Doc) -> str:
        """Pictures in front of the text are left out, those inside of it are marks."""
        kind = next(getattr(module, self.built) for module in self.kit.sets if hasattr(module, self.built))
        made = kind.__new__(kind)
        made.dataset_name, made.meta_only, made.dump_image = self.name, False, lambda line: ["own.png"] * 7
        texts = [one["value"] for one in made.build_prompt(doc) if one["type"] == "text"]
        return "<image>".join(texts)


@dataclass
class VlmVqa(VlmSide):
    method: str = "vqa_score"
    headline: str = "overall"

    def match(self, doc: Doc, said: str) -> dict[str, Any]:
        return self.kit.vqa_eval.process_line(
            {"answer": str(doc["answer"]), "prediction": str(said)}, method=self.method
        )

    def score(self, doc: Doc, said: str) -> float | None:
        return float(self.kit.vqa_eval.hit_calculate([self.match(doc, said)], self.name)[0])

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        found = [self.match(doc, one) for doc, one in zip(docs, said)]
        totals = {self.headline: average(self.kit.vqa_eval.hit_calculate(found, self.name))}
        for split in sorted({doc["split"] for doc in docs if "split" in doc}):
            part = [one for doc, one in zip(docs, found) if doc["split"] == split]
            totals[split.removeprefix("test_")] = average(self.kit.vqa_eval.hit_calculate(part, self.name))
        return totals


class VlmYesNo(VlmSide):
    def score(self, doc: Doc, said: str) -> float | None:
        return float(self.kit.yorn.YOrN_Extraction(str(said)) == doc["answer"])

    def rated(self, rating: str, docs: Sequence[Doc], said: Sequence[str]) -> pd.DataFrame:
        table = pd.DataFrame(list(docs))
        table["extracted"] = [self.kit.yorn.YOrN_Extraction(one) for one in said]
        table["score"] = table["answer"] == table["extracted"]
        with mock.patch.object(self.kit.yorn, "load", lambda table: table):
            return getattr(self.kit.yorn, rating)(table)

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        if self.name == "POPE":
            named = {"accuracy": "acc", "precision": "precision", "recall": "recall", "F1": "Overall"}
            rows = self.rated("POPE_rating", docs, said).to_dict("records")
            each = {f"{row['split']} {name}": row[of] / 100 for row in rows for name, of in named.items()}
            return {name: v for name, v in each.items() if "Overall" not in name} | {"pooled F1": each["Overall F1"]}
        if self.name == "MME":
            found = self.rated("MME_rating", docs, said).iloc[0].to_dict()
            return {{"reasoning": "cognition"}.get(name, name): v for name, v in found.items()}
        row = self.rated("Hallusion_rating", docs, said).iloc[0]
        return {name: row[name] / 100 for name in ("aAcc", "fAcc", "qAcc")}


class VlmChoice(VlmSide):
    """Without a judge ("exact_matching")."""

    def score(self, doc: Doc, said: str) -> float | None:
        item = doc | {"prediction": str(said), "GT": doc["answer"]}
        return float(self.kit.multiple_choice.eval_vanilla(None, item, self.name)["hit"])

    def hits(self, docs: Sequence[Doc], said: Sequence[str]) -> pd.DataFrame:
        table = pd.DataFrame(list(docs))
        table["prediction"] = list(said)
        if "MMBench" not in self.name:
            return table.assign(hit=[self.score(doc, one) for doc, one in zip(docs, said)])
        kept: dict[str, Any] = {}  # what it would write to files
        module = self.kit.multiple_choice
        with mock.patch.multiple(module, dump=lambda data, name: kept.update({name: data}), load=kept.get):
            return module.mcq_circular_eval(None, table, table, 1, "result", self.name)

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        module, hits = self.kit.multiple_choice, self.hits(docs, said)
        found = module.report_acc(hits).iloc[0].to_dict()
        full = {short: name for name, short in module.MMB_abbrs.items()}
        headline = "circular" if "MMBench" in self.name else "accuracy"
        totals = {headline: found.pop("Overall")}
        word = {"MMBench": "category", "ScienceQA": "subject", "MMMU": "subject"}.get(self.name.split("_")[0])
        l2 = set(hits.get("l2-category", ()))
        for name, value in found.items():
            if name != "split" and word:
                name = full.get(name, name)
                totals[f"{'l2' if name in l2 else word} {SUBJECTS.get(name, name)}"] = value
        return totals


class VlmOcr(VlmSide):
    def counted(self, docs: Sequence[Doc], said: Sequence[str]) -> dict[str, float]:
        table = pd.DataFrame(list(docs)).assign(prediction=list(said))
        module = self.kit.image_vqa
        quiet: dict[str, Any] = dict(
            load=lambda data: data, dump=lambda *_: None, get_intermediate_file_path=lambda *_: "", tqdm=lambda one: one
        )
        with mock.patch.multiple(module, **quiet):
            return module.OCRBench.evaluate(table)

    def score(self, doc: Doc, said: str) -> float | None:
        return float(self.counted([doc], [said])["Final Score"])

    def totals(self, docs: Sequence[Doc], said: Sequence[str], ours: Sequence[Doc]) -> Totals:
        found, counts = self.counted(docs, said), Counter(doc["category"] for doc in docs)
        shares = {name: found[name] / counts[name] for name in found.keys() & counts.keys()}
        return {"final score": found["Final Score"], **shares}


def average(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))
