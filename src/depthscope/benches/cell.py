"""One cell of the grid: a kind of model and its sizes, with what it will take to run it."""

from dataclasses import dataclass

from depthscope.errors import UsageError

KINDS = ("encoder", "decoder", "bert", "gpt2")
OWN_KINDS = ("encoder", "decoder")  # of ds.models: they need torch alone
HEAD = 64  # channels of a head, as in BERT, GPT-2 and Llama
FLOAT = 4  # bytes
PER_ENTRY = 400  # operations for an entry of P in a scan with attention statistics: to order cells, not to judge them


@dataclass(frozen=True, order=True)
class Cell:
    """depth blocks of one kind, of this width and heads, on a batch of sequences of tokens."""

    kind: str
    width: int
    tokens: int
    batch: int
    depth: int
    heads: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"bench: kind must be one of {', '.join(KINDS)}; got {self.kind!r}. Try --kind encoder.")
        for name in ("width", "batch", "depth", "heads"):
            if getattr(self, name) < 1:
                raise UsageError(f"bench: {name} must be 1 or more; got {getattr(self, name)}. Give a positive number.")
        if self.tokens < 2:
            raise UsageError(f"bench: tokens must be 2 or more; got {self.tokens}. Similarity needs two tokens.")
        if self.width % self.heads:
            raise UsageError(
                f"bench: heads must divide the width; got width {self.width} and {self.heads} heads. "
                f"Try --heads {usual_heads(self.width)}."
            )

    def __str__(self) -> str:
        blocks = f"{self.depth} block{'s' if self.depth > 1 else ''}"
        return f"{self.kind}, d {self.width}, h {self.heads}, {self.batch} x {self.tokens}, {blocks}"

    @property
    def forward_flops(self) -> float:
        """Operations of a plain forward pass: 24 B n d^2 in the matrices of a block, 4 B n^2 d in its attention."""
        rows = self.batch * self.tokens
        return self.depth * (24 * rows * self.width**2 + 4 * rows * self.tokens * self.width)

    @property
    def work(self) -> float:
        """Operations of a forward pass and of a scan, roughly: by this cells are ordered and their time is foreseen."""
        entries = self.batch * self.heads * self.tokens**2
        return 3 * self.forward_flops + PER_ENTRY * self.depth * entries

    @property
    def memory(self) -> float:
        """Bytes that it may take: the weights, the hidden layer and some states, and three copies of P of a block."""
        weights = 12 * self.depth * self.width**2
        states = 16 * self.batch * self.tokens * self.width
        return FLOAT * (weights + states + 3 * self.batch * self.heads * self.tokens**2)


def usual_heads(width: int) -> int:
    """As many heads as there are 64 channels, or fewer where that does not divide the width."""
    return max(h for h in range(1, max(1, width // HEAD) + 1) if width % h == 0)
