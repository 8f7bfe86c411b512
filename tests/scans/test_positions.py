"""t_sim[0:16] and its like: a state metric on some positions is the metric of the tokens that stand there."""

import pytest
import torch
import transformers as T

import depthscope as ds
from depthscope.errors import UnknownNameError, UsageError
from depthscope.scans.positions import Part, metric_called
from loops import over

B, N = 3, 12
IDS = torch.randint(1, 99, (B, N), generator=torch.Generator().manual_seed(3))
LEFT = torch.arange(N).expand(B, N) >= torch.tensor([[0], [3], [5]])
RIGHT = torch.arange(N).expand(B, N) < torch.tensor([[12], [9], [7]])


@pytest.fixture
def gpt2() -> T.GPT2Model:
    sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 0}
    return T.GPT2Model(T.GPT2Config(**sizes, initializer_range=0.2)).eval()


def states_of(model: T.GPT2Model, **inputs: torch.Tensor) -> list[torch.Tensor]:
    """The input of block 1 and the output of every block, by hooks of our own."""
    seen: list[torch.Tensor] = []
    handles = [model.h[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))]
    for block in model.h:
        handles.append(
            block.register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
        )
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return seen


def literally(metric: str, states: list[torch.Tensor], where: slice, keep: torch.Tensor | None) -> list[float]:
    """The mean over sequences of the metric of the tokens that are no padding, sliced by Python."""
    measure = getattr(ds.metrics, metric)
    out = []
    for X in states:
        rows = [x if keep is None else x[keep[i]] for i, x in enumerate(X)]
        out.append(sum(float(measure(row[where])) for row in rows) / len(rows))
    return out


SLICES = {
    "[0:5]": slice(0, 5),
    "[2:7]": slice(2, 7),
    "[-4:]": slice(-4, None),
    "[:-3]": slice(-3),
    "[3:99]": slice(3, 99),
}


@over("keep", [None, LEFT, RIGHT])
@over("text", SLICES)
def test_a_range_is_the_metric_of_its_tokens(gpt2: T.GPT2Model, text: str, keep: torch.Tensor | None) -> None:
    inputs = {"input_ids": IDS} | ({} if keep is None else {"attention_mask": keep.long()})
    names = ["t_sim", "t_div", "t_cos", "effective_rank", "composite_norm", "token_norm"]
    if text.startswith(("[0:", "[:")):
        names.append("first_token_similarity")  # others do not hold the first token
    scan = ds.scan(gpt2, inputs, metrics=[name + text for name in names], attention=False)
    states = states_of(gpt2, **inputs)
    for name in names:
        expected = torch.tensor(literally(name, states, SLICES[text], keep), dtype=torch.float64)
        torch.testing.assert_close(scan[name + text], expected, rtol=1e-6, atol=1e-9)
        assert len(scan[name + text]) == 4


