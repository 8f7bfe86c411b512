"""Peers on the same work, each in an environment of its own: python benchmarks/peers.py   (some minutes, 2 GB of disk)

attnspectra (PyPI) for the spectra of heads, and output_hidden_states with numpy for the states, on the same BERT as
ds.scan. Every process times its tool and a plain forward pass in turns, on one thread by processor time; ratios are
over the fastest pass of the same process. Where both sides compute a number, the largest difference is told.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "out" / "peers"  # kept for the next run
SIZES = {"d 256, 4 x 64, 12 blocks": (256, 4, 64, 4, 12), "d 768, 4 x 128, 12 blocks": (768, 12, 128, 4, 12)}
ROUNDS = 2
PEERS = {  # what is installed beside torch; attnspectra 0.1.3 cannot be imported without its extra viz
    "hidden_states": ("numpy", "transformers"),
    "attnspectra": ("attnspectra[viz]", "transformers"),
}
SAID = {  # the tool; what it computes, and what it does not
    "depthscope_few": (
        "ds.scan, four metrics asked for",
        "t_sim, t_div, t_cos, token_norm, and what its verdict needs",
    ),
    "hidden_states": ("output_hidden_states + numpy", "the same four; no steps inside blocks, no padding, no verdict"),
    "depthscope_states": ("ds.scan, attention=False", "all state metrics, steps inside blocks, the verdict"),
    "attnspectra": ("attnspectra", "all singular values of P and log P, entropy, distance; no lambda_2, no states"),
    "depthscope": ("ds.scan", "entropy, delta, lambda_2, omega, mu, sinks of every head; all of the states"),
}
Sizes = tuple[int, int, int, int, int]


def subject(sizes: Sizes) -> tuple[Any, Any]:
    """The same BERT in every process, and its tokens."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, heads, tokens, batch, depth = sizes
    config = transformers.BertConfig(
        hidden_size=width, num_attention_heads=heads, num_hidden_layers=depth, intermediate_size=4 * width
    )
    return transformers.BertModel(config).eval(), torch.randint(0, 30000, (batch, tokens))


def by_depthscope(model: Any, ids: Any, **choices: Any) -> Callable[[], dict[str, Any]]:
    import depthscope as ds

    def run() -> dict[str, Any]:
        found = ds.scan(model, ids, **choices)
        numbers = {name: found.states[name].tolist() for name in ("t_sim", "t_cos")}
        entropy = found.heads.get("attention_entropy")
        return numbers | ({} if entropy is None else {"entropy": entropy.flatten().tolist()})

    return run


def by_hidden_states(model: Any, ids: Any) -> Callable[[], dict[str, Any]]:
    import numpy as np
    import torch

    @torch.no_grad()
    def run() -> dict[str, Any]:
        found: dict[str, list[float]] = {"t_sim": [], "t_div": [], "t_cos": [], "token_norm": []}
        for state in model(ids, output_hidden_states=True).hidden_states:
            X = state.numpy().astype(np.float64)  # (B, n, d)
            n, norms = X.shape[1], np.linalg.norm(X, axis=-1, keepdims=True)
            energy = np.square(norms).sum((1, 2))
            t_div = np.square(X - X.mean(1, keepdims=True)).sum((1, 2)) / energy
            summed = np.square((X / norms).sum(1)).sum(-1)
            found["t_div"].append(t_div.mean())
            found["t_sim"].append((1 - t_div).mean())
            found["t_cos"].append(((summed - n) / (n * n - n)).mean())
            found["token_norm"].append(norms.mean())
        return found

    return run


def by_attnspectra(model: Any, ids: Any) -> Callable[[], dict[str, Any]]:
    """One sequence after another: of a batch it keeps the first alone."""
    import attnspectra
    import numpy as np

    class Words:
        @staticmethod
        def convert_ids_to_tokens(ids: list[int]) -> list[str]:
            return list(map(str, ids))

    model.set_attn_implementation("eager")  # it reads output_attentions
    adapter = attnspectra.HFTransformerAdapter(model=model, tokenizer=Words(), architecture="encoder")
    config = attnspectra.MetricConfig(causal=False)

    def run() -> dict[str, Any]:
        rows = [attnspectra.capture_and_compute(adapter, row[None], metric_cfg=config)[1] for row in ids]
        return {"entropy": np.mean([row.A_attn_entropy for row in rows], 0).flatten().tolist()}

    return run


