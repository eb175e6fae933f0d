"""Measures steps on a TPU VM, and compares them with the compiler's estimate.

  python -m experiments.tpu_first_hour.first_hour --workdir first_hour

The program needs one TPU VM whose chips are a whole slice, the package with the
extras `tpu` and `data`, and about an hour. It runs commands of the package, one
after the other:

1. `prepare`: the text of the quickstart (docstrings), unless --data names a
   prepared folder.
2. `train`, for each config: some steps of each phase with batches of the
   published size, a profile of the last steps, and no evaluation.
3. `compile --cycles`, for the same steps: the estimate.
4. `train` three times on a tiny model: once without a stop, once stopped by
   SIGTERM and continued, and once without the kernel for attention. The losses
   of the first two must be equal, and those of the third nearly equal.

Each result is a line of WORKDIR/results.jsonl. If the same command is run
again, it does only what is missing there. `--print` only prints the table of
a WORKDIR.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

# Published configs of six kinds of steps: two sizes, rows of 128 and of 512
# tokens, packed rows with micro-batches, and an objective with two networks.
CONFIGS = ("bert:base", "bert:large", "roberta:base", "electra:small")
LOG_EVERY, PROFILED_STEPS = 20, 5
TINY_FLAGS = (
  "--config.total_steps=400",
  "--config.log.every=20",
  "--config.checkpoint.every=100",
  "--config.evaluate.every=400",
  "--config.evaluate.examples=64",
)


def run_command(*words: str, stop_after: str = "") -> str:
  """Runs a command of the package, prints its output, and returns it.

  Args:
    *words: the verb and its arguments.
    stop_after: SIGTERM is sent at the first line of output with this text; ""
      sends none.

  Raises:
    SystemExit: the command failed.
  """
  command = [sys.executable, "-m", "bert_jax", *words]
  print("$", " ".join(command), flush=True)
  lines = []
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  ) as process:
    assert process.stdout
    for line in process.stdout:
      lines.append(line)
      print(line, end="", flush=True)
      if stop_after and stop_after in line:
        process.send_signal(signal.SIGTERM)
        stop_after = ""
  if process.returncode:
    sys.exit(f"error: this command failed: {' '.join(command)}")
  return "".join(lines)


def slice_of_this_machine() -> str:
  """Returns the name of the slice, for example v5e:2x4.

  Another process asks jax, because this one must not hold the TPU.
  """
  program = (
    "import jax; d = jax.devices();"
    "print(d[0].device_kind, [max(c) + 1 for c in zip(*(x.coords for x in d))],"
    " sep='|')"
  )
  output = subprocess.run(
    [sys.executable, "-c", program], check=True, capture_output=True, text=True
  ).stdout
  kind, _, sizes = output.strip().splitlines()[-1].partition("|")
  generation_by_kind = {
    "TPU v2": "v2",
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
  }
  if kind not in generation_by_kind:
    sys.exit(
      f"error: this machine's device is {kind!r}, not a TPU that is known here;"
      " pass --slice."
    )
  axes = json.loads(sizes)
  # Only slices of v4 and v5p have three axes.
  if generation_by_kind[kind] not in ("v4", "v5p"):
    axes = axes[:2]
  return f"{generation_by_kind[kind]}:{'x'.join(map(str, axes))}"


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of a run's metrics."""
  text = (workdir / "metrics.jsonl").read_text("utf-8")
  return [json.loads(line) for line in text.splitlines()]


def fastest_rate(rows: list[dict[str, Any]], first: int, last: int) -> float:
  """Returns the highest rate in the rows of the steps `first` to `last`.

  The rate of a row, in steps a second, includes the time since the row before.
  So the first row, which includes the wait for the compiler, is left out.
  """
  rates = [
    row["steps_per_second"]
    for row in rows
    if row["split"] == "train" and first + LOG_EVERY < row["step"] <= last
  ]
  return max(rates)


def measure_config(
  name: str,
  steps: int,
  data: str,
  slice_name: str,
  workdir: pathlib.Path,
  flags: list[str],
) -> list[dict[str, Any]]:
  """Trains a config, estimates it, and returns a record for each phase."""
  flags = [
    "--config",
    name,
    f"--config.data.path={data}",
    f"--config.log.every={LOG_EVERY}",
    "--config.evaluate.every=1000000",
    "--config.checkpoint.every=1000000",
    *flags,
  ]
  estimates = [
    json.loads(line)
    for line in run_command(
      "compile", *flags, "--topology", slice_name, "--cycles", "--json"
    ).splitlines()
    if line.startswith("{")
  ]
  total_steps = steps * len(estimates)
  shares = [
    f"--config.phases.phase{i + 1}.fraction={1 / len(estimates)}"
    for i in range(len(estimates))
    if len(estimates) > 1
  ]
  run_folder = workdir / name.replace(":", "_")
  run_command(
    "train",
    *flags,
    *shares,
    f"--config.total_steps={total_steps}",
    f"--config.profile.start={total_steps - LOG_EVERY}",
    f"--config.profile.steps={PROFILED_STEPS}",
    "--workdir",
    str(run_folder),
  )
  rows = read_metrics(run_folder)
  records = []
  for i, estimate in enumerate(estimates):
    steps_per_second = fastest_rate(rows, i * steps, (i + 1) * steps)
    estimated_ms = estimate["cycles"]["step_ms"]
    records.append(
      dict(
        kind="step",
        config=name,
        phase=estimate["phase"],
        slice=slice_name,
        steps_per_second=steps_per_second,
        measured_ms=1e3 / steps_per_second,
        estimated_compute_ms=estimate["cycles"]["compute_ms"],
        estimated_collectives_ms=estimate["cycles"]["collectives_ms"],
        measured_over_estimated=1e3 / steps_per_second / estimated_ms,
        compile_seconds_of_estimate=estimate["compile_seconds"],
        profile=str(run_folder),
      )
    )
  return records


