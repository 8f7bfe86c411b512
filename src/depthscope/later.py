"""What is imported only when it is asked for: where records are defined, who fills the shelves, who shows and advises.

Everything here is a name. Whoever reads a table imports what it names; so nobody waits for torch who does not need it,
and what lies below does not know what lies above.
"""

RECORDS = {  # format word of a file -> module that defines its class
    "depthscope.ablations": "depthscope.ablations.record",
    "depthscope.advice": "depthscope.forecasts.advice",
    "depthscope.bench": "depthscope.benches.record",
    "depthscope.bounds": "depthscope.circuits.bounds_record",
    "depthscope.checkup": "depthscope.checkups.record",
    "depthscope.comparison": "depthscope.training.comparison",
    "depthscope.depth": "depthscope.depths.record",
    "depthscope.fixes": "depthscope.remedies.fix_record",
    "depthscope.forecast": "depthscope.forecasts.record",
    "depthscope.gate": "depthscope.gates.record",
    "depthscope.monitor": "depthscope.monitors.history",
    "depthscope.paths": "depthscope.circuits.path_lengths",
    "depthscope.reproduction": "depthscope.experiments.run",
    "depthscope.run": "depthscope.training.run",
    "depthscope.scan": "depthscope.scans.record",
    "depthscope.scans": "depthscope.scans.record",
    "depthscope.spectrum": "depthscope.circuits.spectrum_record",
}
SHELVES = {  # kind of thing -> module that puts all of its kind on the shelf, or folder of such modules
    "metric": "depthscope.metrics",
    "remedy": "depthscope.remedies",
    "preset": "depthscope.models",
    "wiring": "depthscope.models.wirings",
    "attention": "depthscope.models.attentions",
    "activation": "depthscope.models.ffn",
    "weight law": "depthscope.models.weights",
    "task": "depthscope.training.tasks",
}
SHOWS = "depthscope.reports"  # its import sets who shows records
ADVISES = "depthscope.forecasts.advise"  # its import sets who advises in a verdict
