"""What a job is handed: the resolved configuration, what of it was typed, which yaml each group chose, and a folder.

Plain data. Does not know Hydra, models or points.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Task:
    """config: resolved, plain. typed: the overrides. choices: group → yaml name. output: the run folder to be."""

    config: dict[str, Any]
    typed: tuple[str, ...] = ()
    choices: dict[str, str] = field(default_factory=dict)
    output: Path = Path("outputs")
    foreign: bool = False  # the configuration comes from the user's own folders too, which may name their own classes

    @property
    def resume(self) -> Path | None:
        return Path(self.config["resume"]) if self.config.get("resume") else None

    def kept(self) -> dict[str, Any]:
        """The configuration as the run folder keeps it: without what says where it is written and how errors look, and
        what other jobs do with a finished one."""
        left_out = ("output", "resume", "debug", "run", "wandb")
        return {key: value for key, value in self.config.items() if key not in left_out}
