"""BLiMP (Warstadt et al. 2020): 67 files of minimal pairs, 12 phenomena."""

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.messages import UserError
from bert_jax.use.text_batches import parse_object

FILES = 67
# The paper counts 12 phenomena; the files have this term beside them. That its
# two files are of argument structure there is from memory of the paper.
PHENOMENA = {"s-selection": "argument_structure"}
# Errors that unpacking and decoding raise beside tarfile's own.
_DAMAGED = (lzma.LZMAError, zlib.error, UnicodeDecodeError)
_FIELDS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")


class Pairs(NamedTuple):
  """A file.

  Attributes:
    name: its UID.
    phenomenon: one of twelve.
    good: the acceptable sentences.
    bad: the unacceptable sentence beside each of them.
  """

  name: str
  phenomenon: str
  good: list[str]
  bad: list[str]


def read(path: str, most: int | None = None) -> list[Pairs]:
  """Reads a folder, or a tar file packed or not, with .jsonl files in it.

  Args:
    path: a folder, whose sub-folders count too, or a tar file.
    most: pairs of a file, from its begin; None for all.

  Raises:
    ValueError: no such file, none in it, or a line that is no pair.
  """
  files = []
  for name, content in sorted(_contents(path)):
    lines = content.removeprefix("\ufeff").split("\n")
    numbers = [i for i, line in enumerate(lines, 1) if line.strip()][:most]
    items = []
    for i in numbers:
      place = f"{path}: {name}:{i}"
      item = parse_object(lines[i - 1], place)
      for field in _FIELDS:
        if not isinstance(item.get(field), str):
          raise UserError(f"{place}: no {field!r}, not BLiMP's.")
      items.append(item)
    if not items:
      raise UserError(f"{path}: {name} is empty.")
    good, bad, uid, term = (
      [item[field] for item in items] for field in _FIELDS
    )
    if uid[0] in (pairs.name for pairs in files):
      raise UserError(f"{path}: two files have the UID {uid[0]!r}; give one.")
    files.append(Pairs(uid[0], PHENOMENA.get(term[0], term[0]), good, bad))
  if not files:
    raise UserError(f"{path}: no .jsonl file in it.")
  return files


def _contents(path: str) -> Iterator[tuple[str, str]]:
  """Yields names and texts of the .jsonl files."""
  try:
    if os.path.isdir(path):
      for folder, _, names in os.walk(path):
        for name in names:
          if name.endswith(".jsonl"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
              yield name, f.read()
      return
    with tarfile.open(path, "r:*") as tar:
      for member in tar:
        if member.isfile() and member.name.endswith(".jsonl"):
          content = tar.extractfile(member).read().decode("utf-8")
          yield os.path.basename(member.name), content
  except (OSError, EOFError, tarfile.TarError, *_DAMAGED) as e:
    # tarfile says for every form of packing why it is none, a line each.
    reason = getattr(e, "strerror", None) or str(e).split("\n")[0].rstrip(":")
    raise UserError(
      f"{path}: no folder or tar file of BLiMP ({reason}); give its folder of"
      " .jsonl files, or a tar file of that."
    ) from e


def results(
  files: Sequence[Pairs], good: Sequence[np.ndarray], bad: Sequence[np.ndarray]
) -> dict[str, Any]:
  """Accuracies: of a file, of a phenomenon and of all, means over files.

  Args:
    files: the files whose sentences were scored.
    good: for each file, the scores of its acceptable sentences.
    bad: the scores of the unacceptable ones; an equal score counts as wrong.
  """
  rows = {}
  for pairs, g, b in zip(files, good, bad, strict=True):
    rows[pairs.name] = {
      "phenomenon": pairs.phenomenon,
      "accuracy": float(np.mean(g > b)),
      "pairs": len(pairs.good),
      "ties": int(np.sum(g == b)),
    }
  phenomena = {}
  for name in sorted({row["phenomenon"] for row in rows.values()}):
    accuracies = [
      r["accuracy"] for r in rows.values() if r["phenomenon"] == name
    ]
    phenomena[name] = {
      "accuracy": float(np.mean(accuracies)),
      "files": len(accuracies),
    }
  overall = float(np.mean([row["accuracy"] for row in rows.values()]))
  return {"accuracy": overall, "phenomena": phenomena, "files": rows}


def table(results: Mapping[str, Any]) -> str:
  """The results as a table of Markdown: phenomena with their files below."""
  lines = ["| phenomenon, file | pairs | accuracy |", "|---|---|---|"]
  rows = results["files"]
  for name, phenomenon in results["phenomena"].items():
    phenomenon_rows = {f: r for f, r in rows.items() if r["phenomenon"] == name}
    count = sum(row["pairs"] for row in phenomenon_rows.values())
    lines.append(f"| **{name}** | {count:,} | {phenomenon['accuracy']:.4f} |")
    lines += [
      f"| {f} | {r['pairs']:,} | {r['accuracy']:.4f} |"
      for f, r in phenomenon_rows.items()
    ]
  total = sum(row["pairs"] for row in rows.values())
  lines.append(
    f"| **mean of {len(rows)} of {FILES} files** | {total:,} |"
    f" {results['accuracy']:.4f} |"
  )
  return "\n".join(lines)
