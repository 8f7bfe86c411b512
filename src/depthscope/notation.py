"""The symbols of the papers and their names in the code. `make docs` writes docs/reference/notation.md."""

from typing import NamedTuple


class Symbol(NamedTuple):
    """One symbol: its name in the code, its TeX, what it means, its shape, and where it is defined."""

    name: str
    tex: str
    meaning: str
    shape: str
    source: str


YU = "Yu & Zhang 2023"
DONG = "Dong et al. 2021"
DOVONON = "Dovonon et al. 2024"
GU = "Gu et al. 2024"

SYMBOLS = [
    Symbol("X, Y", r"X, Y", "state before and after a step: n tokens of width d", "(..., n, d)", f"{YU}, section 1.1"),
    Symbol("P", r"P", "attention matrix, rows sum to 1", "(..., h, n, n)", f"{YU}, eq. (2)"),
    Symbol("Pi_1 X", r"\Pi_1 X", "the mean token in every row", "(..., n, d)", f"{YU}, Def. 1.1"),
    Symbol("Pi_2 X", r"\Pi_2 X", "tokens without their mean", "(..., n, d)", f"{YU}, Def. 1.1"),
    Symbol("t_sim", r"t_{sim}", "token similarity, share of the common part", "(...)", f"{YU}, Def. 1.1"),
    Symbol("t_div", r"t_{div}", "token diversity, 1 - t_sim", "(...)", f"{YU}, Def. 1.1"),
    Symbol("t_cos", r"t_{cos}", "mean cosine over pairs of tokens", "(...)", f"{YU}, eq. (1)"),
    Symbol("escalation_rate", r"r(X, Y)", "t_div(X) / t_div(Y) of one step", "(...)", f"{YU}, eq. (5)"),
    Symbol(
        "block_influence", r"BI(X, Y)", "1 - mean cosine of a token before and after a step", "(...)", "Men et al. 2024"
    ),
    Symbol("angular_distance", r"d(X, Y)", "mean angle between them, in half turns", "(...)", "Gromov et al. 2024"),
    Symbol("xi", r"\xi_1, \xi_2", "growth of the common and the centred energy", "(...) each", f"{YU}, eq. (7)"),
    Symbol("mu", r"\mu_1, \mu_2", "what attention keeps of the two parts", "(..., h) each", f"{YU}, eq. (10)"),
    Symbol("omega", r"\omega", "how far attention moves the mean token", "(..., h)", f"{YU}, eq. (12)"),
    Symbol("delta", r"\delta", "norm of centred attention, |Pi_2 P|_2", "(..., h)", f"{YU}, eq. (12)"),
    Symbol("lambda_2", r"|\lambda_2(P)|", "second eigenvalue of attention, modulus", "(..., h)", f"{YU}, eq. (17)"),
    Symbol("eta", r"\eta", "expected ratio of growth minus the drawn one", "(...)", f"{YU}, eq. (14)"),
    Symbol("alpha", r"\alpha", "weight of the attention branch", "number", f"{YU}, Algorithm 1"),
    Symbol("sigma", r"\sigma", "standard deviation of the weights", "number", f"{YU}, Assumption 2.1"),
    Symbol("tau", r"\tau", "strength of de-escalation", "number", f"{YU}, eq. (21)"),
    Symbol("n, d, h", r"n, d, h", "tokens, width, heads", "integers", f"{YU}, section 2.1"),
    Symbol("depth", r"L", "blocks", "integer", f"{YU}, section 2.1"),
    Symbol("composite_norm", r"\|X\|_{1,\infty}", "sqrt(|X|_1 |X|_inf)", "(...)", f"{DONG}, section 2"),
    Symbol("relative_residual", r"\|res(X)\| / \|X\|", "what is left without the mean token", "(...)", DONG),
    Symbol("relative_residual_l1", r"\|res(X)\|_1 / \|X\|_1", "the same by the largest column", "(...)", DONG),
    Symbol("relative_residual_l2", r"\|res(X)\|_2 / \|X\|_2", "the same by the largest singular value", "(...)", DONG),
    Symbol("relative_residual_linf", r"\|res(X)\|_\infty / \|X\|_\infty", "the same by the largest row", "(...)", DONG),
    Symbol("rank_one_residual", r"\|X - X_1\| / \|X\|", "what is left without the best rank-one part", "(...)", DONG),
    Symbol("P_path, W_path", r"P_{path}, W_{path}", "products along a path", "(..., n, n), (d, d)", f"{DONG}, Thm 2.1"),
    Symbol("by_length", r"X_k", "sum over all paths through k attentions", "(L + 1, ..., n, d)", f"{DONG}, section 3"),
    Symbol("hfc_lfc", r"\|HFC\| / \|LFC\|", "what differs over what is shared", "(...)", f"{DOVONON}, section 2"),
    Symbol("H", r"H = W_V W_O", "what a head multiplies a token by", "(..., d, d)", f"{DOVONON}, section 3"),
    Symbol("lambda_H, lambda_A", r"\lambda^H, \lambda^A", "eigenvalues of H and of P", "(..., d), (..., n)", DOVONON),
    Symbol("stable_rank", r"\|X\|_F^2 / \|X\|_2^2", "energy in units of the strongest direction", "(...)", ""),
    Symbol("effective_rank", r"\exp H(\sigma)", "directions by entropy", "(...)", "Roy & Vetterli 2007"),
    Symbol("attention_entropy", r"H(P)", "mean entropy of the rows of P, nats", "(..., h)", "Zhai et al. 2023"),
    Symbol("attention_sink", r"\bar P_{\cdot 1}", "attention to the first token, and by chance", "(..., h) each", GU),
    Symbol("first_token_similarity", r"\|X \hat x_1\|^2 / \|X\|_F^2", "share of later tokens along x_1", "(...)", ""),
    Symbol("prefix_diversity", r"t_{div}(x_1, \ldots, x_t)", "token diversity of every prefix", "(..., n)", ""),
    Symbol("massive_share", r"|M| / n", "tokens 5 times larger than the median, if few", "(...)", "Sun et al. 2024"),
    Symbol("t_sim_rest", r"t_{sim}(X_{\setminus M})", "token similarity of all others", "(...)", ""),
    Symbol("t_div_rest", r"t_{div}(X_{\setminus M})", "token diversity of all others", "(...)", ""),
    Symbol("t_div_core", r"t_{div}(\hat x_i)_{i \in C}", "of directions, without outliers", "(...)", ""),
    Symbol("same_share", r"|\{i : \hat x_i = \hat x_c\}| / n", "tokens that are the same", "(...)", ""),
    Symbol("difference_rank", r"(tr A)^2 / tr A^2", "directions in which tokens differ", "(...)", ""),
    Symbol("difference_size", r"\|\Pi_2 X\|_F / \sqrt n", "distance of tokens from their mean", "(...)", ""),
    Symbol("few_points", r"\sum_g |G_g| / n", "tokens that sit in at most four points", "(...)", ""),
    Symbol("token_norm", r"\frac1n\sum_i\|x_i\|", "mean length of a token", "(...)", f"{YU}, figure 4"),
]


def markdown() -> str:
    """The table as Markdown."""
    lines = ["# Notation", "", "Generated from `src/depthscope/notation.py` by `make docs`.", ""]
    lines += ["| in the code | in the papers | meaning | shape | defined in |", "|---|---|---|---|---|"]
    for symbol in SYMBOLS:
        tex = symbol.tex.replace(r"\|", r"\Vert ").replace("|", r"\vert ")  # a bare | ends the cell of a table
        meaning = symbol.meaning.replace("|", r"\|")
        lines.append(f"| `{symbol.name}` | ${tex}$ | {meaning} | {symbol.shape} | {symbol.source} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
