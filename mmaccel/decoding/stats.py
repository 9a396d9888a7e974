"""What one call of the loop counted. Knows numbers only."""

from dataclasses import dataclass, field


@dataclass
class Stats:
    """Sums over the batch; every ratio is divided once, here, at the end.

    steps: verify forwards after the prefill, counted once per row still running (batch 1: the forwards).
    emitted: tokens those steps emitted, the following (bonus) token included, cut at the first stop; without the
    prefill's token.  nodes: drafted nodes.  drafted: deepest level offered, summed over steps.  accepted: drafted
    tokens that were emitted; accepted_by_depth[k]: at depth k + 1.  finish: per row "stop", "length" or "stop_string".
    looked, said: of a head that `looks`, per step the attention on pictures of the column it was made from (None for
    the first, whose column is the prompt's) and the tokens it emitted, means over running rows.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    nodes: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    finish: list[str | None] = field(default_factory=list)
    prefill_ms: float = 0.0
    step_ms: list[float] = field(default_factory=list)
    first_token_at: float = 0.0
    looked: list[float | None] = field(default_factory=list)
    said: list[float] = field(default_factory=list)

    @property
    def tau(self) -> float | None:
        """Tokens per verify forward; None where there was no step."""
        return self.emitted / self.steps if self.steps else None

    @property
    def alpha(self) -> float | None:
        """Accepted share of the deepest levels offered; None for an empty draft."""
        return self.accepted / self.drafted if self.drafted else None

    def count(self, emitted: int, accepted: int, offered: int, nodes: int) -> None:
        """One row's step: `accepted` tokens of a path, under `nodes` nodes of depth `offered`."""
        self.steps += 1
        self.emitted += emitted
        self.accepted += accepted
        self.drafted += offered
        self.nodes += nodes
        self.accepted_by_depth += [0] * (offered - len(self.accepted_by_depth))
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1
