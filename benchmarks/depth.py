"""What effective depth costs: the measures of one pass over a plain pass, and the passes that pricing takes.

The lens multiplies every state by the head: of a model with a large vocabulary that is more work than the model itself,
so it is not among them. Times are those of the processor, on one thread.
"""

import torch
from _ratio import line, ratio
from transformers import LlamaConfig, LlamaForCausalLM

from depthscope.circuits.subject import subject_of
from depthscope.depths.measures import Sums, measure
from depthscope.depths.replay import Replay

ROUNDS = 5
DEPTH, WIDTH, BATCH, TOKENS, WORDS = 12, 576, 2, 256, 8192


def main() -> None:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": DEPTH, "hidden_size": WIDTH, "intermediate_size": 1536, "num_attention_heads": 9}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=3, vocab_size=WORDS)).eval()
    ids = torch.randint(0, WORDS, (BATCH, TOKENS))
    subject = subject_of(model, ids)
    name = f"Llama {DEPTH} x {WIDTH}, {BATCH} x {TOKENS} tokens"

    def plain() -> None:
        with torch.no_grad():
            model(ids)

    value, seconds = ratio(lambda: measure(subject, Sums(), Sums()), plain, ROUNDS)
    line(f"{name}: measures of one pass / a plain pass", value, "most 1.30", f"a plain pass {seconds:.2f} s")

    replay = Replay(subject)

    def priced() -> None:
        replay.blocks_run = 0
        replay.store()
        for at in range(DEPTH):
            replay.run(replay.without(at))

    value, _ = ratio(priced, plain, 2)
    most = (DEPTH + 2) / 2 + 1
    passes = replay.blocks_run / DEPTH
    line(f"{name}: passes to price all {DEPTH} blocks, in blocks", passes, f"most {most:.2f}")
    line("the same in time of a plain pass, embedding and head included", value, f"most {most:.2f}")


if __name__ == "__main__":
    main()
