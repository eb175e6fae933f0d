"""Writes what a run reports, and sums the metrics of its steps.

A run reports to metrics.jsonl, to TensorBoard and to progress lines. It also
draws a plot of the losses, and writes a trace of the profiler.

In this file, a row is one JSON object of metrics.jsonl: the metrics of some
training steps, or the results of an evaluation.
"""

import contextlib
import contextvars
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from etils import epath

from bert_jax import messages
from bert_jax.files import (
  PathLike,
  atomic_file,
  parse_json,
  without_nan,
  write_atomically,
)
from bert_jax.messages import UserError, say

T = TypeVar("T")

# The seconds until `Logger.report_progress` prints its first line.
FIRST_WAIT = 3.0
# The names of results that count things. They are printed without a fraction.
COUNT_NAMES = frozenset({"examples", "predicted_labels"})
# A function that is called with each new row of metrics.jsonl, with the row's
# progress line, and with the number of steps of the run.
RowCallback = Callable[[Mapping[str, Any], str, int], None]


def result_text(name: str, mean: float) -> str:
  """Formats a result of an evaluation for the progress lines of a run."""
  return f"{mean:,.0f}" if name in COUNT_NAMES else f"{mean:.4f}"


def read_rows(path: PathLike) -> list[dict[str, Any]]:
  """Reads the rows of a metrics.jsonl.

  A damaged line is reported and left out. A last line without a newline was cut
  off while it was written, and is left out. An undefined metric is null in the
  file, and is read as NaN.

  Args:
    path: the file. If the file is missing, the result is [].
  """
  file = epath.Path(path)
  if not file.exists():
    return []
  lines = file.read_bytes().decode("utf-8", errors="replace").split("\n")
  rows = []
  # Complete lines end with a newline, so the last line is empty or cut off.
  for line_number, line in enumerate(lines[:-1], 1):
    try:
      row = parse_json(line)
      row = {k: math.nan if v is None else v for k, v in row.items()}
      rows.append({"step": int(row["step"]), "split": row["split"], **row})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
      say(f"{path}:{line_number} is damaged and is left out.")
  return rows


def _json_line(row: dict[str, Any]) -> str:
  return json.dumps(without_nan(row)) + "\n"


class _RowRecord:
  """Records the steps of all rows of metrics.jsonl, and the rows' checksum."""

  def __init__(self) -> None:
    self._checksum = 0
    # {"train": [[first step, last step, steps between two rows], ...], ...}
    self._spans: dict[str, list[list[int]]] = {}

  def add(self, row: dict[str, Any]) -> None:
    self._checksum = zlib.crc32(_json_line(row).encode(), self._checksum)
    _add_step(self._spans.setdefault(row["split"], []), row["step"])

  def value_to_save(self) -> dict[str, Any]:
    # Copy the spans, because they grow while a checkpoint is written in the
    # background.
    spans = {
      split: [[*span] for span in split_spans]
      for split, split_spans in self._spans.items()
    }
    return {"steps": spans, "checksum": self._checksum}

  def describe_differences(self, saved: dict[str, Any] | None) -> list[str]:
    """Returns sentences on how the rows differ from a saved record."""
    if not saved:
      return []
    lines = []
    for split, spans in saved["steps"].items():
      steps = _steps_in(self._spans.get(split, []))
      missing_spans: list[list[int]] = []
      for step in sorted(_steps_in(spans) - steps):
        _add_step(missing_spans, step)
      if missing_spans:
        lines.append(
          f"the {split} rows of {_format_steps(missing_spans)} are missing."
          " The checkpoints are complete, and the run continues; loss.png lacks"
          " these points."
        )
    if not lines and saved["checksum"] != self._checksum:
      lines = ["a row was changed, added or moved since it was written."]
    return lines


def _add_step(spans: list[list[int]], step: int) -> None:
  """Adds a step to a list of spans, [first step, last step, interval]."""
  if spans:
    first, last, interval = spans[-1]
    # A span of one step gets its interval from the next step.
    if first == last and step > last:
      spans[-1] = [first, step, step - first]
      return
    if step == last + interval:
      spans[-1][1] = step
      return
  spans.append([step, step, 1])


def _steps_in(spans: list[list[int]]) -> set[int]:
  return {
    step
    for first, last, interval in spans
    for step in range(first, last + 1, interval)
  }


