"""The house's floors: each unit imports only what stands to its left, and third parties live where they are known.

The package is read, not imported; imports for type checkers alone do not count.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mmaccel"
FLOORS = [
    "measure", "columns", "cache", "masks", "observe", "pruning", "drafting", "models", "station", "walk", "attach",
    "decoding", "benchmarks", "training", "registry", "integrations", "report", "jobs", "run",
]  # fmt: skip
MECHANISM = {"models", "attach", "station", "walk", "masks", "observe", "cache", "decoding"}
PLACES = {
    "transformers": MECHANISM, "huggingface_hub": {"models"}, "tokenizers": {"models"},
    "wandb": {"measure/tracker.py", "measure/artifacts.py", "report"}, "wandb_workspaces": {"report"},
    "hydra": {"run", "jobs"}, "omegaconf": {"run", "jobs"},
    "datasets": {"benchmarks", "training/rows.py"},
    "PIL": {"benchmarks", "training/data.py", "training/rows.py", "models", "report"},
    "matplotlib": {"report"},
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything imported anywhere in the file, functions included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports(node)


def faults(file: str, source: str) -> list[str]:
    """What a file inside the package imports that it must not."""
    unit = file.split("/")[0].removesuffix(".py")
    found = []
    for name in imports(ast.parse(source)):
        first, _, rest = name.partition(".")
        if first == "mmaccel" and rest and rest != "__version__":
            other = rest.split(".")[0]
            if other not in FLOORS or FLOORS.index(other) > FLOORS.index(unit):
                found.append(f"{file} imports {name}, which does not stand to its left")
        elif first in PLACES and not {unit, file} & PLACES[first]:
            found.append(f"{file} imports {first}, whose places are {sorted(PLACES[first])}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_every_file_imports_only_what_stands_to_its_left(file):
    name = file.relative_to(PACKAGE).as_posix()
    if name == "__init__.py":
        assert list(imports(ast.parse(file.read_text()))) == []
        return
    assert name.split("/")[0].removesuffix(".py") in FLOORS, f"{name} stands on no floor"
    assert faults(name, file.read_text()) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("pruning/fastv.py", "from mmaccel.models.load import VLM"),
        ("pruning/fastv.py", "def f():\n    import mmaccel.attach"),
        ("measure/stats.py", "from mmaccel import registry"),
        ("drafting/eagle.py", "import transformers"),
        ("measure/record.py", "from wandb import init"),
        ("registry.py", "from omegaconf import OmegaConf"),
        ("jobs/x.py", "from PIL import Image"),
    ],
)
def test_the_walk_sees_a_fault(file, source):
    assert len(faults(file, source)) == 1


def test_jobs_are_wiring():
    long = {f.name: n for f in (PACKAGE / "jobs").glob("*.py") if (n := len(f.read_text().splitlines())) > 120}
    assert long == {}
