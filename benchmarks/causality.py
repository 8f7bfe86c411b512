"""What it costs to try whether a model is causal: python benchmarks/causality.py   (about a minute on 2 cores)

Both are paid once for a model and a way of calling it. The first tokens of one sequence are tried first; the whole
sequence where they do not hide the future, because a prefix or a chunk may be longer than they are.
"""

import torch
import transformers
from _ratio import line, ratio

import depthscope as ds
from depthscope.traces.beginning import tried_at_the_beginning
from depthscope.traces.causality import KNOWN, Causality, causality

transformers.logging.set_verbosity_error()
SIZES = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}


@torch.no_grad()
def main() -> None:
    ids = torch.randint(0, 30000, (8, 128))
    gpt2 = transformers.GPT2Model(transformers.GPT2Config(n_layer=6, n_embd=384, n_head=6)).eval()
    bert = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    for model, blocks in ((gpt2, "h.*"), (bert, "encoder.layer.*")):
        names = [path for path, _ in model.named_modules() if ds.traces.blocks.template(path) == blocks]
        name = type(model).__name__
        found = tried(model, names, ids)
        times, plain = ratio(lambda m=model, n=names: tried(m, n, ids), lambda m=model: m(ids), 5)
        said = f"{found.kind}; forward {plain:.2f} s"
        line(f"trial / plain forward ({name}, 8 x 128)", times, "most 1.0", said)
        first, _ = ratio(lambda m=model: first_pass(m, ids), lambda m=model: m(ids), 5)
        line(f"first pass of a fixed {name} / plain forward", first, "", "survey, trials, remedy, the pass itself")


def tried(model: torch.nn.Module, names: list[str], ids: torch.Tensor) -> Causality:
    KNOWN.pop(model, None)
    begun = tried_at_the_beginning(model, "bench", names, 1, (ids,), {}, None)
    return causality(model, names, 1, (ids,), {}, None) if begun is None else begun.stream


def first_pass(model: torch.nn.Module, ids: torch.Tensor) -> None:
    KNOWN.pop(model, None)
    with ds.fix_(model, ds.remedies.DeEscalate(0.5)):
        model(ids)


if __name__ == "__main__":
    main()
