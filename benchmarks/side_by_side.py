"""Functions for benchmarks that compare with another library."""

import collections
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def time_calls(
  run: Callable[[int], None], num_calls: int, num_measurements: int
) -> tuple[float, list[float]]:
  """Measures the time of a call several times, after a first run to warm up.

  Args:
    run: makes a number of calls, and returns when the device has ended them.
    num_calls: the number of calls in a measurement.
    num_measurements: the number of measurements.

  Returns:
    (The median milliseconds of a call, the milliseconds of a call in each
    measurement).
  """
  run(num_calls)
  milliseconds = []
  for _ in range(num_measurements):
    start = time.perf_counter()
    run(num_calls)
    milliseconds.append((time.perf_counter() - start) / num_calls * 1e3)
  return statistics.median(milliseconds), [round(ms, 3) for ms in milliseconds]


def run_both_sides(script: str, arguments: dict[str, Any], key: str) -> str:
  """Runs both sides of a script, one after the other, each in a new process.

  So each side has the whole device. Each side prints JSON as its last line.

  Args:
    script: the path of a program that has the flags `--part ours` and `--part
      peer`.
    arguments: the flags of the program, for the report.
    key: the key of a side's JSON that is compared. Its value is a number or a
      dict of numbers; larger numbers are better.

  Returns:
    JSON with the arguments, both sides, and the ratio ours / peer.
  """
  report: dict[str, Any] = {"work": arguments}
  for side in ("ours", "peer"):
    command = [sys.executable, script, *sys.argv[1:], "--part", side]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if process.returncode:
      report[side] = {"failed": process.returncode}
    else:
      report[side] = json.loads(process.stdout.splitlines()[-1])
  rate, peer_rate = (report[side].get(key) for side in ("ours", "peer"))
  if isinstance(rate, dict) and isinstance(peer_rate, dict):
    report["ratio"] = {
      name: round(rate[name] / peer_rate[name], 3)
      for name in rate
      if name in peer_rate
    }
  elif rate and peer_rate:
    report["ratio"] = round(rate / peer_rate, 3)
  return json.dumps(report, indent=1)


def kernel_times(folder: str, steps: int) -> dict[str, float]:
  """Returns kernel name -> its milliseconds in a step, the largest first.

  Args:
    folder: the folder of a trace by `jax.profiler`.
    steps: the number of steps in the trace.
  """
  import jax

  (path,) = Path(folder).glob("**/*.xplane.pb")
  milliseconds = collections.Counter()
  for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
    if not plane.name.startswith("/device:GPU"):
      continue
    for line in plane.lines:
      if line.name.startswith("Stream"):
        for event in line.events:
          name = re.sub(r"[._]?\d+$", "", event.name)
          milliseconds[name] += event.duration_ns / 1e6 / steps
  return {name: round(ms, 3) for name, ms in milliseconds.most_common(60)}