def _format_steps(spans: list[list[int]]) -> str:
  """Formats the steps of spans in a short form; there may be thousands."""
  texts: list[str] = []
  for first, last, interval in spans:
    if (last - first) // interval < 3:
      texts += map(str, range(first, last + 1, interval))
    else:
      every_note = f" (every {interval})" if interval > 1 else ""
      texts.append(f"{first} to {last}{every_note}")
  return f"step{'s' if len(_steps_in(spans)) > 1 else ''} {', '.join(texts)}"


def format_duration(seconds: float) -> str:
  """Formats a duration, for example as 1h02m, 2m03s or 4s."""
  seconds = round(seconds)
  if seconds >= 3600:
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
  if seconds >= 60:
    return f"{seconds // 60}m{seconds % 60:02d}s"
  return f"{seconds}s"


def watch_run(action: str) -> messages.Watch:
  """Returns a watch over a block of a run; it prints only on process 0."""
  if jax.process_index():
    return messages.Watch(action, lambda line: None)
  return messages.Watch(action, say)


class Logger:
  """Writes rows and progress lines; only process 0 writes."""

  def __init__(
    self,
    workdir: PathLike,
    start_step: int,
    total_steps: int,
    saved: dict[str, Any] | None = None,
    repeats_evaluation: bool = False,
    on_row: RowCallback | None = None,
  ):
    """Opens the files and drops rows after the restored step.

    Args:
      workdir: the run's folder.
      start_step: the restored step; 0 if the run starts without a checkpoint.
      total_steps: the number of steps of the run.
      saved: the dict that `row_record` returned when the checkpoint of
        `start_step` was saved. Rows that were lost or changed since then are
        reported.
      repeats_evaluation: True if the evaluation at `start_step` will be
        repeated. Then the row of the old evaluation is dropped.
      on_row: called for each new row; see `RowCallback`. If None,
        `messages.say` prints the row's progress line.
    """
    self._is_writer = jax.process_index() == 0
    self._total_steps, self._on_row = total_steps, on_row
    folder = epath.Path(workdir)
    self._path, self._plot_path = folder / "metrics.jsonl", folder / "loss.png"
    # The time and the step from which the speed of the next row is measured.
    self._last_time, self._last_step = time.perf_counter(), start_step
    # The time of the last printed line.
    self._line_time = time.perf_counter()
    self._waits = {"data": 0.0, "checkpoint": 0.0}
    if not self._is_writer:
      return
    from tensorboardX import event_file_writer
    from tensorboardX.proto.event_pb2 import SessionLog

    rows = [r for r in read_rows(self._path) if r["step"] <= start_step]
    if repeats_evaluation:
      old_fields = {"step": start_step, "split": "heldout"}
      rows = [r for r in rows if not old_fields.items() <= r.items()]
    self._record = _RowRecord()
    for row in rows:
      self._record.add(row)
    for line in self._record.describe_differences(saved):
      say(f"{self._path}: {line}")
    write_atomically(self._path, "".join(map(_json_line, rows)))
    self._file = self._path.open("a")
    # Write events in this thread. The library's usual writer starts another
    # thread. If a full disk ends that thread, the run waits for it forever.
    self._event_writer = event_file_writer.EventsWriter(str(folder / "events"))
    # START makes TensorBoard drop old events of `step` and of later steps.
    restart = SessionLog(status=SessionLog.START)
    self._write_event(step=start_step + 1, session_log=restart)

  def _write_event(self, **fields: Any) -> None:
    from tensorboardX.proto.event_pb2 import Event

    self._event_writer.write_event(Event(wall_time=time.time(), **fields))
    self._event_writer.flush()

  def _write_row(self, row: dict[str, Any]) -> None:
    from tensorboardX.proto.summary_pb2 import Summary

    self._file.write(_json_line(row))
    self._file.flush()
    self._record.add(row)
    scalars = [
      Summary.Value(tag=f"{row['split']}/{name}", simple_value=number)
      for name, number in row.items()
      if isinstance(number, float)
    ]
    self._write_event(step=row["step"], summary=Summary(value=scalars))

  def row_record(self) -> dict[str, Any]:
    """Returns a record of the rows: the `saved` of `__init__` for a restart."""
    return self._record.value_to_save() if self._is_writer else {}

  @contextlib.contextmanager
  def count_wait(self, name: str) -> Iterator[None]:
    """Adds the time of the block to the time that the run waits.

    Args:
      name: what the run waits for, "data" or "checkpoint".
    """
    start = time.perf_counter()
    try:
      yield
    finally:
      self._waits[name] += time.perf_counter() - start

  def count_data_wait(self, batches: Iterable[T]) -> Iterator[T]:
    """Yields the batches, and counts the time of waiting for them."""
    iterator = iter(batches)
    while True:
      with self.count_wait("data"):
        try:
          batch = next(iterator)
        except StopIteration:
          return
      yield batch

  def _wait_shares(self, seconds: float) -> dict[str, float]:
    """Returns the shares of `seconds` spent waiting, and resets the counts."""
    shares = {f"{name}_wait": w / seconds for name, w in self._waits.items()}
    self._waits = dict.fromkeys(self._waits, 0.0)
    return shares

  @contextlib.contextmanager
  def exclude_from_speed(self, steps: int = 0) -> Iterator[None]:
    """Excludes the time of the block from the speed of training.

    The loop compiles and evaluates in such blocks.

    Args:
      steps: the number of optimizer steps in the block. These steps do not
        count for the speed.
    """
    start = time.perf_counter()
    yield
    self._line_time = time.perf_counter()
    self._last_time += self._line_time - start
    self._last_step += steps

  def report_progress(
    self, action: str
  ) -> contextlib.AbstractContextManager[Any]:
    """Prints lines during a slow block; see `messages.Progress`."""
    if not self._is_writer:
      return contextlib.nullcontext()
    # `Progress` prints the lines in another thread. This context makes that
    # thread print where this thread prints; see `messages.pass_lines_to`.
    context = contextvars.copy_context()

    def write(line: str) -> None:
      context.run(say, line)

    return messages.Progress(action, first_wait=FIRST_WAIT, write=write)

  def print_if_silent(self, step: int) -> None:
    """Prints the step if no line came for `messages.INTERVAL` seconds."""
    now = time.perf_counter()
    if self._is_writer and now - self._line_time >= messages.INTERVAL:
      self._line_time = now
      say(f"at step {step}/{self._total_steps} ...")

  def log_training(
    self, step: int, means: Mapping[str, Any], tokens: float
  ) -> None:
    """Writes a row and prints a progress line.

    Args:
      step: the number of optimizer steps done.
      means: the metrics averaged over the steps since the last row, and other
        entries of the row.
      tokens: the number of tokens of a step without padding, over all hosts.
    """
    now = time.perf_counter()
    seconds, num_steps = now - self._last_time, step - self._last_step
    self._last_time, self._last_step = now, step
    self._line_time = now
    wait_shares = self._wait_shares(seconds)
    if not self._is_writer:
      return
    row: dict[str, Any] = {"step": step, "split": "train", **means}
    # Rounding can make the share of padding negative, or -0.0, which `+ 0.0`
    # turns into 0.0.
    row["padding"] = max(row["padding"], 0.0) + 0.0
    line = f"step {step}/{self._total_steps} loss {means['loss']:.4f}"
    if num_steps:
      speed = num_steps / seconds
      row |= {"steps_per_second": speed, "tokens_per_second": tokens * speed}
      row |= wait_shares
      line += f" {speed:.2f} steps/s {tokens * speed:,.0f} tokens/s"
      line += f" padding {row['padding']:.1%}"
      # mfu: the model's FLOPs utilization.
      mfu = share_of_peak_flops(means["flops_per_step"] * num_steps, seconds)
      if mfu is not None:
        row["mfu"] = mfu
        line += f" mfu {mfu:.1%}"
      line += f" ETA {format_duration((self._total_steps - step) / speed)}"
    self._write_row(row)
    self._print_row(row, line)

  def log_evaluation(self, step: int, means: Mapping[str, float]) -> None:
    """Writes the row and prints the progress line of an evaluation."""
    if not self._is_writer:
      return
    row = {"step": step, "split": "heldout", **means}
    self._write_row(row)
    metrics = " ".join(
      f"{name} {result_text(name, mean)}" for name, mean in means.items()
    )
    self._print_row(row, f"step {step} held-out: {metrics}")

  def _print_row(self, row: dict[str, Any], line: str) -> None:
    if self._on_row is None:
      say(line)
    else:
      self._on_row(row, line, self._total_steps)

  def plot_losses(self) -> None:
    """Draws the losses of metrics.jsonl into loss.png."""
    if not self._is_writer:
      return
    from matplotlib.figure import Figure

    rows = read_rows(self._path)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for split, style in (("train", "-"), ("heldout", "o--")):
      split_rows = [r for r in rows if r["split"] == split]
      names = [n for n in (split_rows or [{}])[0] if n.endswith("_loss")]
      for name in names:
        axes.plot(
          [r["step"] for r in split_rows],
          [r[name] for r in split_rows],
          style,
          markersize=3,
          label=f"{split} {name}",
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats)")
    axes.grid(alpha=0.3)
    if axes.lines:
      axes.legend()
    with atomic_file(self._plot_path) as temporary_path:
      figure.savefig(temporary_path, dpi=120, format="png")

  def close(self) -> None:
    """Closes the files."""
    if self._is_writer:
      self._file.close()
      self._event_writer.close()


