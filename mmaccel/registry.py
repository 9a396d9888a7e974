"""Builds any yaml under conf/ without Hydra: PyYAML and importlib, strict about every key.

For notebooks, integrations and tests: `build("pruner", "fastv", {"ratio": 0.9})`. Knows yaml files and Python
signatures. Does not know what it builds, and composes nothing: interpolations and defaults lists are Hydra's.
A `_target_` outside this package is refused, unless it stands in a yaml of the caller's own `search` folder (laid out
as conf/: <folder>/<group>/<name>.yaml) or the caller says `foreign=True`.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

PACKAGE = __name__.partition(".")[0]


class _Loader(yaml.SafeLoader):
    """yaml as Hydra reads it: 1e-3 is a number; and a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"{node.start_mark.name}: key {', '.join(twice)} is given twice")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def conf_dir() -> Path:
    """The conf/ folder: inside the package in a wheel, beside it in a checkout or an editable install."""
    package = Path(__file__).resolve().parent
    if (package / "conf").is_dir():
        return package / "conf"
    beside = package.parent / "conf"
    if beside.is_dir() and (package.parent / "pyproject.toml").is_file():
        return beside
    raise FileNotFoundError(f"no conf folder: looked at {package / 'conf'} and {beside}; install {PACKAGE} again")


def names(group: str, search: Sequence[Path] = ()) -> list[str]:
    """The names one can ask for in a group, sorted."""
    return sorted(_files(group, search))


def describe(group: str, search: Sequence[Path] = ()) -> dict[str, str]:
    """Each name with one line: the yaml's first comment, or else the first docstring line of what it builds."""
    return {name: _line(_files(group, search)[name], search) for name in names(group, search)}


def load(group: str, name: str, search: Sequence[Path] = ()) -> dict[str, Any]:
    """The plain node of one yaml."""
    files = _files(group, search)
    if name not in files:
        raise ValueError(f"{group}: got {name!r}{_close(name, files)}, valid are {_listed(files)}")
    return _read(files[name])


def build(
    group: str, name: str, overrides: Mapping[str, Any] | None = None, *, search: Sequence[Path] = ()
) -> Any:
    """The object of conf/<group>/<name>.yaml; `overrides` replace its values, dotted keys reach into nested nodes."""
    node = load(group, name, search)
    for key, value in (overrides or {}).items():
        _override(node, key, value)
    return instantiate(node, foreign=_is_own(_files(group, search)[name], search))


def instantiate(node: Mapping[str, Any], *, foreign: bool = False) -> Any:
    """The object that `node["_target_"]` makes of the node's other keys; nested nodes and lists are made first."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        got = f"keys {_listed(node)}" if isinstance(node, Mapping) else repr(node)
        raise ValueError(f"node: got {got}; valid is a mapping with a _target_")
    target = locate(node["_target_"], foreign=foreign)
    values = {key: value for key, value in node.items() if key != "_target_"}
    _check_keys(node["_target_"], target, values)
    return target(**{key: _made(value, foreign) for key, value in values.items()})


def locate(path: str, *, foreign: bool = False) -> Callable[..., Any]:
    """The class or function a dotted path names; only this package's own, unless `foreign`."""
    parts = path.split(".") if isinstance(path, str) else []
    if len(parts) < 2 or not all(part.isidentifier() and not part.startswith("_") for part in parts):
        raise ValueError(f"_target_: got {path!r}, valid is a dotted path such as {PACKAGE}.pruning.fastv.FastV")
    if parts[0] != PACKAGE and not foreign:
        raise ValueError(f"_target_: got {path!r}, valid here are {PACKAGE}'s own (yours come from your own yaml)")
    found = _walk(parts)
    if not callable(found):
        raise ValueError(f"_target_: got {path!r}, which is no class or function")
    home = (getattr(found, "__module__", None) or "").partition(".")[0]
    if home != PACKAGE and not foreign:
        raise ValueError(f"_target_: got {path!r}, which belongs to {home or 'nobody'}; valid here are {PACKAGE}'s own")
    return found


