"""Forecast many designs before training one: at which block do tokens become alike, by wiring and by branch weight?

python examples/forecast_sweep.py      writes forecast_sweep.png
"""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import depthscope as ds

DEPTH = 96
DESIGNS = {
    "post-norm": {"wiring": "post_norm"},
    "post-norm, de-escalated by tau 0.2": {"wiring": "post_norm", "tau": 0.2},
    "post-norm, de-escalated by tau 0.4": {"wiring": "post_norm", "tau": 0.4},
    "pre-norm": {"wiring": "pre_norm"},
    "DeepNorm": {"wiring": "deep_norm"},
}


def main() -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, choices in DESIGNS.items():
        forecast = ds.forecast(depth=DEPTH, n=64, d=512, h=8, weights="xavier", **choices)
        block = forecast.collapse_depth(0.99)
        print(f"{name:36} 99 % alike after {block:5.1f} blocks; t_sim {float(forecast.t_sim[-1]):.3f} at block {DEPTH}")
        axes.plot(forecast.t_sim, label=name)
    axes.set(xlabel="block", ylabel="token similarity t_sim, forecast", ylim=(0, 1.02))
    axes.legend(loc="center right", fontsize=8)
    figure.savefig("forecast_sweep.png", dpi=120)
    print("written: forecast_sweep.png")


if __name__ == "__main__":
    main()
