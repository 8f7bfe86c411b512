"""Images made worse, to ask a trained model about them: Gaussian noise and Gaussian blur (Dovonon et al. 2024)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.errors import UsageError

REACH = 4.0  # deviations of a Gaussian, beyond which its weights are left out of a blur
Strengths = float | Sequence[float]


@dataclass(frozen=True)
class Damage:
    """kind "noise": of deviation `strength`, 1 being the range from black to white. "blur": with a Gaussian of
    deviation `strength` pixels. The seed draws the noise, the same for all models that are asked."""

    kind: str
    strength: float
    seed: int = 0

    @property
    def name(self) -> str:
        """noise_0.2, as it stands behind a score."""
        return f"{self.kind}_{self.strength:g}"

    def __call__(self, images: Tensor) -> Tensor:
        """images (N, C, H, W) in [0, 1], float32 -> the same, worse."""
        if self.kind == "noise":
            return noisy(images, self.strength, self.seed)
        return blurred(images, self.strength)


def noisy(images: Tensor, deviation: float, seed: int) -> Tensor:
    """x + deviation z, z standard normal for each pixel and channel, cut to [0, 1]; one z for all strengths."""
    z = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + deviation * z).clamp(0, 1)


def blurred(images: Tensor, deviation: float) -> Tensor:
    """Each pixel the mean of those around it, with Gaussian weights; beyond its edge an image goes on as there."""
    reach = max(1, math.floor(REACH * deviation + 0.5))
    weights = torch.exp(-torch.arange(-reach, reach + 1).double().square() / (2 * deviation**2))
    line = (weights / weights.sum()).float()
    planes = images.flatten(0, 1).unsqueeze(1)  # (N C, 1, H, W)
    planes = F.conv2d(F.pad(planes, (0, 0, reach, reach), mode="replicate"), line.view(1, 1, -1, 1))
    planes = F.conv2d(F.pad(planes, (reach, reach, 0, 0), mode="replicate"), line.view(1, 1, 1, -1))
    return planes.view_as(images).clamp(0, 1)  # a mean of what lies in [0, 1], but for rounding


def damages(noise: Strengths, blur: Strengths, seed: int, *, where: str) -> tuple[Damage, ...]:
    """One damage for each strength of noise and of blur, checked; a single number is one strength."""
    found = []
    for kind, given, most in (("noise", noise, 1.0), ("blur", blur, 32.0)):
        strengths = given if isinstance(given, list | tuple) else (given,)
        for strength in strengths:
            if type(strength) not in (int, float) or not 0 < strength <= most:  # type: ignore[operator]
                unit = "of the range from black to white" if kind == "noise" else "pixels"
                raise UsageError(
                    f"{where}: {kind} must be strengths above 0, up to {most:g} {unit}; got {given!r}. "
                    "Write [0.1, 0.2], or leave it out: undamaged images are always tested."
                )
            found.append(Damage(kind, float(strength), seed))  # type: ignore[arg-type]
    if len({one.name for one in found}) < len(found):
        raise UsageError(f"{where}: every strength must be there once; got noise {noise!r} and blur {blur!r}.")
    return tuple(found)
