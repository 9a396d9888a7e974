"""The run folder: records.jsonl (one flushed line per point, sample and turn), config, provenance, points, summary.

Knows the contract's keys, how a killed run is picked up again, and where a sample's pictures lie. Does not know what
the numbers mean: measure/stats.py reads them, report/ and measure/tracker.py show them.
"""

import csv
import hashlib
import io
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

try:  # a second writer of one folder is refused where the system has advisory locks
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

Key = tuple[str, str, int]  # (point, sample, turn)

# None: the inner keys are free (a benchmark's own scores, what is known of a picture).
RECORD_KEYS: dict[str, frozenset[str] | None] = {
    **dict.fromkeys(("point", "sample", "turn", "benchmark", "kind", "question", "prediction", "ids", "finish")),
    **dict.fromkeys(("reference", "parsed", "score", "kv_fraction", "mac_fraction", "step_ms", "ttft_ms", "tpot_ms")),
    **dict.fromkeys(("e2e_ms", "image", "prompt_hash", "processor_hash", "error")),
    "tokens": frozenset({"prompt", "visual", "kept", "mean_visual", "generated"}),
    "stages_ms": frozenset({"preprocess", "vision", "prune", "prefill", "draft", "verify", "decode"}),
    "memory_mb": frozenset({"weights", "kv", "vision_cache", "peak"}),
    "spec": frozenset(
        {"steps", "drafted", "accepted", "emitted", "nodes", "accepted_by_depth", "entropy", "laws", "looked", "said"}
    ),
    "evidence": frozenset({"tokens", "kept_fraction"}),
}
POINT_COLUMNS: tuple[str, ...] = (
    "point", "pruner", "ratio", "draft", "quantization", "n", "accuracy", "accuracy_ci", "delta", "delta_ci",
    "parsed_rate", "evidence_kept", "tau", "alpha", "entropy", "ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99",
    "ttft_jitter", "itl_ms_p50", "itl_ms_p99", "tpot_ms_p50", "tokens_per_s", "e2e_ms_p50", "e2e_ms_p99",
    "speedup_e2e", "speedup_e2e_ci", "speedup_prefill", "kept_fraction", "mean_visual", "kv_fraction",
    "mac_fraction", "peak_mb", "net_slower", "lost", "gained", "mcnemar_p", "errors",
)

# Top-level config keys that change no measured value, so a resumed run may differ in them.
HARMLESS = frozenset({"tracker", "resume", "output", "debug", "hydra", "run", "wandb"})
# Provenance that decides what is measured: a resumed run may not differ in it. Another commit is noted, not refused.
SAME_FACTS = (
    "weights", "dtype", "attention", "device.type", "device.name", "threads", "benchmark", "processor",
    "versions.mmaccel", "versions.torch", "versions.transformers",
)  # fmt: skip


