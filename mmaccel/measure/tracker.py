"""Weights & Biases from a run folder: one run per point, grouped, and one aggregate run with curves, table and Pareto.

Always written offline first, by a child process with a deadline, from records.jsonl, summary.json and images/ alone:
the run itself, a resumed run and a later push go the same way. Online means that `wandb sync` then runs on those
folders, again with a deadline. So a wrong key, a missing network or a broken W&B cannot stop or slow a measurement: it
costs a warning, and the line that syncs later.

Pushing twice does not double: run ids derive from the name in provenance.json, so the same point is the same W&B run.
Unchanged records are not written again; changed ones replace our own folders of the same ids under wandb/, and syncing
them again writes the same runs. W&B's log holds absolute paths of the tables' pictures, which is why they are staged
inside the run folder, and why a folder that was moved is written anew by its next push: push, then sync.

What travels along as artifacts stands in measure/artifacts.py.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from mmaccel.measure.artifacts import draft_head, run_folder
from mmaccel.measure.record import POINT_COLUMNS, RunFolder, picture_name, write_atomic

MODES = ("offline", "online", "auto")
WRITE_SECONDS = 600
SYNC_SECONDS = 180.0
LAYOUT = 2  # of what is written: a folder that was pushed in an older one is written anew by its next push
LOST = ("sender: failed", "runfiles:", "file transfer:", "filestream:")  # errors of the sync: it did not all arrive
DRAFTED = ("tau", "alpha", "speedup", "break_even", "identical", "entropy", "tokens")
TRAINING = "log.jsonl"  # what a training measured, a line per step; such a folder has no records
CURVES = ("accuracy", "speedup_e2e", "kv_fraction", "mac_fraction", "tau")


@dataclass(frozen=True)
class Wandb:
    """conf/tracker/wandb.yaml. mode: offline, online, or auto (online when a key is set). seconds: for a sync."""

    mode: str = "offline"
    project: str = "mmaccel"
    entity: str | None = None
    sample_limit: int = 32
    seconds: float = SYNC_SECONDS

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"tracker.mode: got {self.mode!r}, valid are {list(MODES)}")
        if isinstance(self.seconds, bool) or not self.seconds > 0:
            raise ValueError(f"tracker.seconds: got {self.seconds!r}, valid are numbers above 0")

    def push(self, folder: str | Path) -> str | None:
        return push(Path(folder), **asdict(self))


@dataclass(frozen=True)
class NoTracker:
    """conf/tracker/off.yaml."""

    def push(self, folder: str | Path) -> str | None:
        return None


def push(
    folder: Path,
    *,
    mode: str = "offline",
    project: str = "mmaccel",
    entity: str | None = None,
    sample_limit: int = 32,
    seconds: float = SYNC_SECONDS,
) -> str | None:
    """The `wandb sync …` line for what is not on the server yet; None when all of it is, or nothing could be written.

    Raises only for a mode that does not exist; whatever else goes wrong is a warning.
    """
    if mode not in MODES:
        raise ValueError(f"tracker mode: got {mode!r}, valid are {list(MODES)}")
    try:
        runs = written(Path(folder), project, entity, sample_limit)
        online = mode == "online" or (mode == "auto" and bool(os.environ.get("WANDB_API_KEY")))
        if online and runs:
            runs = synced(runs, seconds)
        return sync_line(runs) if runs else None
    except Exception as error:  # the measurement is done and on the disk; its report to W&B is not worth a crash
        warnings.warn(f"W&B: nothing was written for {folder}: {error}", stacklevel=2)
        return None


def sync_line(runs: Sequence[Path]) -> str:
    """A glob where it names exactly these runs, else each of them."""
    home = runs[0].parent
    if set(home.glob("offline-run-*")) == set(runs):
        return f"wandb sync {shlex.quote(str(home))}/offline-run-*"
    return shlex.join(["wandb", "sync", *map(str, runs)])


def written(folder: Path, project: str, entity: str | None, sample_limit: int) -> list[Path]:
    """The offline run folders of this run folder, written by a child process unless they are up to date."""
    digest = content_digest(folder, str(folder.resolve()), project, entity, sample_limit)
    before = pushed(folder)
    runs = [folder / "wandb" / name for name in before.get("runs", [])]
    if before.get("digest") == digest and all(run.is_dir() for run in runs):
        return [run for run in runs if not is_synced(run)]
    command = [sys.executable, "-m", "mmaccel.measure.tracker", str(folder), "--project", project,
               "--sample-limit", str(sample_limit), *(["--entity", entity] if entity else [])]  # fmt: skip
    offline = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    home = folder.resolve() / "wandb"
    offline |= {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
    offline |= {"WANDB_DATA_DIR": str(home / "staged"), "WANDB_CACHE_DIR": str(home / "cache")}
    code, output = run_child(command, offline, WRITE_SECONDS)
    if code != 0:
        raise RuntimeError(f"the writer ended with {code}: {' '.join(output.split()[-60:])}")
    found = json.loads(output.strip().splitlines()[-1])
    found |= {"digest": digest, "project": project, "entity": entity}
    write_atomic(folder / "wandb" / "pushed.json", json.dumps(found))
    return [folder / "wandb" / name for name in found["runs"]]


def pushed(folder: Path) -> dict[str, Any]:
    """What the last push wrote and where to: runs (names under wandb/), group, project, entity, digest; {} = none."""
    marker = folder / "wandb" / "pushed.json"
    return json.loads(marker.read_text()) if marker.is_file() else {}


def arrived(folder: Path) -> bool:
    """Whether all that the last push wrote is on the server."""
    runs = pushed(folder).get("runs") or []
    return bool(runs) and all(is_synced(folder / "wandb" / name) for name in runs)


def content_digest(folder: Path, *settings: object) -> str:
    digest = hashlib.sha256(repr((LAYOUT, *settings)).encode())
    for name in ("config.yaml", "records.jsonl", "summary.json", "run.yaml", TRAINING, "held_out.json"):
        file = folder / name
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()


def synced(runs: Sequence[Path], seconds: float) -> list[Path]:
    """Sync, within the deadline; the runs that are still only here, or did not arrive whole."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        (Path(home) / "wandb").mkdir()
        environment = os.environ | {"WANDB_MODE": "online", "WANDB_SILENT": "false", "WANDB_ERROR_REPORTING": "false"}
        environment["WANDB_DIR"] = home  # its logs; else they land where this was started
        code, output = run_child([sys.executable, "-m", "wandb", "sync", *map(str, runs)], environment, seconds)
        lost = losses(Path(home))
    for run in runs:
        for mark in [*run.glob("*.synced"), *run.glob("*.syncstate")] if run.name in lost else []:
            mark.unlink()
    left = [run for run in runs if not is_synced(run)]
    if left:
        why = "no answer in time" if code is None else next(iter(lost.values()), reason(output))
        told = f"W&B: {len(left)} of {len(runs)} runs stay offline ({why}); later: {sync_line(left)}"
        warnings.warn(told, stacklevel=4)
    return left


