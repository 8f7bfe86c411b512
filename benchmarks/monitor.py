"""What a look of ds.Monitor costs, over a training step of the same BERT on the same batch: benchmarks/monitor.py

With a look every 100 steps the training takes so many percent longer.
"""

import torch
from _ratio import line, ratio
from transformers import BertConfig, BertForMaskedLM

import depthscope as ds

ROUNDS = 4
DEPTH, WIDTH, BATCH, TOKENS, WORDS = 12, 256, 8, 128, 5000


def main() -> None:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": DEPTH, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": 4}
    model = BertForMaskedLM(BertConfig(**sizes, vocab_size=WORDS)).train()
    ids = torch.randint(0, WORDS, (BATCH, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()

    name = f"BERT {DEPTH} x {WIDTH}, {BATCH} x {TOKENS} tokens"
    for words, heads in (("states", False), ("states and heads", True)):
        monitor = ds.Monitor(model, {"input_ids": ids}, every=1, attention=heads)
        looks, seconds = ratio(monitor.step, step, ROUNDS)
        line(f"{name}: a look at {words} / a step", looks, "most 1.00", f"a step {seconds:.2f} s")


if __name__ == "__main__":
    main()
