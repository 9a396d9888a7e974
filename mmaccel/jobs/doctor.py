"""`job=doctor`: what works on this machine, and the install line for what does not, as a table or as JSON."""

import json as jsonlib
from dataclasses import asdict, dataclass

from rich.table import Table

from mmaccel.jobs.checks import BROKEN, MISSING, WORKS, findings
from mmaccel.jobs.console import wide_console
from mmaccel.jobs.task import Task


@dataclass(frozen=True)
class Doctor:
    """json: one JSON list instead of the table."""

    json: bool = False

    def run(self, task: Task) -> None:
        found = list(findings())
        if self.json:
            print(jsonlib.dumps([asdict(finding) for finding in found], indent=1))
            return
        table = Table(box=None, header_style="bold")
        for title in ("part", "state", "detail", "to mend it"):
            table.add_column(title, overflow="fold")
        colours = {WORKS: "green", MISSING: "yellow", BROKEN: "red"}
        for finding in found:
            state = f"[{colours[finding.state]}]{finding.state}[/]"
            table.add_row(finding.part, state, finding.detail, finding.mend.replace("[", r"\["))
        wide_console().print(table)