def reason(output: str) -> str:
    """The line of a sync that says what went wrong, of an output that lists runs."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower() and "logs at:" not in line]
    return (wrong or lines or ["it said nothing"])[-1]


def losses(home: Path) -> dict[str, str]:
    """Run folder → why a part of it did not arrive. wandb marks such a run as synced and says so in its log alone."""
    found: dict[str, str] = {}
    for log in home.rglob("debug-sync*.log"):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if said.get("level") == "ERROR" and said.get("msg", "").startswith(LOST) and said.get("sync_path"):
                found.setdefault(Path(said["sync_path"]).parent.name, f"{said['msg']} {said.get('error', '')}".strip())
    return found


def is_synced(run: Path) -> bool:
    """The marker `wandb sync` leaves."""
    return any(run.glob("*.wandb.synced"))


def run_child(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int | None, str]:
    """(exit status, output); past the deadline the whole process group is ended and the status is None."""
    child = subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=seconds)
        return child.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # wandb's own service process included
        return None, child.communicate()[0]


# ---- what follows runs in the child -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A run folder, read."""

    folder: Path
    config: dict[str, Any]
    run: str
    group: str
    rows: list[dict[str, Any]]
    records: dict[str, list[dict[str, Any]]]

    @classmethod
    def read(cls, folder: Path) -> "Source":
        provenance = json.loads((folder / "provenance.json").read_text())
        config = yaml.safe_load((folder / "config.yaml").read_text()) or {}
        rows = json.loads((folder / "summary.json").read_text())["points"]
        records: dict[str, list[dict[str, Any]]] = {row["point"]: [] for row in rows}
        for record in RunFolder.open(folder).records():
            records.setdefault(record["point"], []).append(record)
        return cls.of(folder, config, provenance, rows, records)

    @classmethod
    def training(cls, folder: Path) -> "Source":
        """The folder of job=train."""
        provenance = json.loads((folder / "provenance.json").read_text())
        return cls.of(folder, yaml.safe_load((folder / "run.yaml").read_text()) or {}, provenance, [], {})

    @classmethod
    def of(cls, folder: Path, config: dict[str, Any], provenance: dict[str, Any], rows: Any, records: Any) -> "Source":
        run = provenance.get("run") or hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()[:12]
        # a Report's filter is parsed from text without quoting, so a group holds no sign that would need it
        words = re.sub(r"[^\w.-]+", "-", text(folder.name) or "")
        return cls(folder, {**config, "provenance": provenance}, run, f"{words}-{run[:6]}", rows, records)

    def run_id(self, job: str, name: str) -> str:
        return f"{self.run[:8]}-{hashlib.sha256(f'{job}/{name}'.encode('utf-8', 'replace')).hexdigest()[:8]}"


