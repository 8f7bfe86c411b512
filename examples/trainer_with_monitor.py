"""Watch a run of the Hugging Face Trainer: a monitor looks at a probe batch and raises an alarm with a block and a fix.

python examples/trainer_with_monitor.py      needs: pip install "transformers[torch]"
"""

import tempfile
import warnings

import torch
import transformers

import depthscope as ds
from depthscope.integrations import TrainerCallback

WORDS, LENGTH = 64, 24


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Words in ascending order from a random beginning; every fifth is hidden and to be found."""
    rows = (torch.randint(1, WORDS, (count, 1)) + torch.arange(LENGTH)) % (WORDS - 1) + 1
    hidden = torch.rand(rows.shape) < 0.2
    inputs, labels = rows.masked_fill(hidden, 0), rows.masked_fill(~hidden, -100)
    return [{"input_ids": one, "labels": label} for one, label in zip(inputs, labels, strict=True)]


def main() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=24, hidden_size=48, num_attention_heads=4, intermediate_size=96, vocab_size=WORDS,
        initializer_range=0.14,  # too large for 24 post-norm blocks, as the monitor will say
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    data = sentences(256)
    probe = {"input_ids": torch.stack([one["input_ids"] for one in data[:4]])}
    watch = TrainerCallback(probe=probe, every=5)

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ds.errors.MonitorWarning)  # alarms are printed below instead
        settings = transformers.TrainingArguments(
            folder, max_steps=10, per_device_train_batch_size=16, report_to=[], disable_tqdm=True, use_cpu=True,
            dataloader_pin_memory=False, logging_strategy="no", save_strategy="no",
        )  # fmt: skip
        transformers.Trainer(model, settings, train_dataset=data, callbacks=[watch]).train()

    monitor = watch.monitor
    print(monitor.history)
    print("alarms:")
    for alarm in monitor.alarms:
        print(" ", alarm)


if __name__ == "__main__":
    main()
