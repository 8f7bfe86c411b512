"""A progress bar for one training: steps, loss, and how alike the tokens are after the last block."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int, float, float], None]]:
    """Yields what train(progress=...) wants; the bar is on stderr and gone when the training is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, refresh_per_second=4
    ) as progress:
        task = progress.add_task(title, total=None, now="")

        def show(done: int, total: int, loss: float, t_sim: float) -> None:
            progress.update(task, completed=done, total=total, now=f"loss {loss:.3f}  t_sim {t_sim:.3f}")

        yield show
