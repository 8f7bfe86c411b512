"""make scale: the same work by engines for many machines, with real servers on loopback that end with it.

    python tools/scale/run.py [--only dask,search] [--folder out/scale]

Exit code 1 when a part failed. A part whose engine is not installed is not run; what is missing is said.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as in tests/conftest.py
sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.scale.parts import PARTS, ROOT
from tools.scale.servers import MissingError

OWN = "made-by-scale"  # a file that tells a folder which may be emptied


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default=",".join(PARTS), help=f"parts, with commas: {', '.join(PARTS)}")
    arguments.add_argument(
        "--folder", type=Path, default=ROOT / "out" / "scale", help="new, empty, or of an earlier run: emptied"
    )
    chosen = arguments.parse_args()
    wanted = dict.fromkeys(["local", *chosen.only.split(",")])  # the others are held to it
    for name in wanted:
        if name not in PARTS:
            arguments.error(f"--only must name parts of {', '.join(PARTS)}; got {name!r}")
    if chosen.folder.exists() and any(chosen.folder.iterdir()) and not (chosen.folder / OWN).exists():
        arguments.error(f"--folder must be new, empty, or of an earlier run; {chosen.folder} holds other files")
    shutil.rmtree(chosen.folder, ignore_errors=True)
    chosen.folder.mkdir(parents=True)
    (chosen.folder / OWN).touch()
    ended = {name: part(name, chosen.folder.resolve()) for name in wanted}
    for how in ("passed", "failed", "not run"):
        print(f"{how}: {', '.join(name for name, one in ended.items() if one == how) or 'none'}")
    return int("failed" in ended.values())


def part(name: str, folder: Path) -> str:
    """Run one part and say what came of it; returns passed, failed or not run."""
    print(f"{name}: {PARTS[name].__doc__}", flush=True)
    begun = time.monotonic()
    try:
        for line in PARTS[name](folder):
            print(f"  {line}")
        print(f"  passed in {time.monotonic() - begun:.0f} s", flush=True)
        return "passed"
    except MissingError as missing:
        print(f"  NOT RUN: {missing}", flush=True)
        return "not run"
    except Exception as error:
        print(f"  FAILED: {type(error).__name__}: {error}", flush=True)
        return "failed"


if __name__ == "__main__":
    sys.exit(main())
