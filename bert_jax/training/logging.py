"""Logs for people: rows, progress, a plot, and the sums of steps behind them.

metrics.jsonl, TensorBoard, progress lines, a plot and the profiler's trace.
"""

import contextlib
import json
import math
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from bert_jax.files import (
  atomic_file,
  parse_json,
  without_nan,
  write_atomically,
)
from bert_jax.messages import UserError

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
  def excluded(self, steps: int = 0) -> Iterator[None]:
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
      flops: FLOPs of one step.
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
      mfu = utilisation(flops * steps, seconds)
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
    with atomic_file(self._plot) as partial:
      figure.savefig(partial, dpi=120, format="png")

  def close(self) -> None:
    if self._on:
      self._file.close()
      self._board.close()


# Dense bfloat16 FLOP/s of one JAX device, from the vendors' data sheets; on
# TPU v2 and v3 a device is a core, half a chip.
PEAK_FLOPS: dict[str, float] = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
  "TPU v6e": 918e12,
  "NVIDIA A100": 312e12,
  "NVIDIA H100": 989e12,
  "NVIDIA H200": 989e12,
  "NVIDIA L4": 121e12,
  "Tesla V100": 125e12,
}


def peak_flops(device: jax.Device) -> float | None:
  """Peak bfloat16 FLOP/s of a device, None where it is not known."""
  names = [n for n in PEAK_FLOPS if device.device_kind.startswith(n)]
  return PEAK_FLOPS[max(names, key=len)] if names else None


def utilisation(flops: float, seconds: float) -> float | None:
  """`flops` in `seconds` as a share of all devices' peak, if known."""
  peak = peak_flops(jax.devices()[0])
  if peak is None:
    return None
  return flops / seconds / (peak * jax.device_count())


def unigram_cross_entropy(
  counts: np.ndarray, ids: np.ndarray, weights: np.ndarray
) -> float:
  """Cross-entropy in nats of guessing `ids` by their training frequency.

  What a model that ignores context reaches; one is added to every count, so
  that a piece unseen in training has a finite cost.

  Args:
    counts: [V] occurrences in the training text.
    ids: any shape, the targets.
    weights: an array of the same shape, 0 where there is no target.
  """
  log_p = np.log(counts + 1.0) - np.log((counts + 1.0).sum())
  return float(-(log_p[ids] * weights).sum() / weights.sum())


ACTIONS = ("none", "stop", "skip")


class Spikes:
  """Finds spikes: losses that are high compared with the previous window.

  Attributes:
    action: "none": spikes are ignored. "stop": the run ends at a spike. "skip":
      a step with a spike is logged and changes nothing else.
    limit: the highest loss that is not a spike.
  """

  def __init__(
    self, action: str = "none", factor: float = 2.0, limit: float | None = None
  ):
    """Begins a run or continues one.

    Args:
      action: one of `ACTIONS`.
      factor: the limit is the mean loss of the last logged window times this.
      limit: the result of `saved`; None before the first window.

    Raises:
      ValueError: an unknown action, or a factor that is not above 1.
    """
    if action not in ACTIONS:
      raise UserError(
        f"spike.action={action!r}: not one of {', '.join(ACTIONS)}."
      )
    if not factor > 1:
      raise UserError(f"spike.factor={factor}: must be above 1.")
    self.action, self._factor = action, factor
    self.limit = math.inf if limit is None else limit

  def argument(self) -> tuple[np.float32, ...]:
    """Returns the additional arguments of the train step."""
    return () if self.action == "none" else (np.float32(self.limit),)

  def close(self, mean: float) -> None:
    """Sets the limit of the next window from the mean loss of the last one."""
    self.limit = self._factor * mean

  def saved(self) -> float | None:
    """Returns the value of `limit` to pass after a restart."""
    has_limit = self.action != "none" and math.isfinite(self.limit)
    return self.limit if has_limit else None


def steps_in_flight() -> int:
  """Returns how many steps may be queued behind the one that is computed.

  An accelerator must not wait for the host, whose time for a batch varies. On a
  processor a step can take seconds, and nothing is gained by a queue.
  """
  return 1 if jax.default_backend() == "cpu" else 8


