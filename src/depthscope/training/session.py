"""A training on its way: what computes, the record that grows, the folder that remembers."""

import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from depthscope.errors import CheckpointError, UsageError
from depthscope.monitors.probe import Probe
from depthscope.traces.cut_weights import let_go_
from depthscope.training import checkpoint
from depthscope.training.measured import measured
from depthscope.training.run import HISTORY, Run
from depthscope.training.state import moments_of, put_back_, weights_of
from depthscope.training.step import Stepper
from depthscope.training.stopping import PATIENCE, Stop, divergence, not_finite_end

RECORD = "run.json"


class Session:
    """A run from where it was left: step after step, evaluations at the ends of epochs, checkpoints on the way."""

    def __init__(
        self,
        accelerator: Any,
        run: Run,
        task: Any,
        place: Path | None,
        every_steps: int | None,
        progress: Any,
        on_log: Any,
    ) -> None:
        self.accelerator, self.run, self.task, self.place, self.every_steps = accelerator, run, task, place, every_steps
        self.progress = progress if accelerator.is_main_process else None
        self.on_log = on_log if accelerator.is_main_process else None
        recipe = run.recipe
        self.epoch_steps = recipe.epoch_steps(len(task))
        model, fix = run.build.model(task, recipe.seed)
        run.leaks = fix is not None and fix.leaks
        self.stepper = Stepper(accelerator, model, recipe, task)
        self.probe = Probe(model, task.probe(accelerator.device), recipe.log_every)
        self.done = self._resume()
        self._began = time.perf_counter() - self.run.seconds
        accelerator.init_trackers("depthscope", config={k: str(v) for k, v in run.settings().items()})

    def _resume(self) -> int:
        """Take up the newest checkpoint; returns the number of steps done."""
        saved = None if self.place is None else checkpoint.latest(self.place)
        done = torch.tensor([0 if saved is None else saved.step], device=self.accelerator.device)
        if int(self.stepper.sum(done)) != int(done) * self.accelerator.num_processes:
            raise CheckpointError(
                f"{self.place}: all processes must see the same checkpoints; put it on a shared disk."
            )
        if saved is None:
            return 0
        checkpoint.refuse_other_settings(self.place, saved.run, self.run)
        put_back_(self.stepper.bare, self.stepper.optimizer.optimizer, saved.model, saved.optimizer)
        self.stepper.remember(saved.memory)
        self.run = saved.run
        self.run.notes += [f"not whole, and ignored: {one}" for one in saved.ignored]
        if not self.run.ended:
            self.run.status, self.run.reason = "running", ""
        return saved.step

    def go_on(self, stop: Stop) -> Run:
        """Step after step to the end, or to what comes before it."""
        run, total = self.run, self.stepper.total
        while self.done < total and run.status == "running":
            self._step(self.done)
            if run.status == "running":
                self.done += 1
                self._at_the_end_of_a_step()
            if self._any(stop.asked) and run.status == "running":
                run.status, run.reason = "stopped", f"asked to stop after {self.done} of {total} steps"
        if run.status != "stopped" and not run.final:
            for split in ("train", "valid", "test"):
                run.final[split] = self._evaluate(split, final=True)
            if run.status == "running":
                run.reason = not_finite_end(run.final, not self._any(not self.stepper.finite()))
                run.status = "diverged" if run.reason else "done"
        self._keep(last=True)
        return run

    def _step(self, step: int) -> None:
        run, stepper = self.run, self.stepper
        loss = stepper.gradient(step)
        reason = divergence([*run.history["loss"][-PATIENCE:], loss], step, self.task.answers)
        if reason:
            run.status, run.reason = "diverged", reason
            values = (step, loss, 0.0, float("nan"))  # no update was made
        else:
            if self.probe.due(step, stepper.total - 1):
                self._log(measured(self.probe, step, stepper.sum))
            values = (step, loss, *stepper.update(step))
            if not math.isfinite(values[-1]):
                run.status, run.reason = "diverged", f"the norm of the gradient was {values[-1]} at step {step}"
        for name, value in zip(HISTORY, values, strict=True):
            run.history[name].append(value)
        self.accelerator.log(dict(zip(HISTORY[1:], values[1:], strict=True)), step=step)
        if self.progress is not None:
            self.progress(step + 1, stepper.total, loss, run.logs[-1]["t_sim"][-1] if run.logs else float("nan"))

    def _at_the_end_of_a_step(self) -> None:
        """Evaluate at the end of an epoch (the last is evaluated when all is over), then write a checkpoint."""
        ended = self.done % (self.epoch_steps * self.run.recipe.eval_every) == 0 and self.done < self.stepper.total
        if ended:
            for split in ("train", "valid"):
                self._evaluate(split)
        if ended if self.every_steps is None else self.done % self.every_steps == 0:
            self._keep()

    def _evaluate(self, split: str, *, final: bool = False) -> dict[str, float]:
        accelerator = self.accelerator
        part = accelerator.process_index, accelerator.num_processes
        where: dict[str, Any] = {"device": accelerator.device, "part": part, "total": self.stepper.sum}
        result = self.task.evaluate(self.stepper.model, split, final=final, **where)
        let_go_(self.stepper.bare)
        entry = {"epoch": self.done // self.epoch_steps, "step": self.done, "split": split, **result}
        self.run.evaluations.append(entry)
        accelerator.log({f"{split}/{name}": value for name, value in result.items()}, step=self.done)
        if self.on_log is not None:
            self.on_log(entry)
        return result

    def _log(self, entry: dict[str, Any]) -> None:
        self.run.logs.append(entry)
        flat = {
            f"{name}/{block}": value
            for name in ("t_sim", "t_div", "gradient_norm")
            for block, value in enumerate(entry[name], start=int(name == "gradient_norm"))
        }
        self.accelerator.log(flat, step=entry["step"])
        if self.on_log is not None:
            self.on_log(entry)

    def _any(self, asked: bool) -> bool:
        """Whether any process was asked to stop: all must do the same."""
        if self.accelerator.num_processes == 1:
            return asked
        return bool(self.stepper.sum(torch.tensor(int(asked), device=self.accelerator.device)))

    def _keep(self, *, last: bool = False) -> None:
        """Write a checkpoint, and at the end the record.

        One that fails on the way is a loud note and the training goes on: hours of work are worth more than a moment of
        a full disk, and the next may succeed. After the last one there is no next: its failure is an error.
        """
        self.run.seconds = time.perf_counter() - self._began
        if self.place is None:
            return
        main, failed = self.accelerator.is_main_process, ""
        weights = weights_of(self.stepper.bare, keep=main)
        moments = moments_of(self.stepper.bare, self.stepper.optimizer.optimizer, keep=main)
        memory = self.stepper.remembered()
        if main:
            try:
                checkpoint.save(self.place, self.done, weights, moments, self.run, memory)
                if last:
                    self.run.save(self.place / RECORD)
            except (CheckpointError, UsageError) as error:
                failed = str(error)
        if last and self._any(bool(failed)):
            raise CheckpointError(failed or f"{self.place}: the first process could not write its last checkpoint.")
        if failed:
            self.run.notes.append(failed)
            warnings.warn(f"the training goes on without this checkpoint: {failed}", stacklevel=2)
