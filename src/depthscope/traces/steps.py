"""What happens inside a block: its residual stream step by step, and where the norms sit.

The stream starts at the block's input. A sum that has the stream (or a norm of it) as one operand moves it on; the
other operand is a branch. This needs no names of modules: BERT, Llama and x-transformers read alike.
"""

from collections import Counter
from dataclasses import dataclass

from depthscope.traces.blocks import Block
from depthscope.traces.log import Add, Call, Log, State


@dataclass(frozen=True)
class Step:
    """One move of the stream: attention, attention_norm, ffn, ffn_norm, branch, ...; bias is |b|^2 of the branch."""

    name: str
    source: State
    result: State
    bias: float = 0.0


@dataclass(frozen=True)
class Anatomy:
    """The steps of one block, the norm placement of each branch, and the factor on the residual."""

    steps: list[Step]
    placements: list[str]
    scale: float


def dissect(log: Log, block: Block) -> Anatomy:
    """Follow the residual stream through one block; no steps when it has none."""
    adds = [a for a in log.adds if block.holds(a.order) and a.result.numbers is not None]
    norms, remedies = ([c for c in calls if _inside(c, block)] for calls in (log.norms, log.remedies))
    norms = [c for c in norms if c.source is not c.result]  # one that gives back its input was taken out
    stream, placements, scales = block.source, [], []
    steps: list[Step] = []
    aside: list[State] = []  # sums without the stream
    since, joint = block.start, False
    visible = _attends(log, block.start, block.end)  # without it no branch can be called a feed-forward network
    for number, add in enumerate(adds):
        operand = _operand(add, stream, [*norms, *remedies])
        if operand is None or _is_for_queries(add, stream, adds[number + 1 :], block.result, [*norms, *remedies]):
            aside.append(add.result)
            continue
        way, scale, branch = operand
        kind = "attention" if _attends(log, since, add.order) else "ffn" if visible else "branch"
        name = _unused(kind, steps)
        kept = _walk(way, stream, norms, steps)
        placements.append(_placement(kept, branch, add, norms, remedies))
        steps.append(Step(name, kept, add.result, add.bias))
        scales.append(scale)
        joint |= add.joint or any(branch is state for state in aside)
        stream, since = add.result, add.order
    if block.result is not stream:
        if not steps:
            return Anatomy([], [], 1.0)
        last = _way(block.result, stream, [*norms, *remedies])
        if last is None:  # norms, and then something that is neither a sum nor a norm nor a remedy
            last = [c for c in norms if c.source is stream][-1:]
        stream = _walk(last, stream, norms, steps)
        if block.result is not stream:
            steps.append(Step("other", stream, block.result))
    if len(placements) == 1 and steps[0].name == "attention" and (joint or _ffn_inside(log, block, since)):
        steps = [
            Step("attention and ffn" if s.name == "attention" else s.name, s.source, s.result, s.bias) for s in steps
        ]
    posts = [_normed_after(s, steps) for s in steps if _is_branch(s)]
    placements = [_with_post(p, post) for p, post in zip(placements, posts, strict=True)]
    return Anatomy(steps, placements, max(scales, default=1.0))


def placement_of(anatomies: list[Anatomy]) -> str:
    """One word for the whole model: post, pre, sandwich, branch, none; "mixed: ..." or "unknown"."""
    counts = Counter(p for anatomy in anatomies for p in anatomy.placements)
    if not counts or sum(bool(a.steps) for a in anatomies) < len(anatomies):
        return "unknown"
    if counts["none"] == 1 and anatomies[0].placements[0] == "none" and len(counts) == 2:
        del counts["none"]  # the first branch may rely on the norm of the embeddings, as in ModernBERT
    if len(counts) == 1:
        return next(iter(counts))
    return "mixed: " + ", ".join(f"{name} x {count}" for name, count in counts.most_common())


