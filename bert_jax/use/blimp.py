"""Reads BLiMP (Warstadt et al. 2020), 67 files of minimal pairs."""

import lzma
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.messages import UserError
from bert_jax.use.text_inputs import parse_json_object

NUM_FILES = 67
# A term in the files -> the phenomenon in the paper, if the two names differ.
# The paper has 12 phenomena, but the files have 13 terms. From memory, the
# paper counts the two files with the term s-selection as argument structure.
PHENOMENON_BY_TERM = {"s-selection": "argument_structure"}
# The errors of a damaged file, besides `tarfile.TarError`.
_DAMAGE_ERRORS = (lzma.LZMAError, zlib.error, UnicodeDecodeError)
_FIELDS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")


class MinimalPairs(NamedTuple):
  """Holds the minimal pairs of one file.

  Attributes:
    name: the file's UID.
    phenomenon: one of the 12 phenomena.
    good_sentences: the acceptable sentence of each pair.
    bad_sentences: the unacceptable sentence of each pair.
  """

  name: str
  phenomenon: str
  good_sentences: list[str]
  bad_sentences: list[str]


def read(path: str, max_pairs: int | None = None) -> list[MinimalPairs]:
  """Reads the .jsonl files in a folder or in a tar file.

  Args:
    path: a folder, whose sub-folders are also read; or a tar file, which may be
      compressed.
    max_pairs: the largest number of pairs to read from each file; None reads
      all pairs.

  Raises:
    UserError: the path or a file cannot be read, there are no files, or a line
      is not a pair.
  """
  files: list[MinimalPairs] = []
  for name, content in sorted(_read_contents(path)):
    lines = content.removeprefix("\ufeff").split("\n")
    line_numbers = [
      line_number for line_number, line in enumerate(lines, 1) if line.strip()
    ][:max_pairs]
    pairs = []
    for line_number in line_numbers:
      location = f"{path}: {name}:{line_number}"
      pair = parse_json_object(lines[line_number - 1], location)
      for field in _FIELDS:
        if not isinstance(pair.get(field), str):
          raise UserError(
            f"{location} has no {field!r}, so it is not a line of BLiMP."
          )
      pairs.append(pair)
    if not pairs:
      raise UserError(f"{path}: {name} is empty.")
    good_sentences, bad_sentences, uid, term = (
      [pair[field] for pair in pairs] for field in _FIELDS
    )
    if uid[0] in (file.name for file in files):
      raise UserError(
        f"{path}: two files have the UID {uid[0]!r}; remove one of them."
      )
    files.append(
      MinimalPairs(
        uid[0],
        PHENOMENON_BY_TERM.get(term[0], term[0]),
        good_sentences,
        bad_sentences,
      )
    )
  if not files:
    raise UserError(f"{path} has no .jsonl file.")
  return files


def _read_contents(path: str) -> Iterator[tuple[str, str]]:
  """Yields the name and the text of each .jsonl file."""
  folder = epath.Path(path)
  try:
    if folder.is_dir():
      for parent, _, names in folder.walk():
        for name in names:
          if name.endswith(".jsonl"):
            yield name, (parent / name).read_text("utf-8")
      return
    with tarfile.open(path, "r:*") as tar:
      for member in tar:
        if not member.isfile() or not member.name.endswith(".jsonl"):
          continue
        if content := tar.extractfile(member):
          name = member.name.rpartition("/")[2]
          yield name, content.read().decode("utf-8")
  except (OSError, EOFError, tarfile.TarError, *_DAMAGE_ERRORS) as e:
    # tarfile's message has a line for each kind of compression. The first line
    # is enough.
    reason = getattr(e, "strerror", None) or str(e).split("\n")[0].rstrip(":")
    raise UserError(
      f"{path} is not a folder or tar file of BLiMP ({reason}); give the folder"
      " with BLiMP's .jsonl files, or a tar file of this folder."
    ) from e


def accuracies(
  files: Sequence[MinimalPairs],
  good_scores: Sequence[np.ndarray],
  bad_scores: Sequence[np.ndarray],
) -> dict[str, Any]:
  """Returns the accuracy of each file and phenomenon, and the overall accuracy.

  The accuracy of a phenomenon and the overall accuracy are means over files. A
  pair with equal scores counts as wrong.

  Args:
    files: the files whose sentences were scored.
    good_scores: the scores of the acceptable sentences of each file, [pairs].
    bad_scores: the scores of the unacceptable sentences of each file, [pairs].
  """
  file_results: dict[str, dict[str, Any]] = {}
  for file, scores_of_good, scores_of_bad in zip(
    files, good_scores, bad_scores, strict=True
  ):
    file_results[file.name] = {
      "phenomenon": file.phenomenon,
      "accuracy": float(np.mean(scores_of_good > scores_of_bad)),
      "pairs": len(file.good_sentences),
      "ties": int(np.sum(scores_of_good == scores_of_bad)),
    }
  phenomena = {}
  for name in sorted(
    {result["phenomenon"] for result in file_results.values()}
  ):
    file_accuracies = [
      result["accuracy"]
      for result in file_results.values()
      if result["phenomenon"] == name
    ]
    phenomena[name] = {
      "accuracy": float(np.mean(file_accuracies)),
      "files": len(file_accuracies),
    }
  overall = float(
    np.mean([result["accuracy"] for result in file_results.values()])
  )
  return {"accuracy": overall, "phenomena": phenomena, "files": file_results}


def markdown_table(results: Mapping[str, Any]) -> str:
  """Returns a Markdown table with a line for each phenomenon and each file.

  Args:
    results: the dict that `accuracies` returns.
  """
  lines = ["| phenomenon, file | pairs | accuracy |", "|---|---|---|"]
  file_results = results["files"]
  for name, phenomenon in results["phenomena"].items():
    results_of_phenomenon = {
      file_name: result
      for file_name, result in file_results.items()
      if result["phenomenon"] == name
    }
    num_pairs = sum(
      result["pairs"] for result in results_of_phenomenon.values()
    )
    lines.append(
      f"| **{name}** | {num_pairs:,} | {phenomenon['accuracy']:.4f} |"
    )
    lines += [
      f"| {file_name} | {result['pairs']:,} | {result['accuracy']:.4f} |"
      for file_name, result in results_of_phenomenon.items()
    ]
  total_pairs = sum(result["pairs"] for result in file_results.values())
  lines.append(
    f"| **mean of {len(file_results)} of {NUM_FILES} files** | {total_pairs:,}"
    f" | {results['accuracy']:.4f} |"
  )
  return "\n".join(lines)
