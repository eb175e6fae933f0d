"""What a run writes for people: metrics.jsonl, TensorBoard, progress, plot."""

import contextlib
import json
import math
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import jax

from bert_jax.files import parse_json, whole, without_nan, write_atomically
from bert_jax.training import logging_metrics as metrics

Item = TypeVar("Item")


def read_rows(path: str) -> list[dict[str, Any]]:
  """Rows of a metrics.jsonl; lines that are cut or damaged are left out.

  A number that is null is NaN, a metric that is not defined.
  """
  if not os.path.exists(path):
    return []
  with open(path, encoding="utf-8", errors="replace") as f:
    lines = f.read().split("\n")
  rows = []
  # Whole lines end with a newline, so the last item is "" or a cut line.
  for number, line in enumerate(lines[:-1], 1):
    try:
      row = parse_json(line)
      row = {k: math.nan if v is None else v for k, v in row.items()}
      rows.append({"step": int(row["step"]), "split": row["split"], **row})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
      print(f"{path}:{number}: damaged, left out.", flush=True)
  return rows


def _line(row: dict[str, Any]) -> str:
  return json.dumps(without_nan(row)) + "\n"


class _Written:
  """Records the steps of metrics.jsonl and a checksum of all its lines."""

  def __init__(self) -> None:
    self._checksum = 0
    # {"train": [[first step, last step, every], ...], ...}
    self._spans: dict[str, list[list[int]]] = {}

  def add(self, row: dict[str, Any]) -> None:
    self._checksum = zlib.crc32(_line(row).encode(), self._checksum)
    _extend(self._spans.setdefault(row["split"], []), row["step"])

  def saved(self) -> dict[str, Any]:
    # Copy the spans: they grow while a checkpoint is written in the background.
    spans = {split: [[*span] for span in s] for split, s in self._spans.items()}
    return {"steps": spans, "checksum": self._checksum}

  def differences(self, saved: dict[str, Any] | None) -> list[str]:
    """Returns sentences about saved rows that are missing or were changed."""
    if not saved:
      return []
    lines = []
    for split, spans in saved["steps"].items():
      steps = _steps(self._spans.get(split, []))
      missing: list[list[int]] = []
      for step in sorted(_steps(spans) - steps):
        _extend(missing, step)
      if missing:
        lines.append(
          f"the rows of {split} of {_format_steps(missing)} are missing. The"
          " checkpoints are complete, and the run continues; loss.png lacks"
          " these points."
        )
    if not lines and saved["checksum"] != self._checksum:
      lines = ["a row was changed, added or moved since it was written."]
    return lines


def _extend(spans: list[list[int]], step: int) -> None:
  """Adds a step to a list of arithmetic progressions [first, last, every]."""
  if spans:
    first, last, every = spans[-1]
    if first == last and step > last:
      spans[-1] = [first, step, step - first]
      return
    if step == last + every:
      spans[-1][1] = step
      return
  spans.append([step, step, 1])


def _steps(spans: list[list[int]]) -> set[int]:
  return {
    step
    for first, last, every in spans
    for step in range(first, last + 1, every)
  }


def _format_steps(spans: list[list[int]]) -> str:
  """Writes steps in short form, since there may be thousands."""
  names = []
  for first, last, every in spans:
    if (last - first) // every < 3:
      names += map(str, range(first, last + 1, every))
    else:
      distance = f" (every {every})" if every > 1 else ""
      names.append(f"{first} to {last}{distance}")
  return f"step{'s' if len(_steps(spans)) > 1 else ''} {', '.join(names)}"


def duration(seconds: float) -> str:
  """1h02m, 2m03s or 4s."""
  seconds = round(seconds)
  if seconds >= 3600:
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
  if seconds >= 60:
    return f"{seconds // 60}m{seconds % 60:02d}s"
  return f"{seconds}s"


