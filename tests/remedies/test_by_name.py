"""A remedy by its name: one place, whatever asks."""

import pytest

import depthscope as ds
from depthscope.errors import UnknownNameError, UsageError
from depthscope.registry import TABLES
from depthscope.remedies.by_name import is_remedy, remedy_called, remedy_class, snake_names


def test_every_remedy_is_found_by_both_its_names() -> None:
    for name, snake in zip(TABLES["remedy"], snake_names(), strict=True):
        assert remedy_class(name) is remedy_class(snake) is TABLES["remedy"][name]
        assert is_remedy(name) and is_remedy(snake) and snake == snake.lower()


def test_settings_and_the_width_are_passed_on() -> None:
    assert isinstance(remedy_called("de_escalate", 8, tau=0.25), ds.remedies.DeEscalate)
    assert isinstance(remedy_called("FeatScale", 8), ds.remedies.FeatScale)


@pytest.mark.parametrize(
    ("name", "settings", "kind", "message"),
    [
        ("de_escalat", {}, UnknownNameError, "Did you mean DeEscalate"),
        ("attn_scale", {"tau": 1.0}, UsageError, "AttnScale has none"),
        ("de_escalate", {"learnable": "no"}, UsageError, "learnable of DeEscalate must be true or false; got 'no'"),
        ("de_escalate", {"sigma": 1.0}, UsageError, "must be arguments of DeEscalate; .*'sigma'"),
        ("de_escalate", {"name": 1.0, "width": 2}, UsageError, "must be arguments of DeEscalate"),
    ],
)
def test_wrong_words(name: str, settings: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        remedy_called(name, 8, **settings)
