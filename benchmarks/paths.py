"""What it costs to sum all paths of every length, in forward passes of the model: python benchmarks/paths.py

About 2 minutes on 2 cores. BERT-base has 13^12 = 10^13.4 paths; one dynamic program gives the 13 sums exactly.
"""

import math

import torch
from _ratio import line, ratio

import depthscope as ds
from depthscope.circuits.circuit import read_circuit
from depthscope.circuits.weights import read_weights
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.theory.paths import along_path, by_length

SIZES = Sizes(depth=12, width=768, heads=12, tokens=128, batch=4)


@torch.no_grad()
def lengths() -> None:
    model, ids = resolve("bert", SIZES)
    weights = read_weights(model, ids)
    circuit = read_circuit(model, ids, weights=weights)
    wide = (circuit.X, circuit.P, [w.W_V for w in weights], [w.W_O for w in weights])
    X, *rest = wide
    narrow = (X.float(), *([x.float() for x in kind] for kind in rest))
    what = f"BERT-base, {SIZES.batch} x {SIZES.tokens}"
    times, plain = ratio(lambda: by_length(*narrow), lambda: model(ids), 5)
    off = float((by_length(*narrow).double() - by_length(*wide)).norm() / by_length(*wide).norm())
    line(f"all 13 lengths / forward ({what}, float32)", times, "below 10", f"forward {plain:.2f} s, off by {off:.0e}")
    times, _ = ratio(lambda: by_length(*wide), lambda: model(ids), 3)
    line("the same in float64", times, "below 10")
    path = (0,) * SIZES.depth
    _, one = ratio(lambda: model(ids), lambda: along_path(path, *wide), 5)
    saved = math.log10(13**12 * one / (times * plain))
    line("one path after another / all lengths at once, log10", saved, "")
    for words, call in (
        ("ds.paths, whole model held at its values", lambda: ds.paths(model, ids)),
        ("ds.paths, attention alone (weights read by probing)", lambda: ds.paths(model, ids, form="attention")),
    ):
        times, _ = ratio(call, lambda: model(ids), 1)
        line(f"{words} / forward", times, "")


if __name__ == "__main__":
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    lengths()
