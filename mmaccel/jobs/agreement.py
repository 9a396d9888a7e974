"""What stands for a score where there is no answer: whether the reply is the unpruned one's.

Knows records.
"""

from collections.abc import Mapping
from typing import Any


def waits(record: Mapping[str, Any]) -> bool:
    """Whether the score is left to the agreement with the unpruned reply."""
    return not record.get("error") and record["reference"] is None and record["score"].get("correct") is None


def agreement(record: Mapping[str, Any], base: Mapping[str, Any], mixed: bool) -> dict[str, Any]:
    """The score's part. mixed: other questions of the benchmark have answers, and agreement is not averaged with being
    right; the baseline would agree with itself."""
    agrees = float(record["parsed"] == base["parsed"])
    return {"same_as_baseline": agrees} if mixed else {"correct": agrees, "agreement": True}