class RunFolder:
    """One run's folder. `create` and `resume` open it for writing, `open` for reading only (and repairs nothing)."""

    def __init__(self, path: str | Path, *, writable: bool = False) -> None:
        self.path = Path(path)
        self._descriptor: int | None = None
        self._done: set[Key] = set()
        if writable:
            self._open_for_append()

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> "RunFolder":
        path = Path(path)
        if (path / "records.jsonl").exists():
            raise FileExistsError(f"{path} already holds a run; continue it with resume={path} or choose another one")
        (path / "images").mkdir(parents=True, exist_ok=True)
        named = {"run": uuid.uuid4().hex[:12], **plain(provenance)}  # a name that survives copying the folder
        write_atomic(path / "provenance.json", json.dumps(named, indent=2))
        # last: what has a config.yaml can be resumed, and must know what it was started with
        write_atomic(path / "config.yaml", yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True))
        return cls(path, writable=True)

    @classmethod
    def resume(
        cls, path: str | Path, config: Mapping[str, Any], provenance: Mapping[str, Any] | None = None
    ) -> "RunFolder":
        """Continue a killed run; a changed config is refused, key by key, and so is another model, device or library.

        `provenance` is noted under "resumed".
        """
        path = Path(path)
        cls.check_config(path, config)
        moved = changed_facts(first_facts(path), provenance or {}, SAME_FACTS)
        if moved:
            lines = "\n".join(f"  {key}: was {old!r}, now {new!r}" for key, (old, new) in moved.items())
            raise ValueError(f"resume: not what {path} was measured with:\n{lines}\nstart a new run, or go back to it")
        (path / "images").mkdir(exist_ok=True)
        folder = cls(path, writable=True)
        if provenance is not None:
            folder._note_resumed(provenance)
        return folder

    @classmethod
    def check_config(cls, path: str | Path, config: Mapping[str, Any]) -> None:
        """Raises where `path` cannot be gone on with under this configuration; needs no model."""
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"resume: {path} is no run folder (it has no config.yaml)")
        changed = changed_keys(yaml.safe_load((path / "config.yaml").read_text()) or {}, config)
        if changed:
            lines = "\n".join(f"  {key}: was {old!r}, now {new!r}" for key, (old, new) in changed.items())
            command = first_facts(path).get("command")
            how = f"it was started with\n  {command}\nthe same with resume={path} goes on" if command else ""
            raise ValueError(
                f"resume: the config changed since {path} was started:\n{lines}\n"
                f"start a new run, or undo the change (only {', '.join(sorted(HARMLESS))} may differ)"
                + (f"; {how}" if how else "")
            )

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        path = Path(path)
        if not (path / "config.yaml").is_file() and not (path / "records.jsonl").is_file():
            raise FileNotFoundError(f"{path} is no run folder (neither config.yaml nor records.jsonl)")
        return cls(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """One line, on the disk when this returns. Raises for an unknown key and for a record that is already there."""
        if self._descriptor is None:
            raise ValueError(f"{self.path} was opened for reading; use RunFolder.create or RunFolder.resume to append")
        full = checked(record)
        key = key_of(full)
        if key in self._done:
            raise ValueError(f"record (point, sample, turn) = {key} is already in {self.path / 'records.jsonl'}")
        line = (json.dumps(full, allow_nan=False) + "\n").encode()  # ASCII: no U+2028, no lone surrogate on the disk
        size = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, size)  # a full disk must not leave half a line before the next record
            raise
        self._done.add(key)

    def records(self) -> list[dict[str, Any]]:
        """All whole records. The writer cuts a torn last line off the file; a reader only leaves it out."""
        if self._descriptor is not None:
            repair(self.path / "records.jsonl")
        return read_records(self.path / "records.jsonl")

    def done(self) -> set[Key]:
        return set(self._done) if self._descriptor is not None else {key_of(record) for record in self.records()}

    def picture(self, sample: str, point: str | None = None) -> Path:
        """Where a sample's picture lies (or, with `point`, its survival map): a safe name whatever the ids are."""
        return self.path / "images" / picture_name(sample, point)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_for_append(self) -> None:
        file = self.path / "records.jsonl"
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if fcntl is not None:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the system when we are killed
            except BlockingIOError:
                self.close()
                raise RuntimeError(f"another process is writing {file}; wait for it or choose another folder") from None
            except OSError:
                pass  # a file system without locks
        repair(file)
        self._done = {key_of(record) for record in read_records(file)}

    def _note_resumed(self, provenance: Mapping[str, Any]) -> None:
        first = first_facts(self.path)
        first.setdefault("resumed", []).append(plain(provenance))
        write_atomic(self.path / "provenance.json", json.dumps(first, indent=2))


def key_of(record: Mapping[str, Any]) -> Key:
    return (record["point"], record["sample"], record["turn"])


