"""A checkpoint is whole or it does not count; a full disk costs one checkpoint and not the run."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import BUILD, RECIPE, tiny_task

from depthscope import files
from depthscope.errors import CheckpointError, RecordError
from depthscope.training import checkpoint
from depthscope.training.loop import train
from depthscope.training.run import Run
from depthscope.training.state import moments_of, put_back_, weights_of
from depthscope.training.step import adamw
from loops import over

RUN = Run(BUILD, RECIPE, "stripes", "abc")
WEIGHTS, MOMENTS = {"w": torch.randn(3, 4)}, {"w.exp_avg": torch.randn(3, 4), "w.step": torch.tensor(7.0)}


def full_disk(monkeypatch: pytest.MonkeyPatch, fails) -> None:
    """The disk is full while fails(path) is true; half of the bytes still fit."""
    write = checkpoint._write

    def limited(path: Path, data: bytes) -> None:
        write(path, data[: len(data) // 2] if fails(path) else data)
        if fails(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", limited)


def test_what_is_saved_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 12, WEIGHTS, MOMENTS, RUN)
    assert sorted(f.name for f in path.iterdir()) == [
        "memory.safetensors",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    saved = checkpoint.latest(tmp_path)
    assert saved is not None and saved.step == 12 and saved.run.to_dict() == RUN.to_dict() and saved.ignored == ()
    assert all(torch.equal(saved.model[name], WEIGHTS[name]) for name in WEIGHTS)
    assert all(torch.equal(saved.optimizer[name], MOMENTS[name]) for name in MOMENTS)


def test_the_newest_two_are_kept_and_nothing_else(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nowhere") is None
    for step in (1, 2, 30, 400):
        checkpoint.save(tmp_path, step, WEIGHTS, MOMENTS, RUN)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["step_000030", "step_000400"]


def test_the_newest_is_told_by_its_number(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000):
        checkpoint.save(tmp_path, step, WEIGHTS, MOMENTS, RUN)
    (tmp_path / "step_copy").mkdir()
    assert checkpoint.latest(tmp_path).step == 1_000_000  # type: ignore[union-attr]
    checkpoint.save(tmp_path, 1_000_001, WEIGHTS, MOMENTS, RUN)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["step_1000000", "step_1000001", "step_copy"]


@over("text", ["[]", "null", "3", "{}", "", "\x00", '{"format": "depthscope.checkpoint"}', '{"version": 3}'])
def test_a_state_that_says_nothing_is_ignored(tmp_path: Path, text: str) -> None:
    checkpoint.save(tmp_path, 1, WEIGHTS, MOMENTS, RUN)
    (checkpoint.save(tmp_path, 2, WEIGHTS, MOMENTS, RUN) / "state.json").write_text(text)
    if text == '{"format": "depthscope.checkpoint"}':  # of no version that we know
        with pytest.raises(CheckpointError, match=r"version 2 to 3; got .*, None"):
            checkpoint.latest(tmp_path)
        return
    saved = checkpoint.latest(tmp_path)
    assert saved is not None and saved.step == 1 and saved.ignored[0].startswith("step_000002")


@over("field", ["step", "files", "run", "crc32"])
@over("sealed", [True, False])
def test_a_state_without_one_of_its_fields_is_ignored(tmp_path: Path, field: str, sealed: bool) -> None:
    checkpoint.save(tmp_path, 1, WEIGHTS, MOMENTS, RUN)
    path = checkpoint.save(tmp_path, 2, WEIGHTS, MOMENTS, RUN) / "state.json"
    state = json.loads(path.read_text())
    del state[field]
    if sealed and field != "crc32":
        state = files.sealed({name: value for name, value in state.items() if name != "crc32"})
    path.write_text(json.dumps(state))
    assert checkpoint.latest(tmp_path).step == 1  # type: ignore[union-attr]


def test_one_digit_of_a_state_is_not_taken_for_another_result(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, WEIGHTS, MOMENTS, RUN)
    path = checkpoint.save(tmp_path, 2, WEIGHTS, MOMENTS, replace(RUN, seconds=123.5)) / "state.json"
    path.write_text(path.read_text().replace("123.5", "123.6"))
    saved = checkpoint.latest(tmp_path)
    assert saved is not None and saved.step == 1 and "checksum" in saved.ignored[0]


def test_names_of_files_in_a_state_lead_nowhere(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "a", 1, WEIGHTS, MOMENTS, RUN) / "state.json"
    state = {name: value for name, value in json.loads(path.read_text()).items() if name != "crc32"}
    state["files"] = {f"../../{name}": facts for name, facts in state["files"].items()}
    path.write_text(json.dumps(files.sealed(state)))
    with pytest.warns(
        UserWarning, match="no checkpoint is whole, so the run starts again from the beginning: step_000001"
    ):
        assert checkpoint.latest(tmp_path / "a") is None


def test_one_of_the_version_before_is_read(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, WEIGHTS, MOMENTS, RUN) / "state.json"
    state = {name: value for name, value in json.loads(path.read_text()).items() if name != "crc32"}
    path.write_text(json.dumps(state | {"version": 2}))
    assert checkpoint.latest(tmp_path).step == 1  # type: ignore[union-attr]


def test_a_damaged_record_of_a_run_is_made_good_by_the_checkpoint(tmp_path: Path) -> None:
    whole = train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
    record = tmp_path / "run.json"
    text = record.read_text()
    for damaged in ("", text[:999], text.replace('"done"', '"dome"'), text.replace(" 1", " 2", 1)):
        record.write_text(damaged)
        with pytest.warns(UserWarning, match=r"continues from its checkpoints, .*run.json' must be "):
            again = train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
        assert again.history == whole.history and again.final == whole.final
        assert Run.load(record).history == whole.history
    record.write_text('{"format": "mine"}')  # not damaged: somebody else's
    with pytest.raises(RecordError, match="must say format"):
        train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
    assert record.read_text() == '{"format": "mine"}'


@over("damage", ["short", "flipped", "missing", "no state", "half a state"])
def test_one_that_is_not_whole_is_ignored(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, 1, WEIGHTS, MOMENTS, RUN)
    newest = checkpoint.save(tmp_path, 2, {"w": WEIGHTS["w"] + 1}, MOMENTS, RUN)
    target = newest / ("state.json" if "state" in damage else "model.safetensors")
    data = target.read_bytes()
    if damage in ("missing", "no state"):
        target.unlink()
    else:
        target.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage == "flipped" else data[: len(data) // 2])
    saved = checkpoint.latest(tmp_path)
    assert saved is not None and saved.step == 1 and torch.equal(saved.model["w"], WEIGHTS["w"])
    assert len(saved.ignored) == 1 and saved.ignored[0].startswith("step_000002")
    checkpoint.save(tmp_path, 2, WEIGHTS, MOMENTS, RUN)  # takes the damaged one's place
    assert checkpoint.latest(tmp_path).step == 2  # type: ignore[union-attr]


def test_a_strange_format_is_not_taken_for_damage(tmp_path: Path) -> None:
    state = checkpoint.save(tmp_path, 1, WEIGHTS, MOMENTS, RUN) / "state.json"
    record = {name: value for name, value in json.loads(state.read_text()).items() if name != "crc32"}
    state.write_text(json.dumps(files.sealed(record | {"version": 99})))
    with pytest.raises(CheckpointError, match=r"step_000001/state.json: must say .* version 2 to 3; got .*, 99"):
        checkpoint.latest(tmp_path)


def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, WEIGHTS, MOMENTS, RUN)
    full_disk(monkeypatch, lambda path: path.name == "optimizer.safetensors")
    with pytest.raises(
        CheckpointError, match=r"No space left on device. .*step_000001 is whole.*Make room on the disk"
    ):
        checkpoint.save(tmp_path, 2, WEIGHTS, MOMENTS, RUN)
    assert [f.name for f in tmp_path.iterdir()] == ["step_000001"] and checkpoint.latest(tmp_path).step == 1  # type: ignore[union-attr]


def test_a_run_goes_on_when_the_disk_was_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, lambda path: "000004" in str(path))
    with pytest.warns(UserWarning, match="goes on without this checkpoint: .*step_000004.*No space left"):
        run = train(BUILD, tiny_task(), RECIPE, folder=tmp_path, every_steps=2)
    assert run.status == "done" and len(run.notes) == 1 and "step_000004" in run.notes[0]
    assert sorted(f.name for f in tmp_path.glob("step_*")) == ["step_000010", "step_000012"]


def test_the_last_checkpoint_must_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, lambda path: "000012" in str(path))
    with pytest.raises(CheckpointError, match="step_000008 is whole, and the run can continue from it"):
        train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
    monkeypatch.undo()
    assert train(BUILD, tiny_task(), RECIPE, folder=tmp_path).history == train(BUILD, tiny_task(), RECIPE).history


def test_other_settings_are_refused_with_the_differences(tmp_path: Path) -> None:
    train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
    other = replace(RECIPE, lr=1e-4, epochs=9)
    says = "settings that it began with; epochs: 3 became 9; lr: 0.003 became 0.0001. Give those settings again"
    with pytest.raises(CheckpointError, match=says):
        train(BUILD, tiny_task(), other, folder=tmp_path)
    (tmp_path / "run.json").unlink()  # the checkpoints know it too
    with pytest.raises(CheckpointError, match=says):
        train(BUILD, tiny_task(), other, folder=tmp_path)
    with pytest.raises(CheckpointError, match="depth: 2 became 3"):
        train(replace(BUILD, depth=3), tiny_task(), RECIPE, folder=tmp_path)
    with pytest.raises(CheckpointError, match="fingerprint: "):
        train(BUILD, tiny_task(48), RECIPE, folder=tmp_path)


def test_a_run_that_has_ended_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
    monkeypatch.setattr("depthscope.training.step.Stepper.gradient", lambda *_: pytest.fail("it ran again"))
    assert train(BUILD, tiny_task(), RECIPE, folder=tmp_path).to_dict() == first.to_dict()
    (tmp_path / "run.json").unlink()  # killed between the last checkpoint and the record
    again = train(BUILD, tiny_task(), RECIPE, folder=tmp_path)
    assert (again.history, again.final) == (first.history, first.final) and (tmp_path / "run.json").exists()


def test_the_numbers_of_another_model_are_refused() -> None:
    model, _ = BUILD.model(tiny_task(), 0)
    optimizer = adamw(model, RECIPE)
    model(torch.zeros(1, 1, 4, 4)).sum().backward()
    optimizer.step()
    weights, moments = weights_of(model), moments_of(model, optimizer)
    del weights["head.bias"]
    with pytest.raises(CheckpointError, match=r"must have the model's tensors; head.bias is in one of them only"):
        put_back_(model, optimizer, weights, moments)


def test_the_names_in_a_folder_are_on_the_disk_and_not_only_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(checkpoint.os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    checkpoint._write(tmp_path / "data", b"words")
    checkpoint._sync(tmp_path)
    assert synced == [(tmp_path / "data").stat().st_ino, tmp_path.stat().st_ino]
