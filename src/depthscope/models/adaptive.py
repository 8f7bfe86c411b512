"""Words in and out with one set of weights: adaptive input (Baevski & Auli 2019) and softmax (Grave et al. 2017)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.models.design import check_size

CUTOFFS = (20_000, 40_000, 200_000)  # of WikiText-103, Dai et al. 2019


class TiedVocabulary(nn.Module):
    """x = sqrt(d) E_w A for word w, and log p(w | y) with the logits y . (E_w A) + b_w: the same E and A both ways.

    Words are sorted by frequency. Those before the first cut-off and one entry for each later cluster share a softmax;
    the words of a cluster share another, so log p(w) = log p(cluster) + log p(w | cluster). A vocabulary no larger than
    the first cut-off has one plain softmax. Cluster i has tables of width d / div_value^i and, where that is less than
    d, a projection A (d_i, d); else A = I. E ~ N(0, 1/d) and A ~ N(0, 1/d_i): tokens start with variance 1, and so do
    logits of tokens with variance 1. The biases b start at zero; they learn how frequent words are, which tokens would
    have to carry otherwise, all of them the same: an offset that de-escalation takes away.

    Examples:
        >>> words = ds.models.TiedVocabulary(50, d=8)
        >>> X = words(torch.randint(50, (2, 4)))
        >>> X.shape, words.log_probabilities(X).shape
        (torch.Size([2, 4, 8]), torch.Size([2, 4, 50]))
    """

    def __init__(
        self,
        vocabulary: int,
        d: int,
        *,
        cutoffs: Sequence[int] = CUTOFFS,
        div_value: int = 1,
        where: str = "vocabulary",
    ) -> None:
        super().__init__()
        check_size(where, "vocabulary", vocabulary)
        check_size(where, "div_value", div_value)
        if any(not isinstance(cut, int) for cut in cutoffs) or any(a >= b for a, b in pairwise((0, *cutoffs))):
            raise UsageError(f"{where}: cutoffs must be whole numbers that rise from 1 on; got {tuple(cutoffs)!r}.")
        self.vocabulary, self.d = vocabulary, d
        self.ends = (*(cut for cut in cutoffs if cut < vocabulary), vocabulary)
        widths = [d // div_value**i for i in range(len(self.ends))]
        if widths[-1] < 1:
            raise UsageError(
                f"{where}: every cluster must have a width of 1 or more; got d = {d} and div_value = {div_value} for "
                f"{len(widths)} clusters. Use a smaller div_value."
            )
        sizes = [end - start for start, end in pairwise((0, *self.ends))]
        self.tables = nn.ParameterList(torch.empty(size, width) for size, width in zip(sizes, widths, strict=True))
        self.projections = nn.ParameterList(torch.empty(width, d) for width in widths if width < d)
        self.clusters = nn.Parameter(torch.empty(len(self.ends) - 1, d)) if len(self.ends) > 1 else None
        sizes[0] += len(sizes) - 1  # the clusters' own biases follow those of the head's words
        self.biases = nn.ParameterList(torch.empty(size) for size in sizes)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all tables anew."""
        for table in (*self.tables, *([] if self.clusters is None else [self.clusters])):
            table.normal_(0.0, self.d**-0.5)
        for A in self.projections:
            A.normal_(0.0, len(A) ** -0.5)
        for b in self.biases:
            b.zero_()

    @torch.no_grad()
    def start_at_(self, counts: Tensor) -> None:
        """Let the biases say how frequent words are, from counts (vocabulary,) of 1 or more: with logits of zero,
        p(w) = counts_w / sum. Tokens then need not learn it, and need not be alike for it."""
        own = counts.double().split([len(table) for table in self.tables])
        clusters = torch.stack([part.sum() for part in own[1:]]) if own[1:] else counts.new_zeros(0).double()
        for b, part in zip(self.biases, (torch.cat([own[0], clusters]), *own[1:]), strict=True):
            b.copy_((part / part.sum()).log())

    def _projection(self, i: int) -> Tensor | None:
        first = len(self.tables) - len(self.projections)  # narrower ones come last
        return self.projections[i - first] if i >= first else None

    def forward(self, words: Tensor) -> Tensor:
        """words (...) -> tokens (..., d)."""
        if len(self.ends) == 1:
            return F.embedding(words, self.tables[0]) * self.d**0.5
        X = torch.zeros(*words.shape, self.d, dtype=self.tables[0].dtype, device=words.device)
        for i, (start, end) in enumerate(pairwise((0, *self.ends))):
            here = ((words >= start) & (words < end)).nonzero(as_tuple=True)
            own, A = F.embedding(words[here] - start, self.tables[i]), self._projection(i)
            X = X.index_put(here, own if A is None else (own @ A).to(X.dtype))  # autocast: narrower
        return X * self.d**0.5

    def _logits(self, Y: Tensor, i: int) -> Tensor:
        """Logits of the words of cluster i, in float32 or wider; in front of all, the head's words and the clusters."""
        A, E, b = self._projection(i), self.tables[i], self.biases[i]
        logits = F.linear(Y if A is None else F.linear(Y, A), E, b[: len(E)])
        if not i and self.clusters is not None:
            logits = torch.cat([logits, F.linear(Y, self.clusters, b[len(E) :])], -1)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def log_probabilities(self, Y: Tensor) -> Tensor:
        """log p(w | y) for every word: Y (..., d) -> (..., vocabulary)."""
        head = self._logits(Y, 0).log_softmax(-1)
        parts = [head[..., : self.ends[0]]]
        for i in range(1, len(self.ends)):
            cluster = head[..., self.ends[0] + i - 1].unsqueeze(-1)
            parts.append(cluster + self._logits(Y, i).log_softmax(-1))
        return torch.cat(parts, -1)

    def loss(self, Y: Tensor, words: Tensor) -> Tensor:
        """-log p(w | y) in nats for one word each: Y (..., d), words (...) -> (...). Only clusters that occur cost."""
        flat, w = Y.flatten(0, -2), words.flatten()
        entry = w
        for i, (start, end) in enumerate(pairwise(self.ends)):
            entry = torch.where((w >= start) & (w < end), self.ends[0] + i, entry)
        loss = F.cross_entropy(self._logits(flat, 0), entry, reduction="none")
        for i, (start, end) in enumerate(pairwise(self.ends), 1):
            (here,) = ((w >= start) & (w < end)).nonzero(as_tuple=True)
            inside = F.cross_entropy(self._logits(flat[here], i), w[here] - start, reduction="none")
            loss = loss.index_add(0, here, inside)
        return loss.view(words.shape)

    def extra_repr(self) -> str:
        return f"vocabulary={self.vocabulary}, d={self.d}, clusters={len(self.ends)}"
