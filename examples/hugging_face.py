"""Scan a Hugging Face model with padded inputs: which blocks make tokens alike, and which heads mix most.

python examples/hugging_face.py
"""

import torch
import transformers

import depthscope as ds


def main() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=24, hidden_size=128, num_attention_heads=4, intermediate_size=256, vocab_size=1000,
        initializer_range=0.08,  # larger than the usual 0.02: attention then mixes at full strength
    )  # fmt: skip
    model = transformers.BertModel(config).eval()  # or BertModel.from_pretrained("path/to/your/folder")

    mask = torch.ones(4, 32, dtype=torch.long)
    mask[1:, 20:] = 0  # padding is left out of every number
    batch = {"input_ids": torch.randint(0, 1000, (4, 32)), "attention_mask": mask}

    scan = ds.scan(model, batch)
    print(scan.verdict)
    print("the blocks that make tokens alike fastest:")
    rate = scan["escalation_rate"]  # one value for each block: diversity before / diversity after
    for block in rate.argsort(descending=True)[:3].tolist():
        print(f"  block {block + 1:2}: diversity divided by {float(rate[block]):.2f}")

    heads = scan.per_head("delta")  # (blocks, heads): how much of a difference between tokens a head can pass on
    block, head = divmod(int(heads.argmin()), heads.shape[1])
    print(f"the head that mixes most: head {head + 1} of block {block + 1}, delta {float(heads.min()):.2g}")


if __name__ == "__main__":
    main()
