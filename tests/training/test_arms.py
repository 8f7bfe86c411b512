"""Arms as words: what they mean, and what is said to a word that means nothing."""

import pytest

from depthscope.errors import DepthscopeError, UnknownNameError, UsageError
from depthscope.training.arms import CAVEAT, a_third, arm, arms, rate_words, with_caveat
from depthscope.training.build import Build
from loops import over


def test_a_wiring_a_remedy_both_and_a_rate() -> None:
    assert (arm("pre_norm").wiring, arm("pre_norm").remedy) == ("pre_norm", None)
    assert (arm("de_escalate").wiring, arm("de_escalate").remedy) == ("post_norm", "de_escalate")
    assert arm("deep_norm").build(Build(depth=3)) == Build(depth=3, wiring="deep_norm")
    both = arm("pre_norm+de_escalate:tau=0.5,at=ffn_in,learnable=true@3e-4")
    assert (both.wiring, both.remedy, both.at, both.lr) == ("pre_norm", "de_escalate", "ffn_in", 3e-4)
    assert both.settings == {"tau": 0.5, "learnable": True}
    assert arm("DeEscalate").remedy == "DeEscalate"


def test_one_text_is_cut_between_arms_and_not_between_settings() -> None:
    found = arms("post_norm, de_escalate:tau=0.5,at=ffn_in ,pre_norm@1e-4")
    assert [one.name for one in found] == ["post_norm", "de_escalate:tau=0.5,at=ffn_in", "pre_norm@1e-4"]
    assert arms(["post_norm", "pre_norm"]) == arms("post_norm,pre_norm")


@over(
    "text, kind, words",
    [
        ("post_nrom", UnknownNameError, "Did you mean post_norm"),
        ("deescalat", UnknownNameError, "Did you mean de_escalate"),
        ("pre_norm+", UnknownNameError, "no wiring or remedy is called ''"),
        ("pre_norm+post_norm", UnknownNameError, "post_norm"),
        ("pre_norm:tau=1", UsageError, "only a remedy has settings"),
        ("de_escalate:tau", UsageError, "must be name=value"),
        ("post_norm@", UsageError, "must be a learning rate"),
        ("post_norm@-1", UsageError, "must be a learning rate"),
        ("post_norm,post_norm", UsageError, "twice"),
        (" , ", UsageError, "one arm or more"),
    ],
)
def test_a_word_that_means_nothing(text: str, kind: type[DepthscopeError], words: str) -> None:
    with pytest.raises(kind, match=words.replace("+", r"\+")):
        arms(text)


def test_the_caveat_stands_behind_plain_post_norm_alone() -> None:
    lanes = with_caveat(arms("post_norm,de_escalate,pre_norm"), 1e-3)
    assert [one.name for one in lanes] == ["post_norm", "post_norm@3e-4", "de_escalate", "pre_norm"]
    assert (lanes[1].lr, lanes[1].remark) == (3e-4, CAVEAT)
    assert len(with_caveat(arms("post_norm,post_norm@1e-4"), 1e-3)) == 2  # somebody has thought of it
    assert len(with_caveat(arms("post_norm,post_norm@3e-3"), 1e-3)) == 3
    assert len(with_caveat(arms("pre_norm"), 1e-3)) == 1


def test_the_caveat_stands_behind_post_norm_with_a_rate_of_its_own() -> None:
    def names(texts: str) -> list[str]:
        return [one.name for one in with_caveat(arms(texts), 1e-3)]

    assert names("post_norm@1e-3,pre_norm") == ["post_norm@1e-3", "post_norm@3e-4", "pre_norm"]
    assert names("post_norm@2e-3,post_norm") == ["post_norm@2e-3", "post_norm@7e-4", "post_norm", "post_norm@3e-4"]
    assert names("post_norm@1e-3,post_norm") == ["post_norm@1e-3", "post_norm@3e-4", "post_norm"]  # never twice


def test_a_third_is_a_third() -> None:
    assert [a_third(lr) for lr in (1e-3, 5e-4, 4e-4, 8e-3, 3e-3)] == [3e-4, 1.7e-4, 1.3e-4, 2.7e-3, 1e-3]
    assert all(abs(3 * a_third(lr) / lr - 1) <= 0.101 for lr in (k * 1e-5 for k in range(1, 400)))


def test_rates_as_people_write_them() -> None:
    assert [rate_words(r) for r in (1e-3, 3e-4, 0.000333333, 0.01, 2.5)] == ["1e-3", "3e-4", "3.33e-4", "1e-2", "2.5e0"]