def write(folder: Path, project: str, entity: str | None, sample_limit: int) -> dict[str, Any]:
    """All runs of a folder, offline; their folder names under wandb/ and their group."""
    if (folder / TRAINING).is_file():
        source = Source.training(folder)
        return {"runs": [write_training(source, project, entity)], "group": source.group}
    source = Source.read(folder)
    shutil.rmtree(folder / "wandb" / "staged", ignore_errors=True)
    for row in source.rows:
        with offline_run(source, row["point"], "point", project, entity, {"point": identity(row)}) as run:
            write_point(run, source, row, sample_limit)
    with offline_run(source, "sweep", "sweep", project, entity, {}) as run:
        write_aggregate(run, source, sample_limit)
    ids = [*[source.run_id("point", row["point"]) for row in source.rows], source.run_id("sweep", "sweep")]
    names = [next((folder / "wandb").glob(f"offline-run-*-{name}")).name for name in ids]
    return {"runs": names, "group": source.group}


def identity(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in ("point", "pruner", "ratio", "draft", "quantization")}


@contextmanager
def offline_run(
    source: Source, name: str, job: str, project: str, entity: str | None, config: Mapping[str, Any]
) -> Iterator[Any]:
    import wandb

    run_id = source.run_id(job, name)
    for old in (source.folder / "wandb").glob(f"*run-*-{run_id}"):
        shutil.rmtree(old)
    wanted: dict[str, Any] = {
        "mode": "offline", "silent": True, "console": "off", "disable_git": True, "save_code": False,
        "init_timeout": 30.0, "x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True,
        "x_save_requirements": False,
    }  # fmt: skip
    known = {key: value for key, value in wanted.items() if key in wandb.Settings.model_fields}
    run = wandb.init(
        project=project, entity=entity, group=source.group, job_type=job, name=text(name), id=run_id,
        dir=str(source.folder), config=whole({**source.config, **config}), reinit="create_new",
        settings=wandb.Settings(**known),
    )  # fmt: skip
    try:
        yield run
    finally:
        run.finish()


def write_training(source: Source, project: str, entity: str | None) -> str:
    """History: the lines of log.jsonl at their own steps. Summary: what was measured on held-out conversations."""
    lines = [json.loads(line) for line in (source.folder / TRAINING).read_text(encoding="utf-8").splitlines()]
    held = source.folder / "held_out.json"
    with offline_run(source, "training", "train", project, entity, {}) as run:
        for line in lines:
            run.log({f"train/{key}": value for key, value in line.items() if key != "step"}, step=line["step"])
        found = json.loads(held.read_text(encoding="utf-8")) if held.is_file() else {}
        depths = found.pop("accepted_by_depth", [])
        found |= {f"accepted_at_{at + 1}": share for at, share in enumerate(depths)}
        run.summary.update({f"held_out/{key}": value for key, value in found.items() if value is not None})
        if (head := draft_head(source.folder, whole(source.config))) is not None:
            run.log_artifact(head)
    return next((source.folder / "wandb").glob(f"offline-run-*-{source.run_id('train', 'training')}")).name


def write_point(run: Any, source: Source, row: Mapping[str, Any], sample_limit: int) -> None:
    """History: a row per record with the running accuracy. Summary: the row of points.csv. Table: samples."""
    records = source.records[row["point"]]
    total = scored = 0.0
    for step, record in enumerate(records):
        correct = (record.get("score") or {}).get("correct")
        if correct is not None:
            total, scored = total + correct, scored + 1
        line = {key: record.get(key) for key in ("ttft_ms", "tpot_ms", "e2e_ms", "kv_fraction", "mac_fraction")}
        line |= {"correct": correct, "running_accuracy": total / scored if scored else None}
        line |= {f"stage/{name}": ms for name, ms in (record.get("stages_ms") or {}).items()}
        run.log({key: value for key, value in line.items() if value is not None}, step=step)
    table = samples_table(source, [row["point"]], sample_limit)
    run.log({"samples": table}, step=len(records))
    run.summary.update(whole(flat_summary(row)))


