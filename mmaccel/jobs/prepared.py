"""What is said and kept of how pictures are prepared. Knows a Processor; changes nothing."""

from typing import Any

from rich.console import Console


def prepared(processor: Any) -> dict[str, Any]:
    """The provenance of the preprocessing; a setting that is not the checkpoint's is a warning."""
    differs = processor.differing
    if differs:
        said = "; ".join(f"{name}: the checkpoint says {own}, in use is {now}" for name, (own, now) in differs.items())
        line = f"warning: pictures are not prepared as the checkpoint says ({said})"
        Console(stderr=True, highlight=False).print(line, markup=False, soft_wrap=True)
    return {"processor": {"hash": processor.hash, "differs": differs}}
