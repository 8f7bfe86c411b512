"""Model and inputs in, what flowed through out: block finder, hooks, attention interception."""