class Logger:
  """Writes rows; only process 0 does, the others' calls do nothing."""

  def __init__(
    self,
    workdir: str,
    start_step: int,
    total_steps: int,
    saved: dict[str, Any] | None = None,
    again: bool = False,
  ):
    """Opens the files and drops rows after the restored step.

    Args:
      workdir: the run's folder.
      start_step: the restored step.
      total_steps: the number of steps of the run.
      saved: the result of `written` when the checkpoint of `start_step` was
        saved. Rows that are missing since then are reported.
      again: True if the evaluation at `start_step` is made again; then its old
        row is dropped.
    """
    self._on = jax.process_index() == 0
    self._total = total_steps
    self._path = os.path.join(workdir, "metrics.jsonl")
    self._plot = os.path.join(workdir, "loss.png")
    self._last = (time.perf_counter(), start_step)
    self._waits = {"data": 0.0, "checkpoint": 0.0}
    if not self._on:
      return
    from tensorboardX import event_file_writer
    from tensorboardX.proto.event_pb2 import SessionLog

    rows = [r for r in read_rows(self._path) if r["step"] <= start_step]
    if again:
      last = {"step": start_step, "split": "heldout"}
      rows = [r for r in rows if not last.items() <= r.items()]
    self._written = _Written()
    for row in rows:
      self._written.add(row)
    for line in self._written.differences(saved):
      print(f"{self._path}: {line}", flush=True)
    write_atomically(self._path, "".join(map(_line, rows)))
    self._file = open(self._path, "a", encoding="utf-8")
    # In this thread: one of its own that dies of a full disk is waited for.
    prefix = os.path.join(workdir, "events")
    self._board = event_file_writer.EventsWriter(prefix)
    # TensorBoard drops what it has from this step on.
    began = SessionLog(status=SessionLog.START)
    self._event(step=start_step + 1, session_log=began)

  def _event(self, **fields: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event

    self._board.write_event(Event(wall_time=time.time(), **fields))
    self._board.flush()

  def _write(self, row: dict[str, Any]) -> None:
    from tensorboardX.proto.summary_pb2 import Summary

    self._file.write(_line(row))
    self._file.flush()
    self._written.add(row)
    scalars = [
      Summary.Value(tag=f"{row['split']}/{name}", simple_value=value)
      for name, value in row.items()
      if isinstance(value, float)
    ]
    self._event(step=row["step"], summary=Summary(value=scalars))

  def written(self) -> dict[str, Any]:
    """Returns JSON values for a checkpoint that describe the written rows."""
    return self._written.saved() if self._on else {}

  @contextlib.contextmanager
  def waiting(self, name: str) -> Iterator[None]:
    """Counts the time within as spent on "data" or "checkpoint"."""
    start = time.perf_counter()
    try:
      yield
    finally:
      self._waits[name] += time.perf_counter() - start

  def timed(self, items: Iterable[Item]) -> Iterator[Item]:
    """The items; how long each is waited for counts as spent on "data"."""
    iterator = iter(items)
    while True:
      with self.waiting("data"):
        try:
          item = next(iterator)
        except StopIteration:
          return
      yield item

  def _shares(self, seconds: float) -> dict[str, float]:
    """Returns the shares of `seconds` that were waited, and starts anew."""
    shares = {f"{name}_wait": w / seconds for name, w in self._waits.items()}
    self._waits = dict.fromkeys(self._waits, 0.0)
    return shares

  @contextlib.contextmanager
  def apart(self, steps: int = 0) -> Iterator[None]:
    """Leaves out of the speed what happens within: compiling, evaluating.

    Args:
      steps: optimizer steps within.
    """
    start = time.perf_counter()
    yield
    spent = time.perf_counter() - start
    self._last = (self._last[0] + spent, self._last[1] + steps)

  def train(
    self, step: int, means: dict[str, float], tokens: float, flops: float
  ) -> None:
    """A row and a progress line.

    Args:
      step: optimizer steps done.
      means: over the steps since the last row; `padding` is a share of slots.
      tokens: real ones of a step, of all hosts.
      flops: of one step.
    """
    now = time.perf_counter()
    seconds, steps = now - self._last[0], step - self._last[1]
    self._last = (now, step)
    shares = self._shares(seconds)
    if not self._on:
      return
    row = {"step": step, "split": "train", **means}
    # Rounding may make a share of zero negative; `+ 0.0` turns -0.0 into 0.0.
    row["padding"] = max(row["padding"], 0.0) + 0.0
    line = f"step {step}/{self._total} loss {means['loss']:.4f}"
    if steps:
      rate = steps / seconds
      row |= {"steps_per_second": rate, "tokens_per_second": tokens * rate}
      row |= shares
      line += f" {rate:.2f} steps/s {tokens * rate:,.0f} tokens/s"
      line += f" padding {row['padding']:.1%}"
      mfu = metrics.utilisation(flops * steps, seconds)
      if mfu is not None:
        row["mfu"] = mfu
        line += f" mfu {mfu:.1%}"
      line += f" ETA {duration((self._total - step) / rate)}"
    self._write(row)
    print(line, flush=True)

  def heldout(self, step: int, means: dict[str, float]) -> None:
    """A row and a line of the evaluation on held-out text."""
    if not self._on:
      return
    self._write({"step": step, "split": "heldout", **means})
    values = " ".join(f"{name} {value:.4f}" for name, value in means.items())
    print(f"step {step} held-out: {values}", flush=True)

  def plot(self) -> None:
    """Draws the losses of metrics.jsonl into loss.png."""
    if not self._on:
      return
    from matplotlib.figure import Figure

    rows = read_rows(self._path)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for split, style in (("train", "-"), ("heldout", "o--")):
      chosen = [r for r in rows if r["split"] == split]
      names = [n for n in (chosen or [{}])[0] if n.endswith("_loss")]
      for name in names:
        axes.plot(
          [r["step"] for r in chosen],
          [r[name] for r in chosen],
          style,
          markersize=3,
          label=f"{split} {name}",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats)")
    axes.grid(alpha=0.3)
    if axes.lines:
      axes.legend()
    with whole(self._plot) as partial:
      figure.savefig(partial, dpi=120, format="png")

  def close(self) -> None:
    if self._on:
      self._file.close()
      self._board.close()