def final_norm(log: Log, last: Block) -> Call | None:
    """The norm that follows the last block, as GPT-2, Llama and ViT have it."""
    for call in sorted(log.norms, key=lambda c: c.entered):
        if call.entered > last.end and call.source is last.result and _measured(call):
            return call
    return None


def _measured(call: Call) -> bool:
    return call.source is not None and call.result is not None and call.result.numbers is not None


def _inside(call: Call, block: Block) -> bool:
    return block.start <= call.entered and call.left <= block.end and _measured(call)


def _operand(add: Add, stream: State, moves: list[Call]) -> tuple[list[Call], float, State | None] | None:
    """Which operand of a sum is the stream: the norms and remedies on its way there, its factor, the branch."""
    pairs = list(zip(add.operands, add.operands[::-1], strict=True))
    ways = [(_way(state, stream, moves), scale, branch) for (state, scale), (branch, _) in pairs if state is not None]
    found = [(way, scale, branch) for way, scale, branch in ways if way is not None]
    return min(found, key=lambda one: len(one[0]), default=None)


def _is_for_queries(add: Add, stream: State, later: list[Add], end: State, moves: list[Call]) -> bool:
    """Whether a sum leads nowhere and the stream itself goes on: positions, added to what makes queries and keys."""
    goes_on = _way(end, add.result, moves) is not None or any(_operand(one, add.result, moves) for one in later)
    return not goes_on and any(_operand(one, stream, moves) for one in later)


def _way(state: State | None, stream: State, moves: list[Call]) -> list[Call] | None:
    """The norms and remedies that lead from the stream to a state; [] when it is the stream, None when none do."""
    if state is stream:
        return []
    for call in moves:
        if call.result is state and call.source is not state:
            before = _way(call.source, stream, [c for c in moves if c.entered < call.entered])
            if before is not None:
                return [*before, call]
    return None


def _walk(way: list[Call], stream: State, norms: list[Call], steps: list[Step]) -> State:
    """Go that way, one step for each norm and remedy, and return where it ends."""
    for call in way:
        name = _norm_name(steps) if call in norms else _unused("remedy", steps)
        steps.append(Step(name, stream, call.result))  # type: ignore[arg-type]
        stream = call.result  # type: ignore[assignment]
    return stream


def _is_branch(step: Step) -> bool:
    return not step.name.endswith("_norm") and step.name != "other" and not step.name.startswith("remedy")


def _attends(log: Log, start: int, end: int) -> bool:
    return any(start < a.order < end for a in log.attentions)


def _ffn_inside(log: Log, block: Block, end: int) -> bool:
    """Whether a network follows attention before the sum at `end`, which then joins both."""
    last = max((a.order for a in log.attentions if block.holds(a.order)), default=block.end)
    return sum(last < order < end for order in log.matrices) >= 3


def _unused(name: str, steps: list[Step]) -> str:
    count = sum(s.name.split("_")[0] == name and not s.name.endswith("_norm") for s in steps)
    return name if count == 0 else f"{name}_{count + 1}"


def _norm_name(steps: list[Step]) -> str:
    before = [s.name for s in steps if _is_branch(s)]
    return f"{before[-1]}_norm" if before else "input_norm"


def _placement(kept: State, branch: State | None, add: Add, norms: list[Call], remedies: list[Call]) -> str:
    before = any(c.source is kept and c.left < add.order for c in norms)
    unfixed = next((c.source for c in remedies if branch is not None and c.result is branch), branch)
    inside = unfixed is not None and any(c.result is unfixed and c.source is not kept for c in norms)
    return {(True, True): "sandwich", (True, False): "pre", (False, True): "branch"}.get((before, inside), "none")


def _normed_after(step: Step, steps: list[Step]) -> bool:
    """Whether the next step, a remedy not counted, is a norm."""
    later = [s for s in steps[steps.index(step) + 1 :] if not s.name.startswith("remedy")]
    return bool(later) and later[0].name.endswith("_norm")


def _with_post(placement: str, post: bool) -> str:
    if not post:
        return placement
    return "post" if placement == "none" else f"{placement} and post"
