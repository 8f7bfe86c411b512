"""Run with the example package on the path: uses one thing of every kind, and prints what came of it as JSON."""

import json
import sys
import warnings

import torch

import depthscope as ds

found: dict = {}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    X = torch.randn(2, 9, 16, generator=torch.manual_seed(0))
    norms = X.double().norm(dim=-1)
    found["peak"] = float((ds.metrics.peak_norm(X) - norms.amax(-1) / norms.mean(-1)).abs().max())
    found["t_sim"] = float(ds.metrics.t_sim(torch.ones(1, 3, 2)))
    found["listed"] = "peak_norm" in dir(ds.metrics)

    model = ds.models.classic(depth=3, d=16, h=2, wiring="halved")
    scan = ds.scan(model, X, metrics=["peak_norm"])
    found["scanned"] = scan["peak_norm"].tolist()
    with ds.fix_(model, ds.remedies.Shrink(0.5)):
        fixed = ds.scan(model, X)
    found["remedies"] = fixed.remedies

    found["claims"] = ds.reproduce("example2026/means", smoke=True).holds
    from depthscope.training.tasks import task

    found["task"] = task("largest", numbers=4).length
    if len(sys.argv) > 1:  # a folder: train, too
        few = {"caveat": False, "search": 0, "processes": 1, "depth": 2, "epochs": 1}
        run = ds.compare("largest", "post_norm,shrink", seeds=1, folder=sys.argv[1], **few)
        found["arms"] = [len(lane.done) for lane in run.lanes]
    try:
        ds.scan(model, X, metrics=["peek_norm"])
    except ds.errors.UnknownNameError as error:
        found["unknown"] = str(error)
found["warnings"] = sorted(str(one.message) for one in told if isinstance(one.message, ds.errors.PluginWarning))
print(json.dumps(found))
