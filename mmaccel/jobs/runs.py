"""A finished sweep, read to be compared: its records under the names they get beside another's. Writes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmaccel.jobs.points import BASELINE
from mmaccel.jobs.timing import UNTIMED
from mmaccel.measure.record import RunFolder, first_facts


@dataclass(frozen=True)
class Run:
    label: str
    path: Path
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    records: list[dict[str, Any]] = field(repr=False)

    @classmethod
    def read(cls, label: str, path: Path) -> "Run":
        records = RunFolder.open(path).records()
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")) or {}
        if not config.get("points") or not records:
            raise ValueError(f"job.folders.{label}: {path} is no finished sweep")
        return cls(label, path, config, first_facts(path), records)

    def name(self, point: str, first: "Run") -> str:
        """The first run's baseline is everybody's."""
        return point if self is first and point == BASELINE else f"{self.label}: {point}"


def undrafted(run: Run) -> list[Mapping[str, Any]]:
    """The points without a draft: what one changes is time, and here nothing is timed."""
    return [point for point in run.config["points"] if not point.get("draft")]


def renamed(run: Run, first: Run) -> Iterator[dict[str, Any]]:
    names = {point["name"] for point in undrafted(run)}
    for record in (one for one in run.records if one["point"] in names):
        yield {**record, **UNTIMED, "point": run.name(record["point"], first)}
