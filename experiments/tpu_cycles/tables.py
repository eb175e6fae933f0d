"""Prints the tables of README.md, and of docs/tpu.md, from the records.

  python -m experiments.tpu_cycles.tables

`before.jsonl` and `after.jsonl` have a record for each config, slice and phase:
what `bert_jax compile --cycles --json` prints, with the config's name and the
flags. `peer.jsonl` has what `peer.py` prints.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.training import compile_report

FOLDER = pathlib.Path(__file__).parent
# Name of a step: its config, its slice, and the number of its phase.
Step = tuple[str, str, int]
COLUMNS = (
  *("config", "slice", "phase", "cycles before", "cycles now", "now / before"),
  *("peer", "ms before, compute + collectives", "ms now"),
  *("temporaries before, GiB", "temporaries now", "HBM", "MFU now"),
)


def read_records(name: str) -> dict[Step, dict[str, Any]]:
  """Returns the records of a file, in the order of the file."""
  records = {}
  for line in (FOLDER / name).read_text().splitlines():
    record = json.loads(line)
    config = record.get("config", f"bert:{record.get('size')}")
    number = record.get("number", record["phase"])
    records[config, record["topology"], number] = record
  return records


def milliseconds(cycles: dict[str, Any]) -> str:
  """Returns the modelled time: compute + collectives."""
  return f"{cycles['compute_ms']:.1f} + {cycles['collectives_ms']:.1f}"


def compared_rows(
  before: dict[Step, dict[str, Any]],
  after: dict[Step, dict[str, Any]],
  peer: dict[Step, dict[str, Any]],
) -> Iterator[Sequence[str]]:
  """Yields the cells of `COLUMNS` for each step of `after`."""
  for step, now in after.items():
    old, peer_record = before[step], peer.get(step)
    old_total, total = old["cycles"]["total"], now["cycles"]["total"]
    yield (
      step[0],
      step[1],
      now["phase"],
      f"{old_total / 1e6:.1f}",
      f"{total / 1e6:.1f}",
      f"{total / old_total:.2f}",
      f"{peer_record['cycles']['total'] / 1e6:.1f}" if peer_record else "",
      milliseconds(old["cycles"]),
      milliseconds(now["cycles"]),
      compile_report.format_gib(old["temporaries_bytes"]),
      compile_report.format_gib(now["temporaries_bytes"]),
      compile_report.format_gib(now["hbm_bytes"]),
      f"{now['cycles']['mfu']:.1%}",
    )


def print_table(columns: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
  """Prints a table in Markdown."""
  for cells in (columns, ["---"] * len(columns), *rows):
    print(f"| {' | '.join(cells)} |")
  print()


def main() -> None:
  """Prints four tables: a comparison, cycles before and now, and memory."""
  before, after = read_records("before.jsonl"), read_records("after.jsonl")
  print_table(COLUMNS, compared_rows(before, after, read_records("peer.jsonl")))
  cycle_row = compile_report.as_markdown_row_of_cycles
  for records, columns, make_row in (
    (before, compile_report.CYCLE_COLUMNS, cycle_row),
    (after, compile_report.CYCLE_COLUMNS, cycle_row),
    (after, compile_report.COLUMNS, compile_report.as_markdown_row),
  ):
    print(f"| config | {' | '.join(columns)} |")
    print(f"|{'---|' * (len(columns) + 1)}")
    for step, record in records.items():
      print(f"| {step[0]} {make_row(record)}")
    print()


if __name__ == "__main__":
  main()