class Window:
  """Sums of the steps since the last logged row; they survive a restart."""

  def __init__(self, saved: dict[str, Any] | None = None, stops: bool = False):
    """Begins a window or continues one.

    Args:
      saved: the result of the method `saved`; None for a new window.
      stops: True if a skipped step is an error.
    """
    saved = saved or {"count": 0, "sums": {}}
    self._count, self._sums = saved["count"], dict(saved["sums"])
    self._skipped, self._stops = list(saved.get("skipped", [])), stops
    self._pending: list[tuple[int, dict[str, jax.Array]]] = []
    self._steps_in_flight = steps_in_flight()

  def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
    """Notes a step's metrics; waits for the step `steps_in_flight` before it.

    Without the wait, jax would queue all steps until the next logged row, and
    a run that is asked to stop would first have to compute them.
    """
    self._pending.append((step, metrics))
    if len(self._pending) > self._steps_in_flight:
      jax.block_until_ready(self._pending[-1 - self._steps_in_flight][1])

  def saved(self) -> dict[str, Any]:
    """Waits for the steps so far and returns what `__init__` takes.

    Raises:
      FloatingPointError: the loss of a step is not finite, or a step was
        skipped in a run that stops there.
    """
    for step, metrics in self._pending:
      values = {k: float(v) for k, v in jax.device_get(metrics).items()}
      if values.pop("skipped", 0.0):
        if self._stops:
          raise FloatingPointError(
            f"step {step}: the loss {values['loss']:.6g} is a spike by"
            " config.spike, and the run stops before it. Earlier checkpoints"
            " are kept; continue from one of them in a new --workdir with"
            " --config.init_from=RUN@STEP and a lower schedule.peak."
          )
        self._skipped.append([step, repr(values["loss"])])
        continue
      if not math.isfinite(values["loss"] + values["grad_norm"]):
        raise FloatingPointError(
          f"step {step}: the loss is {values['loss']} and the gradient's norm"
          f" {values['grad_norm']}. The checkpoints before it are kept; lower"
          " schedule.peak or lengthen schedule.warmup in a new --workdir."
        )
      for name, value in values.items():
        self._sums[name] = self._sums.get(name, 0.0) + value
      # A rate is not averaged: the row shows the last step's.
      self._sums["learning_rate"] = values["learning_rate"]
      self._count += 1
    self._pending = []
    saved = {"count": self._count, "sums": dict(self._sums)}
    # Without skipped steps, save the same keys as earlier versions did.
    return saved | ({"skipped": [*self._skipped]} if self._skipped else {})

  def close(self) -> tuple[dict[str, Any], float]:
    """Returns (means, tokens of a step) and starts anew.

    The means leave skipped steps out. The entry `skipped_steps` lists them.

    Raises:
      FloatingPointError: every step was skipped, or see `saved`.
    """
    saved = self.saved()
    steps = [step for step, _ in self._skipped]
    if not saved["count"]:
      raise FloatingPointError(
        f"steps {steps[0]} to {steps[-1]}: every loss is a spike by"
        f" config.spike (the last is {self._skipped[-1][1]}), so the model has"
        " diverged. Earlier checkpoints are kept; continue from one of them in"
        " a new --workdir with --config.init_from=RUN@STEP."
      )
    means = {
      name: value if name == "learning_rate" else value / saved["count"]
      for name, value in saved["sums"].items()
    }
    means.pop("tokens")
    if steps:
      means["skipped_steps"] = steps
      listed = ", ".join(f"{step} (loss {x})" for step, x in self._skipped)
      print(f"skipped: the updates of steps {listed}", flush=True)
    self._count, self._sums, self._skipped = 0, {}, []
    return means, saved["sums"]["tokens"] / saved["count"]


class Profiler:
  """Writes a trace of named steps into WORKDIR/profile."""

  def __init__(self, workdir: str, start: int, steps: int):
    """Traces steps `start` to `start + steps - 1` (1 is the first); 0 none."""
    self._path = os.path.join(workdir, "profile")
    self._start, self._end = start, start + steps
    self._on = False

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """Wraps the dispatch of one step."""
    if self._start <= number < self._end and not self._on:
      jax.profiler.start_trace(self._path)
      self._on = True
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
      yield

  def finish(self, number: int, wait_for: jax.Array) -> None:
    """Ends the trace once its last step is done."""
    if self._on and number + 1 >= self._end:
      wait_for.block_until_ready()
      self.close()

  def close(self) -> None:
    """Ends a trace that is going on."""
    if self._on:
      jax.profiler.stop_trace()
      self._on = False
      print(f"trace: {self._path}", flush=True)
