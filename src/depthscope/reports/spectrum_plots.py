"""The picture of a spectrum: eigenvalues with the region that decides, margins, frequency response, high over low."""

from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.spectrum_record import Spectrum
from depthscope.theory.smoothing_regions import sharpening_disc

COLOUR = {"smooth": "#c0392b", "sharpen": "#2471a3", "neither": "#9a7d0a"}


def draw(spectrum: Spectrum, figure: Any) -> None:
    """Four panels."""
    ((plane, margins), (response, ratio)) = figure.subplots(2, 2)
    draw_plane(plane, spectrum)
    draw_margins(margins, spectrum)
    _response(response, spectrum)
    ratio.plot(spectrum.hfc_lfc, color="0.2", marker=".", ms=4)
    ratio.set(title="high over low frequencies = sqrt(t_div / t_sim)", xlabel="block")
    if float(spectrum.hfc_lfc.max()) > 20 * float(spectrum.hfc_lfc.min()):
        ratio.set_yscale("log")
    ratio.grid(alpha=0.25)
    shares = ", ".join(f"{share:.0%} {word}" for word, share in spectrum.shares.items() if share)
    figure.suptitle(f"{spectrum.model}, {spectrum.depth} blocks: {shares}")


def draw_plane(ax: Any, spectrum: Spectrum) -> None:
    """All lambda_H as they act, those that dominate ringed, over the discs in which attention's own eigenvalue wins."""
    from matplotlib.patches import Circle

    h = spectrum.eigenvalues * spectrum.factor.unsqueeze(-1)
    limit = _limit(h)
    lowest = spectrum.lowest.nan_to_num(1.0).amin(-1).clamp(-0.999, 0.99)  # 1: attention that mixes nothing
    for a, style in ((float(lowest.median()), "-"), (0.99, ":")):
        disc = sharpening_disc(a)
        centre, radius = complex(disc.centre), float(disc.radius)
        ax.add_patch(Circle((centre.real, centre.imag), radius, fc="#2471a3", alpha=0.12, lw=0))
        ax.add_patch(
            Circle((centre.real, centre.imag), radius, fill=False, ec="#2471a3", ls=style, label=f"lambda_A = {a:.2f}")
        )
    blocks = torch.arange(1, spectrum.depth + 1).unsqueeze(-1).expand(h.shape)
    x, y, colours = (values.flatten().numpy() for values in (h.real, h.imag, blocks))
    dots = ax.scatter(x, y, c=colours, s=3, alpha=0.5, cmap="viridis", lw=0)
    first = spectrum.lambda_H * spectrum.factor
    for word, colour in COLOUR.items():
        chosen = torch.tensor([v == word for v in spectrum.verdicts]) & ~first.real.isnan()
        if bool(chosen.any()):
            x, y = (part[chosen].clamp(-limit, limit).numpy() for part in (first.real, first.imag))
            label = f"dominating, {word}"
            ax.scatter(x, y, s=42, fc="none", ec=colour, lw=1.3, label=label, clip_on=False, zorder=3)
    ax.figure.colorbar(dots, ax=ax, label="block", shrink=0.8).solids.set(alpha=1)
    ax.axhline(0, color="0.7", lw=0.6, zorder=0)
    ax.axvline(0, color="0.7", lw=0.6, zorder=0)
    ax.set(
        xlim=(-limit, limit),
        ylim=(-limit, limit),
        aspect="equal",
        xlabel="real part (rings at the edge lie outside)",
        ylabel="imaginary part",
    )
    if bool(spectrum.lambda_H.real.isnan().any()):
        ax.plot([], [], " ", label="no ring: an uneven norm behind\nthe sum decides too")
    ax.set_title("eigenvalues of H as they act; inside a disc that lambda_A beats 1", fontsize=11)
    ax.legend(fontsize=7, frameon=True, framealpha=0.8, loc="upper left")


def _limit(h: Tensor) -> float:
    """Wide enough for nearly all eigenvalues and the disc over [-2, 0]; far ones stay outside."""
    return 1.15 * max(2.0, float(h.abs().flatten().nanquantile(0.95)))


def draw_margins(ax: Any, spectrum: Spectrum) -> None:
    """A bar for each block, a line over its sequences' margins, a dot for the weights alone."""
    blocks = torch.arange(1, spectrum.depth + 1)
    ax.bar(blocks.numpy(), spectrum.margin.numpy(), color=[COLOUR[word] for word in spectrum.verdicts], alpha=0.75)
    ax.plot(blocks, spectrum.margin_of_weights, "k.", ms=4, label="by weights alone")
    ax.plot(blocks, spectrum.margin_apart, "kx", ms=4, mew=0.8, label="with every head's own attention")
    heads = spectrum.head_margins
    for index in range(heads.shape[1]):
        label = "each head alone" if index == 0 else None
        ax.plot(blocks, heads[:, index], "_", color="0.45", ms=5, mew=0.8, label=label)
    ax.axhline(0, color="0.3", lw=0.8)
    ax.set_yscale("symlog", linthresh=0.1)
    ax.set(title="margin: above 0 tokens grow alike, below 0 they stay apart", xlabel="block")
    ax.grid(alpha=0.25)
    ax.legend(fontsize=8, framealpha=0.8)


def _response(ax: Any, spectrum: Spectrum) -> None:
    gains = spectrum.response.clamp(min=1e-6).log2()
    reach = max(0.25, float(gains.abs().nan_to_num(0.0).flatten().quantile(0.9)))
    extent = (-0.5, gains.shape[1] - 0.5, spectrum.depth + 0.5, 0.5)
    image = ax.imshow(
        gains.numpy(), aspect="auto", cmap="RdBu_r", vmin=-reach, vmax=reach, extent=extent, interpolation="none"
    )
    ax.figure.colorbar(image, ax=ax, label="log2 of energy after / before", shrink=0.8)
    over = "2-D, over patches" if spectrum.frequencies == "patches" else "over tokens"
    ax.set(title=f"what each block does to each frequency, {over}", xlabel="frequency (0: all alike)", ylabel="block")