def checked(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with every key of the contract in its order; None where nothing was measured."""
    full = plain(record)
    unknown = [key for key in full if key not in RECORD_KEYS]
    for key, inner in RECORD_KEYS.items():
        value = full.get(key)
        if inner is not None and value is not None:
            if not isinstance(value, dict):
                raise ValueError(f"record key {key!r}: got {value!r}, expected a dict with keys {sorted(inner)}")
            unknown += [f"{key}.{name}" for name in value if name not in inner]
    if unknown:
        valid = [f"{key}{{{', '.join(sorted(inner))}}}" if inner else key for key, inner in RECORD_KEYS.items()]
        raise ValueError(f"record: unknown keys {unknown}; valid are {', '.join(valid)}")
    for key, kind in (("point", str), ("sample", str), ("turn", int)):
        if not isinstance(full.get(key), kind):
            raise ValueError(f"record key {key!r}: got {full.get(key)!r}, expected {kind.__name__}")
    return {key: full.get(key) for key in RECORD_KEYS}


def plain(value: Any) -> Any:
    """JSON's types only: tuples and arrays become lists, numpy and torch scalars numbers, NaN and inf None."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if hasattr(value, "tolist"):  # numpy and torch, arrays and scalars
        return plain(value.tolist())
    return str(value)


def read_records(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    lines = file.read_bytes().split(b"\n")
    whole = lines[:-1] if parsed(lines[-1]) is None else lines  # what follows the last newline is torn, or whole
    records = []
    for number, line in enumerate(whole, 1):
        record = parsed(line)
        if record is not None:
            records.append(record)
        elif number < len(whole):
            raise ValueError(f"{file}, line {number} is no record: {line[:80]!r}; the file was damaged after writing")
    return records


def repair(file: Path) -> None:
    """End the file with a whole line: complete one that only lacks its newline, cut off one that is torn."""
    data = file.read_bytes()
    body, _, tail = data.rpartition(b"\n")
    if tail:
        if parsed(tail) is not None:
            with open(file, "ab") as stream:
                stream.write(b"\n")
            return
        os.truncate(file, len(body) + 1 if body else 0)
    elif body and parsed(body.rpartition(b"\n")[2]) is None:  # a power cut may leave zeros that end in a newline
        os.truncate(file, len(body.rpartition(b"\n")[0]) + 1 if b"\n" in body else 0)


def parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and {"point", "sample", "turn"} <= set(record) else None


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ → (old, new); absent is shown as None. Harmless top-level keys are left out."""
    before, after = (dict(flat(without_idle(plain(tree)))) for tree in (old, new))
    return {
        key: (before.get(key), after.get(key))
        for key in dict.fromkeys([*before, *after])
        if key.split(".")[0] not in HARMLESS and before.get(key) != after.get(key)  # null = not there
    }


def without_idle(tree: dict[str, Any]) -> dict[str, Any]:
    """A configuration without an input gate that is off: it changes nothing, and older runs have none."""
    gate = tree.get("quality")
    off = isinstance(gate, dict) and gate.get("action") == "off"
    return {key: value for key, value in tree.items() if not (key == "quality" and off)}


def first_facts(folder: str | Path) -> dict[str, Any]:
    """The provenance a run was started with, {} where there is none."""
    file = Path(folder) / "provenance.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def changed_facts(
    old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """Dotted keys at or under `names` that both know and that differ → (old, new)."""
    before, after = dict(flat(plain(old))), dict(flat(plain(new)))
    return {
        key: (before[key], after[key])
        for key in before
        if key in after and before[key] != after[key] and any(f"{key}.".startswith(f"{name}.") for name in names)
    }


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def picture_name(sample: str, point: str | None = None) -> str:
    """`<words of the sample>-<hash>[--<words of the point>-<hash>].png`; the hash keeps odd names apart."""
    return "--".join(safe_name(part) for part in (sample, point) if part is not None) + ".png"


def safe_name(text: str) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:40] or "x"
    return f"{words}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


def write_points(
    folder: "RunFolder | str | Path", rows: Sequence[Mapping[str, Any]], extra: Mapping[str, Any] | None = None
) -> None:
    """points.csv (the contract's columns) and summary.json (the same rows with all they hold, and `extra`)."""
    path = folder.path if isinstance(folder, RunFolder) else Path(folder)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(POINT_COLUMNS)
    writer.writerows([cell(row.get(column)) for column in POINT_COLUMNS] for row in rows)
    write_atomic(path / "points.csv", text.getvalue())
    baseline = next((row["point"] for row in rows if row.get("baseline")), None)
    summary = {**(extra or {}), "baseline": baseline, "points": list(rows)}
    write_atomic(path / "summary.json", json.dumps(plain(summary), indent=1))


def cell(value: Any) -> str:
    """Empty where nothing was measured; an interval as a JSON list."""
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, list):
        return "[" + ", ".join(cell(inner) for inner in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_atomic(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8", errors="replace") as stream:  # a reply may hold a lone surrogate
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
