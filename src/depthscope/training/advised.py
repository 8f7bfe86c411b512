"""The arm "advised": the design that the advisor chooses for the sizes, the depth and the rate of a comparison."""

from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from depthscope.errors import UsageError
from depthscope.forecasts.advice import Advice
from depthscope.forecasts.advise import advise
from depthscope.metrics import t_sim
from depthscope.models.transformer import Transformer
from depthscope.training.arms import ADVISED, PLAIN, Arm
from depthscope.training.build import Build

OF_THE_MODEL = ("scores", "alpha")  # settings of advice that a build takes as they are


def settled(lanes: list[Arm], base: Build, task: Any, lr: float) -> list[Arm]:
    """The arms, with what the advisor says in the place of those that ask it. lr: of arms without their own."""
    return [_settled(one, base, task, one.lr or lr) if one.wiring == ADVISED else one for one in lanes]


def _settled(one: Arm, base: Build, task: Any, lr: float) -> Arm:
    advice = advise(**sizes(base, task), lr=lr)
    settings = advice.choice.settings
    mended = "tau" in settings
    return replace(
        one,
        wiring=settings.get("wiring", PLAIN),
        remedy="de_escalate" if mended else None,
        settings={"tau": settings["tau"]} if mended else {},
        at=settings["site"] if mended else None,
        model={name: settings[name] for name in OF_THE_MODEL if name in settings},
        remark=in_words(advice),
    )


def sizes(base: Build, task: Any) -> dict[str, Any]:
    """What the advisor is asked about: post-norm blocks of the comparison's sizes, and the tokens that the task feeds
    them, seen at a model of one block."""
    model, _ = replace(base, depth=1, wiring=PLAIN).model(task, 0)
    stack = next((module for module in model.modules() if isinstance(module, Transformer)), None)
    if stack is None:
        raise UsageError(
            f"arm {ADVISED!r}: the task must train a stack of reference blocks, whose sizes can be forecast; "
            f"{task.name} trains {type(model).__name__}. Name a wiring or a remedy."
        )
    seen = list[Tensor]()
    handle = stack.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    inputs, keywords = task.first_call()
    model(*inputs, **keywords)
    handle.remove()
    alike = float(t_sim(seen[0]).mean())
    return asdict(replace(stack.design, depth=base.depth)) | {
        "n": seen[0].shape[-2],
        "t_sim": min(max(alike, 0.0), 0.99),
    }


def in_words(advice: Advice) -> str:
    """What was chosen, what is expected of it, and of the model as it was."""
    now, new = advice.options[0], advice.choice
    lr = advice.lr or 0.0
    choice = new.change if advice.needed else "post-norm as it is"
    was = f"; as it is: {now.trains(lr):.2f}, t_div {now.t_div:.2g}" if advice.needed else ""
    return (
        f"{choice}, which trains at {lr:.2g} with probability {new.trains(lr):.2f} (largest rate about "
        f"{new.forecast.largest_rate:.1g}) and keeps t_div {new.t_div:.2g}{was}"
    )