# Peak FLOP/s of one JAX device for dense bfloat16 products, from the vendors'
# data sheets. On TPU v2 and v3 a device is a core, which is half a chip.
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
  """Returns a device's peak FLOP/s in bfloat16; None if it is not known."""
  names = [n for n in PEAK_FLOPS if device.device_kind.startswith(n)]
  # The longest name fits best: "TPU v5 lite" also begins with "TPU v5".
  return PEAK_FLOPS[max(names, key=len)] if names else None


def share_of_peak_flops(flops: float, seconds: float) -> float | None:
  """Returns the share of all devices' peak FLOP/s that a run uses.

  Returns None if the peak is not known.

  Args:
    flops: the number of floating-point operations over all devices.
    seconds: the time that these operations took.
  """
  peak = peak_flops(jax.devices()[0])
  if peak is None:
    return None
  return flops / seconds / (peak * jax.device_count())


# The values of `SpikeDetector.action`.
SPIKE_ACTIONS = ("none", "stop", "skip")


class SpikeDetector:
  """Finds spikes: losses that are far above the loss of the last logged row.

  Attributes:
    action: what the run does at a spike. "none": it ignores the spike. "stop":
      it ends. "skip": it logs the step, but makes no update.
    max_loss: the highest loss that is not a spike; infinite before the first
      logged row.
  """

  def __init__(
    self,
    action: str = "none",
    factor: float = 2.0,
    max_loss: float | None = None,
  ):
    """Begins a run or continues one.

    Args:
      action: one of `SPIKE_ACTIONS`.
      factor: `max_loss` is this factor times the last logged row's mean loss.
      max_loss: the value that `value_to_save` returned; None for a new run.

    Raises:
      UserError: the action is unknown, or the factor is not above 1.
    """
    if action not in SPIKE_ACTIONS:
      raise UserError(
        f"spike.action={action!r} is not one of {', '.join(SPIKE_ACTIONS)}."
      )
    if not factor > 1:
      raise UserError(f"spike.factor={factor} must be above 1.")
    self.action, self._factor = action, factor
    self.max_loss = math.inf if max_loss is None else max_loss

  def step_arguments(self) -> tuple[np.float32, ...]:
    """Returns the train step's arguments that follow the random key."""
    return () if self.action == "none" else (np.float32(self.max_loss),)

  def set_max_loss(self, mean_loss: float) -> None:
    """Sets `max_loss` for the next steps from a logged row's mean loss."""
    self.max_loss = self._factor * mean_loss

  def value_to_save(self) -> float | None:
    """Returns the argument `max_loss` of `__init__` for a restart."""
    is_limited = self.action != "none" and math.isfinite(self.max_loss)
    return self.max_loss if is_limited else None


