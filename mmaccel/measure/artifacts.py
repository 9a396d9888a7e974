"""What travels to W&B beside the numbers, as artifacts: the run folder of a sweep, and the head that a training made.

A head's artifact says what it came from: data, target (path and hash of its weights), pruner. A run folder's says
which heads drafted in it, each by the hash of its weights and, where a training of ours made it, by its artifact's
name. Names derive from the run's own, so that a second push is the same version. Knows files. Does not know W&B runs.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILES = ("records.jsonl", "points.csv", "summary.json", "config.yaml", "provenance.json", "report.html")
WEIGHTS = ("model.safetensors", "medusa_lm_head.safetensors")
SHIPPED = Path(__file__).resolve().parents[1] / "assets" / "heads"


def run_folder(folder: Path, config: Mapping[str, Any]) -> Any:
    """config: of the run, with its provenance."""
    import wandb

    known = facts(config) | {"heads": {name: head(node) for name, node in drafts(config).items()}}
    artifact = wandb.Artifact(artifact_name(config.get("name") or folder.name, config), "run-folder", metadata=known)
    for name in FILES:
        if (folder / name).is_file():
            artifact.add_file(str(folder / name))  # copied: a run that is resumed before the sync changes its files
    return artifact


def draft_head(folder: Path, config: Mapping[str, Any]) -> Any | None:
    """None while a training has no checkpoint yet."""
    import wandb

    files = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not files:
        return None
    artifact = wandb.Artifact(head_name(folder), "draft-head", metadata=facts(config) | lineage(folder, config))
    artifact.add_file(str(folder / "config.json"))
    for file in files:
        artifact.add_file(str(file), policy="immutable")  # not copied: heads of real models are large
    return artifact


def facts(config: Mapping[str, Any]) -> dict[str, Any]:
    provenance = config.get("provenance") or {}
    return {key: provenance.get(key) for key in ("run", "time", "command", "git", "versions", "seed")}


def lineage(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    provenance, job = config.get("provenance") or {}, config.get("job") or {}
    target = {"path": provenance.get("model_path"), "weights": provenance.get("weights")}
    made = {"data": config.get("data"), "target": target, "pruner": config.get("pruner"), "plan": job.get("plan")}
    return made | {"head": stored(folder), "sha256": weights_hash(folder)}


def drafts(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name → node of every draft that stands beside a point of the run."""
    named = {**(config.get("heads") or {}), **(config.get("drafts") or {})}
    used = dict.fromkeys(point.get("draft") for point in config.get("points") or [])
    return {name: named.get(name) or config.get("draft") or {} for name in used if name}


def head(node: Mapping[str, Any]) -> dict[str, Any]:
    """{} of a draft without weights of its own, as prompt lookup."""
    folder = next(folders(node), None)
    if folder is None:
        return {}
    place = SHIPPED / folder if (SHIPPED / folder).is_dir() else Path(folder)
    said: dict[str, Any] = {"folder": folder, "sha256": weights_hash(place), "head": stored(place)}
    return said | ({"artifact": head_name(place)} if (place / "provenance.json").is_file() else {})


def folders(node: Any) -> Iterator[str]:
    """Of the heads in a node, a wrapped one (a gate's) included."""
    if isinstance(node, Mapping):
        if isinstance(node.get("folder"), str):
            yield node["folder"]
        for inner in node.values():
            yield from folders(inner)


def stored(folder: Path) -> dict[str, Any] | None:
    """What a head's config says under our own key: its kind, step, target, and what it was trained under."""
    file = folder / "config.json"
    return json.loads(file.read_text(encoding="utf-8")).get("mmaccel") if file.is_file() else None


def weights_hash(folder: Path) -> str | None:
    for name in WEIGHTS:
        if (folder / name).is_file():
            with open(folder / name, "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
    return None


def head_name(folder: Path) -> str:
    """Of a training's folder."""
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return artifact_name((stored(folder) or {}).get("head") or "head", {"provenance": provenance})


def artifact_name(name: str, config: Mapping[str, Any]) -> str:
    """W&B takes letters, digits and few signs."""
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:60] or "run"
    run = (config.get("provenance") or {}).get("run") or hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
    return f"{words}-{run[:8]}"
