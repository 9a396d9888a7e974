"""What lies in a checkpoint: its folder, its small files, its weight files and the tensors they hold; loads none.

Everything that can be wrong with a path is found here, before the weights are read: a folder that is none, missing
processor files, missing or cut-off shards, an unsupported model. Knows the public file formats, not models.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mmaccel.models.family import model_types
from mmaccel.models.inputs import read_json
from mmaccel.models.pictures import LAYOUTS

EMBEDDED = {"pico": "pico", "embedded": "pico", "pico1": "pico1"}  # name → folder of mmaccel/assets
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]  # of a Hub repository; everything but the weights
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLE = ("model.safetensors", "pytorch_model.bin")
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}  # safetensors; everything else is 1


@dataclass(frozen=True)
class Stored:
    """One tensor as a safetensors header states it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * BYTES.get(self.dtype, 1)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose small files are here. `weights` is empty while they are still on the Hub."""

    folder: Path
    source: str  # what the library's from_pretrained is given for the weights
    revision: str | None  # the Hub commit, None for a folder
    config: dict[str, Any]
    weights: tuple[Path, ...]

    @property
    def safe(self) -> bool:
        return bool(self.weights) and all(file.suffix == ".safetensors" for file in self.weights)

    def tensors(self) -> Iterator[Stored]:
        for file in self.weights:
            yield from stored(file)


def checkpoint(path: str | Path, revision: str | None = None) -> Checkpoint:
    """The checkpoint at `path` (a folder, an embedded name, a Hub name), checked as far as goes without loading it."""
    folder, commit = located(path, revision)
    config = checked_config(folder)
    check_processor_files(folder)
    local = commit is None
    weights = weight_files(folder) if local else ()
    for file in weights:
        if file.suffix == ".safetensors":
            stored(file)
    return Checkpoint(folder, str(folder) if local else str(path), commit, config, weights)


def located(path: str | Path, revision: str | None) -> tuple[Path, str | None]:
    """The folder of the small files, and the Hub commit they are of."""
    if str(path) in EMBEDDED:
        folder = Path(__file__).resolve().parents[1] / "assets" / EMBEDDED[str(path)]
    else:
        folder = Path(path).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise ValueError(f"revision: got {revision!r}, but {folder} is a folder; only Hub names have revisions")
        return folder, None
    if folder.exists():
        raise ValueError(f"model path: got the file {folder}, expected the checkpoint's folder")
    if str(path) in EMBEDDED:
        raise ValueError(f"model path: the embedded model is not in this installation ({folder} is missing)")
    if not HUB_NAME.fullmatch(str(path)):
        raise ValueError(f"model path: got {str(path)!r}; valid are a folder, 'pico' or a Hub name (owner/name)")
    return downloaded(str(path), revision)


def downloaded(name: str, revision: str | None) -> tuple[Path, str]:
    from huggingface_hub import constants, snapshot_download

    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=SMALL_FILES, local_files_only=constants.HF_HUB_OFFLINE
        )
    except Exception as failed:  # the client lets its own, the HTTP library's and the system's errors through
        try:
            folder = snapshot_download(name, revision=revision, allow_patterns=SMALL_FILES, local_files_only=True)
        except Exception:
            raise ValueError(
                f"model path: got {name!r}; there is no such folder here, and as a Hub name it cannot be had: "
                f"{(str(failed) or type(failed).__name__).splitlines()[0]}"
            ) from failed
    return Path(folder), Path(folder).name


def checked_config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / "config.json")
    if not config:
        raise ValueError(f"{folder}: no config.json, so this is no checkpoint; it has {listing(folder)}")
    supported = [kind for kind in model_types() if kind in LAYOUTS]
    kind = config.get("model_type")
    if kind not in supported:
        raise ValueError(f"{folder}: config.json has model_type {kind!r}, supported are {', '.join(supported)}")
    return config


def check_processor_files(folder: Path) -> None:
    """A model without its processor is the usual half-copied checkpoint: say all that is missing at once."""
    have = {file.name for file in folder.iterdir()}
    nested = "image_processor" in read_json(folder / "processor_config.json")
    missing = []
    if "preprocessor_config.json" not in have and not nested:
        missing.append("preprocessor_config.json (or processor_config.json with an image_processor)")
    if not (have & {"tokenizer.json", "tokenizer.model"} or {"vocab.json", "merges.txt"} <= have):
        missing.append("tokenizer.json (or tokenizer.model, or vocab.json with merges.txt)")
    if "tokenizer_config.json" not in have:
        missing.append("tokenizer_config.json")
    if missing:
        raise ValueError(f"{folder}: the model's processor is missing: {'; '.join(missing)}. It has {listing(folder)}")


def weight_files(folder: Path) -> tuple[Path, ...]:
    """As the library picks them: safetensors before pickles, a single file before shards."""
    for single, index in zip(SINGLE, INDEXES):
        if (folder / single).is_file():
            return (folder / single,)
        if (folder / index).is_file():
            names = sorted(set(read_json(folder / index)["weight_map"].values()))
            if missing := [name for name in names if not (folder / name).is_file()]:
                raise ValueError(f"{folder}: {index} names {len(names)} files, missing are {', '.join(missing)}")
            return tuple(folder / name for name in names)
    expected = ", ".join((*SINGLE, *INDEXES))
    raise ValueError(f"{folder}: no weights; expected one of {expected}. It has {listing(folder)}")


def stored(file: Path) -> list[Stored]:
    """The tensors of one safetensors file, from its header; raises where the file is cut off or is none."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > size - 8:
            raise ValueError(f"{file}: {size} bytes, not a whole safetensors file (cut off, or a Git LFS pointer)")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if end > size:
        raise ValueError(f"{file}: {size} bytes, its header promises {end}: the file is cut off")
    return [Stored(name, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()]


def listing(folder: Path) -> str:
    names = sorted(file.name for file in folder.iterdir())
    return ", ".join(names[:12] + ["…"] * (len(names) > 12)) or "nothing"