def _walk(parts: list[str]) -> Any:
    """Import the longest module prefix, then follow attributes."""
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
                raise  # the module is there; something it imports is not
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                own = [key for key, value in vars(found).items() if getattr(value, "__module__", None) == module]
                raise ValueError(f"_target_: {module} has no {'.'.join(parts[cut:])}; it has {_listed(own)}")
            found = getattr(found, name)
        return found
    raise ValueError(f"_target_: got {'.'.join(parts)!r}, but there is no module {parts[0]!r} to import")


def _files(group: str, search: Sequence[Path]) -> dict[str, Path]:
    """name → yaml of one group, over conf/ and the caller's folders."""
    files: dict[str, Path] = {}
    folders = [conf_dir(), *map(Path, search)]
    for folder in folders:
        for file in sorted((folder / group).glob("*.yaml")):
            if file.stem in files:
                raise ValueError(f"{group} {file.stem}: given twice, in {files[file.stem]} and in {file}; rename yours")
            files[file.stem] = file
    if not files and not any((folder / group).is_dir() for folder in folders):
        groups = sorted({child.name for folder in folders for child in Path(folder).glob("*/")})
        raise ValueError(f"group: got {group!r}{_close(group, groups)}, valid are {_listed(groups)}")
    return files


def _read(file: Path) -> dict[str, Any]:
    with file.open(encoding="utf-8") as stream:
        node = yaml.load(stream, _Loader)  # a SafeLoader
    if not isinstance(node, dict):
        raise ValueError(f"{file}: got {type(node).__name__}, valid is a mapping of keys")
    if "defaults" in node:
        raise ValueError(f"{file}: it has a defaults list; compose it with Hydra, through python -m {PACKAGE}.run")
    return node


def _line(file: Path, search: Sequence[Path]) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and text and not text.startswith("@package"):
            return text
        if line.strip() and not line.startswith("#"):
            break
    target = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    if not isinstance(target, dict) or "_target_" not in target:
        return ""
    found = locate(target["_target_"], foreign=_is_own(file, search))
    return (inspect.getdoc(found) or "").partition("\n")[0]


def _override(node: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; the last part may be new (a field the yaml leaves out), the way to it may not."""
    *way, last = key.split(".")
    for part in way:
        if not isinstance(node.get(part), dict):
            raise ValueError(f"override {key!r}: {part!r} is no nested node; valid are {_listed(node)}")
        node = node[part]
    if last == "_target_":
        raise ValueError(f"override {key!r}: a target is not overridden; ask for another name")
    node[last] = value


def _check_keys(path: str, target: Callable[..., Any], values: Mapping[str, Any]) -> None:
    parameters = inspect.signature(target).parameters
    valid = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [key for key in values if key not in valid]
    if unknown and not takes_any:
        hint = _close(unknown[0], valid)
        raise ValueError(f"{path}: unknown key {_listed(unknown)}{hint}; valid keys are {_listed(valid)}")
    missing = [name for name in valid if parameters[name].default is inspect.Parameter.empty and name not in values]
    if missing:
        raise ValueError(f"{path}: missing key {_listed(missing)}; its keys are {_listed(valid)}")


def _made(value: Any, foreign: bool) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return instantiate(value, foreign=foreign)
        return {key: _made(item, foreign) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_made(item, foreign) for item in value]
    if isinstance(value, str) and "${" in value:
        raise ValueError(f"got {value!r}: interpolations are Hydra's, through python -m {PACKAGE}.run; give a value")
    return value


def _is_own(file: Path, search: Sequence[Path]) -> bool:
    """Whether the yaml lies in one of the caller's folders."""
    return any(file.resolve().is_relative_to(Path(folder).resolve()) for folder in search)


def _listed(keys: Any) -> str:
    return ", ".join(map(str, keys)) or "none"


def _close(name: str, valid: Any) -> str:
    near = difflib.get_close_matches(str(name), list(map(str, valid)), 1)
    return f" (did you mean {near[0]}?)" if near else ""
