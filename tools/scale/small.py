"""The comparison that all parts of make scale do, in a form for Python and one for the command line."""

MODEL = {"depth": 2, "d": 16, "h": 2, "q": 16, "epochs": 20}
WORDS = [word for name, value in MODEL.items() for word in (f"--{name}", str(value))]
COMPARISON = {"task": "digits", "arms": "post_norm,pre_norm", "seeds": 2, "search": 0, "caveat": False, **MODEL}
COMMAND = ["digits", "--arms", "post_norm,pre_norm", "--seeds", "2", "--search", "0", "--no-caveat", *WORDS]
RUNS = 4
