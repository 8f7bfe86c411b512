"""Run by test_larger_than_memory.py: scans and forecasts a model under a limit below its size.

python limited.py FOLDER BYTES

The limit is set when the model is loaded: to load is to map its files, which counts as memory and takes none.
"""

import json
import resource
import sys
from pathlib import Path

import torch
import transformers

import depthscope as ds
from depthscope.models.resolve import hugging_face
from depthscope.models.sizes import Sizes
from depthscope.traces.whole_weights import values_of, weights_in


def told(line: str) -> int:
    """A number of /proc/self/status in bytes. VmData is what RLIMIT_DATA counts; RssAnon is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(found.split()[1] for found in lines if found.startswith(line)))


def main(folder: str, more: int) -> None:
    transformers.logging.set_verbosity_error()
    ids = torch.load(f"{folder}/ids.pt")
    tiny = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    warm = transformers.LlamaModel(tiny).eval()  # what libraries take for themselves is no part of the limit
    ds.scan(warm, ids), ds.forecast(warm, inputs=ids), ds.forecast(warm, n=8)
    before = told("RssAnon")
    model, _ = hugging_face(folder, Sizes(), None, offload=f"{folder}/offload", memory="1MB")
    found = {"loading": told("RssAnon") - before, "away": sum(p.is_meta for p in model.parameters())}
    limit = told("VmData") + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    scan = ds.scan(model, ids)
    scan.save(f"{folder}/limited.json")
    with ds.fix_(model, ds.remedies.DeEscalate()):
        found["fixed"] = ds.scan(model, ids, attention=False)["t_sim"].tolist()
    found["forecast"] = ds.forecast(model, inputs=ids).t_sim.tolist()
    found["by weights"] = ds.forecast(model, n=8).t_sim.tolist()
    try:
        every = [values_of(owner, name).clone() for owner, name, _ in weights_in(model)]
        found["all at once"] = f"{len(every)} weights fit: the limit is none"
    except (RuntimeError, MemoryError) as error:
        found["all at once"] = str(error)
    Path(f"{folder}/found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