def test_parts_share_out_each_sequence_by_its_own_length(gpt2: T.GPT2Model) -> None:
    inputs = {"input_ids": IDS, "attention_mask": RIGHT.long()}
    scan = ds.scan(gpt2, inputs, metrics=["t_sim[1/3]", "t_sim[3/3]"], attention=False)
    for k in (1, 3):
        values = []
        for X in states_of(gpt2, **inputs):
            rows = [x[RIGHT[i]] for i, x in enumerate(X)]
            cuts = [row[(k - 1) * len(row) // 3 : k * len(row) // 3] for row in rows]
            values.append(sum(float(ds.metrics.t_sim(cut)) for cut in cuts) / len(cuts))
        torch.testing.assert_close(scan[f"t_sim[{k}/3]"], torch.tensor(values, dtype=torch.float64), rtol=1e-6, atol=0)


@over("n", [2, 7, 64, 65])
@over("parts", [1, 2, 4, 5])
def test_parts_are_disjoint_and_leave_no_token_out(n: int, parts: int) -> None:
    spans = [Part(k, parts).of(n) for k in range(1, parts + 1)]
    assert [i for span in spans for i in span] == list(range(n))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


def test_the_whole_range_is_the_metric_itself_and_batches_are_averaged() -> None:
    model = ds.models.classic(depth=3, d=16, h=2, causal=True).eval()
    X = torch.randn(4, 10, 16)
    scan = ds.scan(model, [X[:1], X[1:]], metrics=["t_sim", "t_sim[:]", "t_sim[0:10]", "t_sim [ -10 : ]", "t_sim[5:]"])
    for name in ("t_sim[:]", "t_sim[0:10]", "t_sim[-10:]"):
        torch.testing.assert_close(scan[name], scan["t_sim"], rtol=1e-12, atol=0)
    assert not torch.allclose(scan["t_sim[5:]"], scan["t_sim"])
    assert scan.spread["t_sim[5:]"].shape == (4,)


def test_ranges_are_saved_loaded_and_shown(tmp_path) -> None:
    model = ds.models.classic(depth=3, d=16, h=2).eval()
    scan = ds.scan(model, torch.randn(2, 10, 16), metrics=["t_sim[0:5]", "t_sim[5:10]"])
    scan.save(tmp_path / "scan.json")
    assert torch.equal(ds.Scan.load(tmp_path / "scan.json")["t_sim[5:10]"], scan["t_sim[5:10]"])
    assert list(scan.to_pandas()["t_sim[5:10]"]) == scan["t_sim[5:10]"].tolist()
    page = ds.report(scan, to=tmp_path / "scan.html").read_text().split("<footer>")[0]
    page = page.replace("sink_mass, sink_chance", "")  # all quantities are named under how it was measured
    for shown in (str(scan), page):
        assert "t_sim[5:10]" in shown and f"{scan['t_sim[5:10]'][-1]:.3f}" in shown and "sink_mass" not in shown
    assert "t_sim[" not in str(ds.scan(model, torch.randn(2, 10, 16)))


@over(
    "name, message",
    [
        ("t_sim[6:6]", r"t_sim\[6:6\] must hold two tokens or more of every sequence; it holds no token of sequence 0"),
        ("t_sim[4:5]", r"holds one token of sequence 0, which has 10 .* Choose positions inside the shortest"),
        ("t_sim[50:60]", r"holds no token of sequence 0, which has 10 that are not padding"),
        ("t_sim[3/8]", r"t_sim\[3/8\] must .* holds one token"),
        ("xi[0:4]", r"positions go with a metric of one state.* xi is one of a step\. Ask for xi without"),
        ("delta[0:4]", "delta is one of attention"),
        ("t_sim[0-4]", r"positions must be start:stop, as in t_sim\[0:16\].*got 't_sim\[0-4\]'"),
        ("t_sim[0:8:2]", "positions must be start:stop"),
        ("t_sim[0:8", "positions must be start:stop"),
        ("t_sim[]", "positions must be start:stop"),
        ("t_sim[0/4]", "Count positions from 0 and parts from 1"),
        ("t_sim[5/4]", "Count positions from 0 and parts from 1"),
    ],
)
def test_a_range_that_cannot_be_measured_is_refused_with_the_reason(name: str, message: str) -> None:
    model = ds.models.classic(depth=2, d=16, h=2).eval()
    with pytest.raises(UsageError, match="^scan: .*" + message):
        ds.scan(model, torch.randn(2, 10, 16), metrics=[name])


def test_a_short_sequence_of_a_padded_batch_is_named(gpt2: T.GPT2Model) -> None:
    inputs = {"input_ids": IDS, "attention_mask": RIGHT.long()}
    with pytest.raises(UsageError, match=r"holds one token of sequence 2, which has 7 that are not padding"):
        ds.scan(gpt2, inputs, metrics=["t_sim[6:]"])


def test_names_that_nobody_has_are_answered() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean t_sim"):
        metric_called("t_simm[0:4]")
    scan = ds.scan(ds.models.classic(depth=2, d=16, h=2).eval(), torch.randn(2, 10, 16), metrics=["t_sim[0:4]"])
    with pytest.raises(UnknownNameError, match=r"t_sim\[0:5\].*Did you mean t_sim\[0:4\]"):
        scan["t_sim[0:5]"]


@over("name", ["first_token_similarity[4:16]", "first_token_similarity[2/4]"])
def test_the_first_token_is_that_of_the_sequence(name: str) -> None:
    with pytest.raises(UsageError, match="the first token of a sequence, which its positions must hold"):
        metric_called(name)
    assert metric_called("first_token_similarity[:16]").name and metric_called("first_token_similarity[1/4]").name
