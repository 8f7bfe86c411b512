"""Laws of tokens that flow through a model's own code, without numbers."""

from depthscope.laws import image_rules, reshape_rules, rules, score_rules  # noqa: F401, they fill the table of rules