def measure_restart(
  data: str, workdir: pathlib.Path, flags: list[str]
) -> dict[str, Any]:
  """Does number 4 of the module's docstring; returns the record."""
  common = (
    *("--config", "bert:tiny"),
    f"--config.data.path={data}",
    *TINY_FLAGS,
    *flags,
  )
  uninterrupted = workdir / "restart_whole"
  stopped = workdir / "restart_stopped"
  run_command("train", *common, "--workdir", str(uninterrupted))
  run_command(
    "train", *common, "--workdir", str(stopped), stop_after="step 160"
  )
  output = run_command("train", *common, "--workdir", str(stopped))
  without_kernel = workdir / "restart_without_kernel"
  run_command(
    *("train", *common, "--config.model.attention=xla"),
    *("--workdir", str(without_kernel)),
  )
  losses, stopped_losses, losses_without_kernel = (
    {row["step"]: row["loss"] for row in read_metrics(folder)}
    for folder in (uninterrupted, stopped, without_kernel)
  )

  def largest_difference(other_losses: dict[int, float]) -> float:
    return max(
      abs(loss - other_losses.get(step, float("inf")))
      for step, loss in losses.items()
    )

  return dict(
    kind="restart",
    continued="continuing from step" in output,
    steps=len(losses),
    is_equal=losses == stopped_losses,
    largest_difference=largest_difference(stopped_losses),
    largest_difference_without_kernel=largest_difference(losses_without_kernel),
  )


def print_table(records: list[dict[str, Any]]) -> None:
  """Prints the records as a table in Markdown."""
  print(
    "\n| config | phase | slice | steps a second | measured ms | estimated ms:"
    " compute | collectives | measured / estimated |"
  )
  print("|---|---|---|---|---|---|---|---|")
  for record in records:
    if record["kind"] == "step":
      print(
        f"| {record['config']} | {record['phase']} | {record['slice']} |"
        f" {record['steps_per_second']:.2f} | {record['measured_ms']:.1f} |"
        f" {record['estimated_compute_ms']:.1f} |"
        f" {record['estimated_collectives_ms']:.1f} |"
        f" {record['measured_over_estimated']:.2f} |"
      )
  for record in records:
    if record["kind"] == "restart":
      word = "equal" if record["is_equal"] else "NOT equal"
      print(
        f"\nA run that was stopped and continued is {word} to one that was not"
        f" (largest difference of a loss: {record['largest_difference']})."
        " Without the kernel for attention, the largest difference is"
        f" {record['largest_difference_without_kernel']}."
      )


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--workdir", required=True, type=pathlib.Path)
  parser.add_argument("--data", help="a prepared folder; default: docstrings")
  parser.add_argument("--vocab", help="the vocabulary to prepare with")
  parser.add_argument("--slice", help="default: as jax sees this machine")
  parser.add_argument("--configs", default=",".join(CONFIGS))
  parser.add_argument(
    "--steps", type=int, default=120, help="steps of each phase (default 120)"
  )
  parser.add_argument(
    "--flags", default="", help="more flags for all configs, in one string"
  )
  parser.add_argument("--print", action="store_true", help="only the table")
  args = parser.parse_args()
  args.workdir.mkdir(parents=True, exist_ok=True)
  results_path = args.workdir / "results.jsonl"
  records = []
  if results_path.exists():
    text = results_path.read_text("utf-8")
    records = [json.loads(line) for line in text.splitlines()]

  def add(*new_records: dict[str, Any]) -> None:
    records.extend(new_records)
    with results_path.open("a", encoding="utf-8") as file:
      file.writelines(json.dumps(record) + "\n" for record in new_records)

  if not args.print:
    start = time.monotonic()
    slice_name = args.slice or slice_of_this_machine()
    data, flags = args.data, args.flags.split()
    if not data:
      data = str(args.workdir / "data")
      vocab = args.vocab or str(args.workdir / "vocab.txt")
      if not args.vocab:
        run_command(
          *("vocab", "--input", "docstrings", "--size", "30522"),
          *("--output", vocab),
        )
      run_command(
        *("prepare", "--input", "docstrings", "--vocab", vocab),
        *("--output", data),
      )
    done_configs = {record.get("config") for record in records}
    for name in filter(None, args.configs.split(",")):
      if name not in done_configs:
        add(
          *measure_config(
            name, args.steps, data, slice_name, args.workdir, flags
          )
        )
    if "restart" not in {record["kind"] for record in records}:
      add(measure_restart(data, args.workdir, flags))
    print(f"\nall of this took {(time.monotonic() - start) / 60:.0f} minutes")
  print_table(records)


if __name__ == "__main__":
  main()
