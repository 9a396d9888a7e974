"""A sweep as markdown: the findings and the table of points, for report.md and for the blocks of a W&B Report.

Knows a run folder's summary, records and figures. Does not know W&B. Every text is escaped: a point's name or a reply
may hold what markdown would read as a link, a picture or a formula.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mmaccel.measure.record import RunFolder, first_facts, write_atomic
from mmaccel.report.headline import Finding, headline
from mmaccel.report.series import AXES, Row
from mmaccel.report.table import COLUMNS

SIGNS = re.compile(r"([\\`*_{}\[\]<>#|~$&@!^])")
LINKS = re.compile(r"(?<=:)//|\bwww\.", re.IGNORECASE)  # what a renderer makes a link of without being asked


@dataclass(frozen=True)
class Sweep:
    """A finished sweep, read: what it is called, what it was, what it found."""

    folder: Path
    title: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    rows: tuple[Row, ...]

    @classmethod
    def read(cls, folder: Path) -> "Sweep":
        file = folder / "summary.json"
        if not file.is_file():
            raise FileNotFoundError(f"{folder} has no summary.json; job=report run={folder} makes it from the records")
        rows = json.loads(file.read_text(encoding="utf-8"))["points"]
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
        known, records = first_facts(folder), RunFolder.open(folder).records()
        name = config.get("name") or folder.resolve().name
        words = [str(name), str(known.get("time", ""))[:10], known.get("run", "")[:6]]
        title = re.sub(r"[^\w .,+-]+", "-", " ".join(filter(None, words)))[:120].strip(
            " -"
        )  # it is part of a Report's address
        return cls(folder, title, facts(config, known, rows), tuple(headline(rows, records)), tuple(rows))

    def findings_markdown(self) -> str:
        return "\n".join(f"- **{escaped(one.title)}**: {escaped(one.text)}" for one in self.findings) or "None."

    def facts_markdown(self) -> str:
        return "\n".join(f"- {name}: {escaped(value)}" for name, value in self.facts)

    def table_markdown(self) -> str:
        filled = [(name, cell) for name, cell in COLUMNS if any(cell(row) for row in self.rows)]
        lines = [[name for name, _ in filled], ["---", *["---:"] * (len(filled) - 1)]]
        lines += [[escaped(cell(row)) for _, cell in filled] for row in self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def facts(config: Mapping[str, Any], known: Mapping[str, Any], rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    device, git, weights = (known.get(key) or {} for key in ("device", "git", "weights"))
    model = (config.get("model") or {}).get("path") or known.get("model_path")
    found = {
        "model": model, "samples": f"{max((row['n'] for row in rows), default=0)}, through {len(rows)} points",
        "device": device.get("name"), "dtype": known.get("dtype"), "attention": known.get("attention"),
        "weights": weights.get("sha256", "")[:12], "commit": git.get("sha", "")[:12], "command": known.get("command"),
    }  # fmt: skip
    return tuple((name, str(value)) for name, value in found.items() if value)


def write_markdown(sweep: Sweep, link: str | None = None) -> Path:
    """report.md beside report.html; link: the W&B Report's address, once there is one."""
    pictures = [(axis, f"images/accuracy_{axis}.png") for axis in AXES]
    shown = [f"![accuracy against {AXES[axis]}]({name})" for axis, name in pictures if (sweep.folder / name).is_file()]
    parts = [f"# {escaped(sweep.title)}", sweep.facts_markdown(), *([f"<{link}>"] if link else [])]
    parts += ["## Findings", sweep.findings_markdown(), "## Points", sweep.table_markdown()]
    parts += ["## Accuracy against cost", *shown] if shown else []
    if (sweep.folder / "report.html").is_file():
        parts.append("Samples, kinds and curves: [report.html](report.html)")
    write_atomic(sweep.folder / "report.md", "\n\n".join(parts) + "\n")
    return sweep.folder / "report.md"


def escaped(value: str) -> str:
    """One line of plain text in markdown."""
    line = SIGNS.sub(r"\\\1", " ".join(str(value).split()))
    return LINKS.sub(lambda found: "".join(f"\\{sign}" if sign in "/." else sign for sign in found[0]), line)