def steps_in_flight() -> int:
  """Returns how many steps may be queued behind the step that is computed.

  An accelerator must not wait for the host, whose time for a batch varies. A
  CPU gains nothing from a queue, and one of its steps can take seconds.
  """
  return 1 if jax.default_backend() == "cpu" else 8


class StepSums:
  """Sums the metrics of the steps since the last logged row.

  The sums are saved in checkpoints, so that they survive a restart.
  """

  def __init__(
    self, saved: dict[str, Any] | None = None, skip_is_error: bool = False
  ):
    """Begins with empty sums, or continues saved sums.

    Args:
      saved: the dict that `value_to_save` returned; None for empty sums.
      skip_is_error: True if a skipped step is an error.
    """
    saved = saved or {"count": 0, "sums": {}}
    self._count, self._sums = saved["count"], dict(saved["sums"])
    self._skipped, self._skip_is_error = (
      list(saved.get("skipped", [])),
      skip_is_error,
    )
    self._pending: list[tuple[int, dict[str, jax.Array | float]]] = []
    self._steps_in_flight = steps_in_flight()

  def add(self, step: int, metrics: dict[str, jax.Array | float]) -> None:
    """Adds a step's metrics, and waits for an earlier step.

    The earlier step is `steps_in_flight` steps before this step. If the run did
    not wait, jax would queue all steps until the next logged row. A run that
    must stop would first have to compute all queued steps.
    """
    self._pending.append((step, metrics))
    if len(self._pending) > self._steps_in_flight:
      jax.block_until_ready(self._pending[-1 - self._steps_in_flight][1])

  def wait(self) -> None:
    """Waits for the steps so far and adds their metrics.

    Raises:
      FloatingPointError: the loss of a step is not finite, or a step was
        skipped and `skip_is_error` is True.
    """
    for step, arrays in self._pending:
      metrics = {k: float(v) for k, v in jax.device_get(arrays).items()}
      if metrics.pop("skipped", 0.0):
        if self._skip_is_error:
          raise FloatingPointError(
            f"step {step}: the loss {metrics['loss']:.6g} is a spike (see"
            " config.spike), so the run stops before it. Earlier checkpoints"
            " are kept; continue from one of them in a new workdir with"
            f" {messages.setting('init_from', 'RUN@STEP')} and a lower"
            f" {messages.key_in_remedy('schedule.peak')}."
          )
        # Store the loss as text, since it may be NaN, which JSON cannot hold.
        self._skipped.append([step, repr(metrics["loss"])])
        continue
      if not math.isfinite(metrics["loss"] + metrics["grad_norm"]):
        raise FloatingPointError(
          f"step {step}: the loss is {metrics['loss']} and the gradient's norm"
          f" is {metrics['grad_norm']}. Earlier checkpoints are kept;"
          f" {messages.divergence_remedy()}."
        )
      for name, number in metrics.items():
        self._sums[name] = self._sums.get(name, 0.0) + number
      # The learning rate is not averaged: the row has the last step's rate.
      self._sums["learning_rate"] = metrics["learning_rate"]
      self._count += 1
    self._pending = []

  def value_to_save(self) -> dict[str, Any]:
    """Waits for the steps so far and returns the `saved` of `__init__`.

    Raises:
      FloatingPointError: see `wait`.
    """
    self.wait()
    saved = {"count": self._count, "sums": dict(self._sums)}
    # If no step was skipped, save the same keys as earlier versions did.
    return saved | ({"skipped": [*self._skipped]} if self._skipped else {})

  def take_means(self) -> tuple[dict[str, Any], float]:
    """Returns the means for a logged row, and begins with empty sums again.

    Returns:
      The means of the metrics over all steps that were not skipped, and the
      mean number of tokens of a step. The means have the learning rate of the
      last step. If steps were skipped, `skipped_steps` in the means lists them.

    Raises:
      FloatingPointError: every step was skipped, or see `wait`.
    """
    saved = self.value_to_save()
    skipped_steps = [step for step, _ in self._skipped]
    if not saved["count"]:
      raise FloatingPointError(
        f"steps {skipped_steps[0]} to {skipped_steps[-1]}: every loss is a"
        f" spike, see config.spike (the last is {self._skipped[-1][1]}), so the"
        " model has diverged. Earlier checkpoints are kept; continue from one"
        " of them in a new workdir with"
        f" {messages.setting('init_from', 'RUN@STEP')}."
      )
    means = {
      name: total if name == "learning_rate" else total / saved["count"]
      for name, total in saved["sums"].items()
    }
    means.pop("tokens")
    if skipped_steps:
      means["skipped_steps"] = skipped_steps
      skipped_text = ", ".join(
        f"{step} (loss {loss})" for step, loss in self._skipped
      )
      say(f"skipped: the updates of steps {skipped_text}")
    self._count, self._sums, self._skipped = 0, {}, []
    return means, saved["sums"]["tokens"] / saved["count"]


class Profiler:
  """Writes a trace of some steps into WORKDIR/profile."""

  def __init__(self, workdir: PathLike, start: int, steps: int):
    """Chooses the steps.

    Args:
      workdir: the run's folder.
      start: the number of the first step to trace; the run's first step is 1.
      steps: the number of steps to trace; 0 means no trace.
    """
    self._path = epath.Path(workdir) / "profile"
    self._start, self._end = start, start + steps
    self._is_tracing = False

  @contextlib.contextmanager
  def trace_step(self, step: int) -> Iterator[None]:
    """Wraps the dispatch of a step; the first traced step starts the trace."""
    if self._start <= step < self._end and not self._is_tracing:
      jax.profiler.start_trace(self._path)
      self._is_tracing = True
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
      yield

  def stop_if_complete(self, step: int, wait_for: jax.Array) -> None:
    """Ends the trace after the last step to trace.

    Args:
      step: the step that the device computes.
      wait_for: a result of this step.
    """
    if self._is_tracing and step + 1 >= self._end:
      wait_for.block_until_ready()
      self.close()

  def close(self) -> None:
    """Ends the trace, if there is one."""
    if self._is_tracing:
      jax.profiler.stop_trace()
      self._is_tracing = False
      say(f"trace: {self._path}")