MAKE: dict[str, Callable[..., Callable[[], dict[str, Any]]]] = {
    "depthscope": by_depthscope,
    "depthscope_states": lambda model, ids: by_depthscope(model, ids, attention=False),
    "depthscope_few": lambda model, ids: by_depthscope(
        model, ids, attention=False, metrics=["t_sim", "t_div", "t_cos", "token_norm"]
    ),
    "hidden_states": by_hidden_states,
    "attnspectra": by_attnspectra,
}


def timed(name: str, sizes: Sizes) -> dict[str, Any]:
    """Run in the environment of the tool: its ratio to the plain pass, and its numbers."""
    import torch

    plain_model, ids = subject(sizes)
    model, _ = subject(sizes)
    tool = MAKE[name](model, ids)

    @torch.no_grad()
    def plain() -> None:
        plain_model(ids)

    plain(), tool()
    times: dict[str, list[float]] = {"tool": [], "plain": []}
    numbers: dict[str, Any] = {}
    for _ in range(ROUNDS):
        start = time.process_time()
        numbers = tool()
        middle = time.process_time()
        plain()
        times["tool"].append(middle - start)
        times["plain"].append(time.process_time() - middle)
    return {"times": times, "numbers": numbers}


def environment(name: str) -> str | None:
    """The interpreter of an environment with the peer in it, made where there is none; None where that fails."""
    python = str(ENVIRONMENTS / name / "bin" / "python")
    needed = "; ".join(f"import {package.partition('[')[0]}" for package in ("torch", *PEERS[name]))
    if Path(python).exists() and subprocess.run([python, "-c", needed], capture_output=True).returncode == 0:
        return python
    subprocess.run([sys.executable, "-m", "venv", ENVIRONMENTS / name], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    for packages in (["torch==2.13.0"], PEERS[name]):
        done = subprocess.run([*pip, *packages], capture_output=True, text=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            print(f"{name}: cannot be installed with constraints.txt. {' '.join(said[-1:])}")
            return None
    return python


def asked(python: str, name: str, sizes: Sizes) -> dict[str, Any]:
    words = [python, __file__, "--run", name, json.dumps(sizes)]
    told = subprocess.check_output(words, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return json.loads(told.splitlines()[-1])


def main() -> None:
    pythons = {name: environment(name) for name in PEERS}
    for words, sizes in SIZES.items():
        print(f"BERT, {words}")
        found: dict[str, dict[str, Any]] = {}
        for name, (tool, quantities) in SAID.items():
            python = pythons.get(name, sys.executable)
            if python:
                found[name] = asked(python, name, sizes)
                print(f"{cost(found[name]['times'])}  {tool}\n{'':10}{quantities}", flush=True)
        print(*agreement(found), sep="\n")


def cost(times: dict[str, list[float]]) -> str:
    rounds = [tool / plain for tool, plain in zip(times["tool"], times["plain"], strict=True)]
    return f"{min(times['tool']) / min(times['plain']):8.2f} ({min(rounds):.2f}-{max(rounds):.2f})"


def agreement(found: dict[str, dict[str, Any]]) -> list[str]:
    """The largest difference between a peer's numbers and those of ds.scan."""
    own, lines = found["depthscope"]["numbers"], []
    for peer in PEERS:
        for name, values in found.get(peer, {}).get("numbers", {}).items():
            if name in own:
                worst = max(abs(a - b) for a, b in zip(values, own[name], strict=True))
                lines.append(f"  {name} of ds.scan and of {peer} differ by {worst:.1e} at most")
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(timed(sys.argv[2], tuple(json.loads(sys.argv[3])))))
    else:
        main()