def flat_summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers W&B can plot: intervals as `_low` and `_high`, kinds and stages by path; nothing unmeasured."""
    flat: dict[str, Any] = {}
    for key in (*POINT_COLUMNS, "errors", "pairs", "baseline"):
        value = row.get(key)
        if isinstance(value, (list, tuple)):
            flat |= {f"{key.removesuffix('_ci')}_low": value[0], f"{key.removesuffix('_ci')}_high": value[1]}
        elif value is not None:
            flat[key] = value
    flat |= {f"kind/{kind}/accuracy": numbers["accuracy"] for kind, numbers in (row.get("kinds") or {}).items()}
    for kind, part in drafted(row).items():
        flat |= {f"drafting/{kind}/{key}": part[key] for key in DRAFTED if part.get(key) is not None}
    return flat | {f"stage/{name}": ms for name, ms in (row.get("stages_ms") or {}).items() if ms is not None}


def drafted(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Kind → what a draft was worth there, "all" among them; {} of a point without one."""
    whole_of = row.get("drafting")
    return {**(whole_of.get("kinds") or {}), "all": whole_of} if whole_of else {}


def samples_table(source: Source, points: Sequence[str], limit: int) -> Any:
    """One row per sample's last turn: picture, question, reference, and for each point its reply and survival map."""
    import wandb

    replies = {point: {r["sample"]: r for r in source.records[point]} for point in points}
    samples = list(dict.fromkeys(r["sample"] for point in points for r in source.records[point]))[:limit]
    columns: list[str | int] = ["sample", "kind", "picture", "question", "reference"]
    for point in points:
        columns += [f"{text(point)}: {what}" for what in ("reply", "correct", "survivors")]
    table = wandb.Table(columns=columns)  # of mixed types it would print pictures as their Python names
    for sample in samples:
        found = [replies[point].get(sample) for point in points]
        first = next(record for record in found if record is not None)
        line = [text(sample), text(first.get("kind")), picture(source.folder, sample), text(first.get("question"))]
        line.append(text(first.get("reference")))
        for point, record in zip(points, found):
            reply, score = (record or {}).get("prediction"), (record or {}).get("score") or {}
            line += [text(reply), number(score.get("correct")), picture(source.folder, sample, point)]
        table.add_data(*line)
    return table


def number(value: Any) -> float | None:
    return None if value is None else float(value)


def picture(folder: Path, sample: str, point: str | None = None) -> Any:
    import wandb

    file = folder / "images" / picture_name(sample, point)
    return wandb.Image(str(file)) if file.is_file() else None


def text(value: Any) -> str | None:
    """Table cells of one type; lone surrogates would not pass W&B's UTF-8."""
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "replace").decode()


def whole(value: Any) -> Any:
    """A tree with every string passed through `text`."""
    if isinstance(value, Mapping):
        return {whole(str(key)): whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return text(value) if isinstance(value, str) else value


def write_aggregate(run: Any, source: Source, sample_limit: int) -> None:
    """Curves against measured tokens, the points table, a Pareto scatter, all points' replies side by side, figures."""
    import wandb

    run.define_metric("mean_visual")
    for name in CURVES:
        run.define_metric(f"{name}/*", step_metric="mean_visual")
    for row in sorted(source.rows, key=lambda row: row.get("mean_visual") or 0.0):
        values = {f"{name}/{series(row)}": row[name] for name in CURVES if row.get(name) is not None}
        values |= {"mean_visual": row["mean_visual"]} if row.get("mean_visual") is not None else {}
        run.log(whole(values))
    lines = [[cell_of(row.get(column)) for column in POINT_COLUMNS] for row in whole(source.rows)]
    table = wandb.Table(columns=list(POINT_COLUMNS), data=lines, allow_mixed_types=True)
    run.log({"points": table})
    run.log({"pareto": wandb.plot.scatter(table, "e2e_ms_p50", "accuracy", title="accuracy against end-to-end ms")})
    run.log({"samples": samples_table(source, [row["point"] for row in source.rows], sample_limit)})
    figures = sorted((source.folder / "images").glob("accuracy_*.png"))
    if figures:
        run.log({f"figure/{figure.stem}": wandb.Image(str(figure)) for figure in figures})
    found = {row["point"]: row.get("accuracy") for row in source.rows}
    run.summary.update({f"accuracy/{text(point)}": value for point, value in found.items() if value is not None})
    run.log_artifact(run_folder(source.folder, whole(source.config)))


def series(row: Mapping[str, Any]) -> str:
    """The curve a point stands on."""
    return " + ".join(str(row[key]) for key in ("pruner", "draft", "quantization") if row.get(key)) or row["point"]


def cell_of(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, tuple)) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a run folder's W&B runs, offline.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--project", required=True)
    parser.add_argument("--entity")
    parser.add_argument("--sample-limit", type=int, required=True)
    given = parser.parse_args()
    print("\n" + json.dumps(write(given.folder, given.project, given.entity, given.sample_limit)))


if __name__ == "__main__":
    main()
