"""What an import, single metrics and a long sequence cost: python benchmarks/scan.py   (about a minute on 2 cores)

What a whole scan costs is measured by depthscope bench. Memory is the peak of a process of its own.
"""

import subprocess
import sys
import time

import torch
import transformers
from _ratio import line, ratio

import depthscope as ds
from depthscope.benches.peak import peak_during

transformers.logging.set_verbosity_error()


def pairwise_cosine(X: torch.Tensor) -> torch.Tensor:
    """Eq. (1) as it is written: the cosine of every pair of tokens."""
    n = X.shape[-2]
    pairs = torch.nn.functional.cosine_similarity(X[:, :, None].double(), X[:, None, :].double(), dim=-1)
    return pairs.triu(1).sum((-2, -1)) * 2 / (n * n - n)


def gram_cosine(X: torch.Tensor) -> torch.Tensor:
    """The same by one matrix product of n x n."""
    U = torch.nn.functional.normalize(X.double(), dim=-1)
    n = X.shape[-2]
    return (U @ U.mT).triu(1).sum((-2, -1)) * 2 / (n * n - n)


def metrics() -> None:
    X = torch.randn(1, 1024, 256)
    error = abs(float(pairwise_cosine(X) - ds.metrics.t_cos(X)))
    times, _ = ratio(lambda: pairwise_cosine(X), lambda: ds.metrics.t_cos(X), 3)
    line("pairwise cosine / t_cos (n 1024, d 256)", times, "at least 50", f"difference {error:.0e}")
    times, _ = ratio(lambda: gram_cosine(X), lambda: ds.metrics.t_cos(X), 9)
    line("cosine by one n x n product / t_cos", times, "")
    P = real_attention(2048)
    Pi_2_P = P - P.mean(-2, keepdim=True)
    exact = float(torch.linalg.eigvals(Pi_2_P).abs().max())
    times, _ = ratio(lambda: torch.linalg.eigvals(P), lambda: ds.metrics.lambda_2(P), 1)
    line(
        "torch.linalg.eigvals / lambda_2 (n 2048)",
        times,
        "at least 20",
        f"error {abs(float(ds.metrics.lambda_2(P)) / exact - 1):.1e}",
    )
    exact = float(torch.linalg.svdvals(Pi_2_P)[0])
    times, _ = ratio(lambda: torch.linalg.svdvals(Pi_2_P), lambda: ds.metrics.delta(P), 3)
    line(
        "torch.linalg.svdvals / delta (n 2048)",
        times,
        "at least 4",
        f"error {abs(float(ds.metrics.delta(P)) / exact - 1):.1e}",
    )


def long_sequence() -> None:
    q, k = torch.randn(2, 1, 1, 16384, 64).unbind(0)
    q_small, k_small = q[..., :256, :], k[..., :256, :]
    resting = peak_during(lambda: ds.metrics.delta(q=q_small, k=k_small))
    start = time.perf_counter()
    found: list[torch.Tensor] = []
    grown = peak_during(lambda: found.extend(ds.metrics.delta(q=q, k=k, return_residual=True))) - resting
    seconds = time.perf_counter() - start
    value, residual = found
    room = f"peak + {grown:.0f} MiB, P would take {16384**2 * 4 / 2**20:.0f}"
    more = f"delta {float(value):.4f}, residual {float(residual):.0e}, {room}"
    line("delta of one head at n 16384, seconds", seconds, "", more)


@torch.no_grad()
def real_attention(n: int) -> torch.Tensor:
    """P of one head in the third block of a BERT with n positions."""
    config = transformers.BertConfig(num_hidden_layers=3, max_position_embeddings=n, attn_implementation="eager")
    model = transformers.BertModel(config).eval()
    model.set_attn_implementation("eager")
    return model(torch.randint(0, 30000, (1, n)), output_attentions=True).attentions[2][0, 0]


def imports() -> None:
    """Names of depthscope are imported when they are first used: so the package alone, and with the name scan."""
    ways = {"torch": "import torch", "package": "import depthscope", "scan": "import depthscope; depthscope.scan"}

    def seconds(statement: str) -> float:
        code = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
        return float(subprocess.check_output([sys.executable, "-c", code], text=True))

    least = {name: min(seconds(statement) for _ in range(8)) for name, statement in ways.items()}
    line("import depthscope / import torch", least["package"] / least["torch"], "most 1.2")
    line("import depthscope; depthscope.scan / import torch", least["scan"] / least["torch"], "most 1.2")


if __name__ == "__main__":
    if sys.argv[1:] == ["long"]:
        long_sequence()
    else:
        torch.manual_seed(0)
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
        for part in (imports, metrics):
            part()
        subprocess.run([sys.executable, __file__, "long"], check=True)  # alone, so that its memory is its own
