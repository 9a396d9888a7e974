"""The one entry: compose the configuration, make the job it names, run it. Alone it lists what there is.

    python -m mmaccel.run                                            the list
    python -m mmaccel.run +experiment=fastv_sweep                    the main job
    python -m mmaccel.run model=llava model.path=DIR benchmark=folder benchmark.path=PICS pruner=fastv machine=cuda

Knows Hydra, spellings and exit codes: 0 done, 1 failed, 2 the user's mistake, 130 interrupted. Does not know what a job
does. Everything that can be refused is refused before anything heavy is imported.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from mmaccel import registry
from mmaccel.jobs.spelling import check_config, explained, respelled
from mmaccel.jobs.task import Task

LISTED = ("job", "experiment", "pruner", "draft", "benchmark", "model", "sampler")
FOLDER = ("--config-dir", "-cd")
STOPPED: list[Exception] = []
USAGE = """python -m mmaccel.run +experiment=NAME                       one of the experiments below
python -m mmaccel.run pruner=NAME benchmark=NAME model=NAME  one pruner against the unpruned model
  sweep.pruner.ratio=[0.3,0.5]           several values in one paired run
  pruner.ratio=0.9                       this value only
  model=llava model.path=DIR             your own weights
  benchmark=folder benchmark.path=DIR    your own pictures
  quality=drop                           an input gate for the pictures; job=inspect looks at a data set alone
  machine=cuda  limit=20  job=doctor     a GPU, the first 20 samples, what works here
  resume=outputs/NAME/TIME               with the same command: a stopped run goes on
  --cfg job                              prints the whole configuration"""


def main() -> int:
    arguments = sys.argv[1:]
    if not typed(arguments):
        show_list()
        return 0
    loud = os.environ.get("HYDRA_FULL_ERROR") == "1" or "debug=true" in arguments
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then hands its errors on, and how they look is decided here
    try:
        sys.argv[1:] = respelled(arguments)
        STOPPED.clear()
        compose_and_run()
        if STOPPED:
            raise STOPPED[0]
    except KeyboardInterrupt as stop:
        folder = str(stop) or "FOLDER"
        print(f"interrupted; what is there is kept: the same command with resume={folder} goes on", file=sys.stderr)
        return 130
    except Exception as error:
        if loud:
            raise
        message, code = explained(error)
        print(message, file=sys.stderr)
        return code
    finally:
        sys.argv[1:] = arguments
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before
    return 0


def typed(arguments: Sequence[str]) -> list[str]:
    """What is asked for; a folder of one's own yamls alone asks for nothing."""
    words = iter(arguments)
    found = []
    for word in words:
        if word in FOLDER:
            next(words, None)
        elif not word.startswith(tuple(f"{name}=" for name in FOLDER)):
            found.append(word)
    return found


@hydra.main(config_path=str(registry.conf_dir()), config_name="config", version_base="1.3")
def compose_and_run(config: DictConfig) -> None:
    try:
        task = task_of(config)
        check_config(task.config)
        registry.instantiate(task.config["job"], foreign=task.foreign).run(task)
    except Exception as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise  # the launcher, perhaps on another machine, has to hear of it
        STOPPED.append(error)  # past Hydra, which would print the overrides in front of it


def task_of(config: DictConfig) -> Task:
    """What the job is handed, free of Hydra's types."""
    hydra_config = HydraConfig.get()
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ValueError("\n".join(f"{key}: a value is needed, e.g. {key}=…" for key in missing))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    output = Path(plain["output"])
    if hydra_config.mode == RunMode.MULTIRUN:
        output = output / str(hydra_config.job.num)
    own = [source.provider for source in hydra_config.runtime.config_sources]
    return Task(
        config=plain,
        typed=tuple(hydra_config.overrides.task),
        choices={str(group): str(choice) for group, choice in hydra_config.runtime.choices.items()},
        output=output,
        foreign=bool(set(own) - {"hydra", "main", "schema"}),
    )


def show_list(groups: Sequence[str] = LISTED) -> None:
    """What each group holds, a line each."""
    from rich.table import Table

    from mmaccel.jobs.console import wide_console

    console = wide_console()
    console.print(USAGE, markup=False, soft_wrap=True)
    for group in groups:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(no_wrap=True, min_width=max(map(len, registry.names(group)), default=0))
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, line in registry.describe(group).items():
            table.add_row(name, line)
        spelled = f"+{group}=" if group == "experiment" else f"{group}="
        console.print(f"\n[bold]{group}s[/bold]  {spelled}…")
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
