"""A record of every kind: files in every form that was ever written, and what is computed in an instant."""

from functools import cache
from pathlib import Path

import depthscope as ds
from depthscope.experiments import results
from depthscope.records import Record

OLD = Path(__file__).parent / "old_records"  # files in every form that was ever written
RECORDS = sorted(file.stem for file in OLD.glob("*.json") if file.stem != "results")
KINDS = [*RECORDS, "reproduction", "advice"]


@cache
def example(name: str) -> Record:
    if name == "reproduction":
        return results(OLD / "results.json")["yu2023/proposition_2_3"]
    if name == "advice":
        return ds.advise(n=8, depth=6, d=16, h=2)
    return ds.load(OLD / f"{name}.json")
