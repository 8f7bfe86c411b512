"""One of two processes that torchrun starts: they train one model together, and each scans it.

torchrun --nproc-per-node 2 -m tools.scale.two_ranks FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import depthscope as ds
from depthscope.training import checkpoint
from depthscope.training.build import Build
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.tasks import task as load_task

RANKS = 2


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    assert dist.get_world_size() == RANKS, f"{RANKS} processes must take part; {dist.get_world_size()} do"
    data, build, recipe = load_task("digits"), Build(depth=4, d=16, h=2, q=16), Recipe(epochs=6, batch=64)
    run = train(build, data, recipe, folder=folder, processes=RANKS)
    assert dist.get_world_size() == RANKS and run.status == "done", run.reason
    assert run.history["loss"][-1] < run.history["loss"][0], "it must learn"
    dist.barrier()
    saved = checkpoint.latest(folder)
    assert saved is not None and saved.step == len(run.history["loss"])
    model, _ = build.model(data, recipe.seed)
    model.load_state_dict(saved.model)
    scan = ds.scan(model.eval(), data.probe(torch.device("cpu")))
    seen: list[torch.Tensor] = [torch.empty_like(scan["t_sim"]) for _ in range(RANKS)]
    dist.all_gather(seen, scan["t_sim"].contiguous())
    assert torch.equal(*seen), "both processes must have the same model, and see the same"
    if dist.get_rank() == 0:
        ends = f"loss {run.history['loss'][0]:.4f} to {run.history['loss'][-1]:.4f}"
        print(f"world size {dist.get_world_size()} ({dist.get_backend()}): {len(run.history['loss'])} steps, {ends}")
        print(
            f"both scan it: t_sim {float(seen[0][0]):.4f} to {float(seen[0][-1]):.4f} over {scan.depth} blocks, equal"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
