"""Choose between two designs of x-transformers before training either: post-norm or pre-norm, 24 blocks.

python examples/x_transformers_model.py      needs: pip install x-transformers
"""

import torch
from x_transformers import Encoder, TransformerWrapper

import depthscope as ds


def build(pre_norm: bool) -> TransformerWrapper:
    torch.manual_seed(0)
    layers = Encoder(dim=64, depth=24, heads=4, pre_norm=pre_norm)
    return TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=layers).eval()


def main() -> None:
    words = torch.randint(0, 256, (4, 48), generator=torch.manual_seed(1))
    scans = {name: ds.scan(build(name == "pre-norm"), words) for name in ("post-norm", "pre-norm")}
    for name, scan in scans.items():
        half = [f"{float(scan['t_div'][block]):.3f}" for block in (0, 8, 16, 24)]
        print(f"{name:9} token diversity at blocks 0, 8, 16, 24: {', '.join(half)}")
        print(f"{'':9} {scan.verdict}")


if __name__ == "__main__":
    main()
