"""What was typed, and how a mistake in it is said: one or two lines with what is valid, no traceback.

Knows Hydra's and OmegaConf's errors and the folder of yamls. Does not know what a key means to its reader.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from mmaccel import registry

MULTIRUN = ("-m", "--multirun")
PAIRED = ("pruner", "draft", "controls", "sampler", "sweep")  # what is compared inside one run, never across runs


def respelled(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra takes it; raises for a sweep spelled as a spread over runs."""
    words = [f"++{word}" if word.startswith("sweep.") else word for word in arguments]  # points.py checks the place
    typed = [word for word in words if "=" in word and not word.startswith("-")]
    for override in OverridesParser.create().parse_overrides(typed):
        if not override.is_sweep_override() or override.is_hydra_override():
            continue
        key, values = override.key_or_group, (override.input_line or "").split("=", 1)[1]
        if key.split(".")[0] in PAIRED and "." in key:
            raise ValueError(f"{key}={values}: points of one paired run are spelled sweep.{key}=[{values}]")
        if key.split(".")[0] in PAIRED:
            raise ValueError(f"{key}={values}: name one {key}; others become points of the same run under controls")
        if not set(MULTIRUN) & set(words):
            raise ValueError(f"{key}={values}: add -m to start one run for each (models, benchmarks and machines)")
    return words


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse keys nobody reads: at the top, and in groups whose yamls name no target that would refuse them."""
    folder = registry.conf_dir()
    page = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    groups = {child.name for child in folder.iterdir() if child.is_dir()} - {"experiment", "hydra", "local"}
    refuse_unknown("", config, (set(page) | groups) - {"defaults", "hydra"})
    for group in sorted((groups - {"heads"}) & set(config)):  # names of heads, which are free
        node = config[group]
        if isinstance(node, Mapping) and "_target_" not in node:
            valid = {key for name in registry.names(group) for key in registry.load(group, name)}
            refuse_unknown(f"{group}.", node, valid)
    for key, node in page.items():
        if isinstance(node, Mapping) and node and key != "hydra":  # an empty one is the user's to fill
            if not isinstance(config[key], Mapping):
                spelled = ", ".join(f"{key}.{name}=…" for name in node)
                raise ValueError(f"{key}: got {config[key]!r}, valid are {spelled}")
            refuse_unknown(f"{key}.", config[key], set(node))


def refuse_unknown(prefix: str, node: Mapping[str, Any], valid: set[str]) -> None:
    for key in node:
        if key not in valid:
            raise ValueError(unknown_key(f"{prefix}{key}", sorted(valid)))


def unknown_key(path: str, valid: Iterable[str]) -> str:
    parent, _, last = path.rpartition(".")
    known = [str(name) for name in valid if not str(name).startswith("_")]
    near = difflib.get_close_matches(last, known, 1)
    hint = f" (did you mean {f'{parent}.' if parent else ''}{near[0]}?)" if near else ""
    return f"unknown key {path}{hint}; valid {f'under {parent}' if parent else 'at the top'}: {', '.join(known)}"


def explained(error: Exception) -> tuple[str, int]:
    """(what to print, exit code): 2 where the user can mend it by typing something else, 1 for everything else."""
    cause = error.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, name = error.missing_cfg_file.rpartition("/")
        near = difflib.get_close_matches(name, error.options, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"unknown {group} {name!r}{hint}; valid are {', '.join(error.options)}", 2
    if isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, Mapping):
        return unknown_key(cause.full_key, map(str, cause.parent_node)), 2
    if isinstance(error, HydraException | OmegaConfBaseException):
        lines = [str(error), *([str(cause)] if cause else [])]
        return "\n".join(lines), 2
    if isinstance(error, ValueError | FileNotFoundError | FileExistsError | NotADirectoryError):
        return str(error), 2
    return f"{type(error).__name__}: {error}\n(debug=true shows where)", 1
