"""The sizes that a preset is built with."""

from dataclasses import dataclass

from depthscope.checks import LARGEST
from depthscope.errors import UsageError


@dataclass(frozen=True)
class Sizes:
    """depth blocks of this width and heads, for a batch of sequences of tokens; seed fixes weights and inputs."""

    depth: int = 12
    width: int = 256
    heads: int = 4
    tokens: int = 64
    batch: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("depth", "width", "heads", "tokens", "batch"):
            if not 1 <= getattr(self, name) <= LARGEST:
                raise UsageError(
                    f"sizes: {name} must be from 1 to {LARGEST:,}; got {getattr(self, name)}. Give another --{name}."
                )
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"sizes: seed must be 0 or more and below 2^63; got {self.seed}. Give another number.")
        if self.width % self.heads:
            raise UsageError(
                f"sizes: heads must divide the width; got width {self.width} and {self.heads} heads. "
                f"Try --width {self.width // self.heads * self.heads or self.heads} or other --heads."
            )

    @property
    def std(self) -> float:
        """Hugging Face's 0.02 belongs to width 768; this keeps the gain d std^2 of every layer at other widths."""
        return 0.02 * (768 / self.width) ** 0.5
