"""Tasks of text take the options of text_task, with defaults of their own where they have some."""

import inspect

from depthscope.training.data.text import text_task
from depthscope.training.tasks.iid import iid
from depthscope.training.tasks.wikitext2 import wikitext2


def test_a_task_has_its_own_defaults_and_else_those_of_all() -> None:
    of_all = inspect.signature(text_task).parameters
    for task, own in ((iid, {"segment": 16, "memory": 0}), (wikitext2, {"epoch_tokens": 262_144})):
        options, of_corpus = inspect.signature(task).parameters, inspect.signature(inspect.unwrap(task)).parameters
        for name, option in of_all.items():
            if option.kind is option.KEYWORD_ONLY and name not in of_corpus:
                assert options[name].default == own.get(name, option.default), name
        assert own.keys() <= options.keys()
