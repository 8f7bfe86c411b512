"""What ds.Monitor adds to a training with a look every 100 steps: python benchmarks/monitor.py

A look is timed against a training step of the same BERT on the same batch: the ratio is 1 + look / (100 step).
"""

import torch
from _ratio import line, ratio
from transformers import BertConfig, BertForMaskedLM

import depthscope as ds

EVERY, ROUNDS = 100, 4
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
        more = f"a look costs {looks:.2f} steps, a step {seconds:.2f} s"
        line(f"{name}: a look at {words} every {EVERY} steps / none", 1 + looks / EVERY, "most 1.01", more)


if __name__ == "__main__":
    main()
