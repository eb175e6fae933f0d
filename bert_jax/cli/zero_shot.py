"""What a pre-trained model knows untrained: BLiMP, filled blanks.

  python -m bert_jax.cli.zero_shot --model PATH --blimp FOLDER_OR_TAR
  python -m bert_jax.cli.zero_shot --model PATH --cloze FILE.jsonl

A line of the latter is {"text": "... [MASK] ...", "answer": "..."}.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from bert_jax import files
from bert_jax.cli import flags_flags as flags
from bert_jax.use import blimp
from bert_jax.use import likelihood as scoring
from bert_jax.use import text_batches as text_rows
from bert_jax.weights.load import Loaded


def run_blimp(
  model: Loaded, path: str, method: str, most: int | None, tokens: int
) -> dict[str, Any]:
  """Scores both sentences of each pair.

  Args:
    model: with a pre-training head.
    path: see `blimp.read`.
    method: see `scoring.score`.
    most: pairs of a file.
    tokens: of a batch.

  Raises:
    ValueError: bad input.
  """
  files = blimp.read(path, most)
  texts = [text for pairs in files for text in (*pairs.good, *pairs.bad)]
  scores = scoring.score(model, texts, method, tokens)
  _check_finite(scores)
  counts = [n for pairs in files for n in (len(pairs.good), len(pairs.bad))]
  parts = np.split(scores, np.cumsum(counts)[:-1])
  return blimp.results(files, parts[::2], parts[1::2])


def run_cloze(model: Loaded, path: str, tokens: int) -> dict[str, Any]:
  """Accuracy over a file of texts with one `[MASK]` and their answers.

  Args:
    model: a masked language model.
    path: JSONL.
    tokens: of a batch.

  Raises:
    ValueError: bad input; file and line are named.
  """
  texts, answers = [], []
  for number, line in enumerate(text_rows.read_lines(path), 1):
    item = text_rows.parse_object(line, f"{path}:{number}")
    text, answer = (item.get(key) for key in ("text", "answer"))
    if not isinstance(text, str) or text.count("[MASK]") != 1:
      raise ValueError(f'{path}:{number}: no "text" with one [MASK].')
    if not isinstance(answer, str) or not answer.strip():
      raise ValueError(f'{path}:{number}: no "answer".')
    texts.append(text)
    answers.append(answer)
  if not texts:
    raise ValueError(f"{path} is empty.")
  guesses = scoring.cloze(model, texts, answers, tokens)
  known = [guess.answer for guess in guesses if guess.answer is not None]
  _check_finite(known)
  return {
    "accuracy": float(np.mean([guess.right for guess in guesses])),
    "texts": len(texts),
    "answers_of_several_pieces": len(texts) - len(known),
    "mean_log_probability": float(np.mean(known)) if known else None,
    "guesses": [guess.best for guess in guesses],
  }


def _check_finite(scores: Sequence[float] | np.ndarray) -> None:
  """Not a number would count as wrong, pair for pair."""
  if not np.isfinite(scores).all():
    raise ValueError("the model's scores are not finite; it is broken.")


def _show(found: dict[str, Any]) -> None:
  if "blimp" in found:
    print(blimp.table(found["blimp"]))
  if "cloze" in found:
    row = found["cloze"]
    mean = row["mean_log_probability"]
    log_p = "none" if mean is None else f"{mean:.4f}"
    print(
      f"cloze: accuracy {row['accuracy']:.4f} of {row['texts']:,} texts;"
      f" {row['answers_of_several_pieces']:,} answers are no single piece;"
      f" mean log P of the others {log_p}"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
  """Runs the tests that the flags name, and prints a table of the results.

  Raises:
    ValueError: a flag or a file is bad; the message is one sentence.
  """
  if not (args.blimp or args.cloze):
    raise ValueError("name a test: --blimp or --cloze.")
  if args.batch_tokens < 1 or (args.pairs is not None and args.pairs < 1):
    raise ValueError("--batch_tokens and --pairs must be 1 or more.")
  model = text_rows.open_model(
    args.model, args.family, args.tower, dtype=args.dtype
  )
  method = args.method or scoring.method_of(model)
  results: dict[str, Any] = {"model": args.model, "method": method}
  tokens = args.batch_tokens
  if args.blimp:
    results["blimp"] = run_blimp(model, args.blimp, method, args.pairs, tokens)
  if args.cloze:
    results["cloze"] = run_cloze(model, args.cloze, tokens)
  # Print the results before they are written, since writing may fail.
  _show(results)
  return results


def main() -> None:
  parser = flags.Parser(
    stdout=True,
    prog="python -m bert_jax.cli.zero_shot",
    description="What a pre-trained model knows: BLiMP, filled blanks.",
  )
  add = parser.add_argument
  add(
    "--model",
    required=True,
    help="any model that bert_jax.load opens, also RUN@best",
  )
  add("--blimp", help="folder or tar file of BLiMP's .jsonl files")
  add("--cloze", help='.jsonl of "text" with one [MASK] and "answer"')
  add(
    "--method",
    choices=scoring.METHODS,
    help="of BLiMP's scores (default: what the model's head gives, for masked"
    " models pll)",
  )
  add("--output", help="a .json file for the results; - for stdout")
  add("--pairs", type=int, metavar="N", help="the first N of each file only")
  add("--batch_tokens", type=int, default=8192, help="padding included")
  add("--dtype", choices=("float32", "bfloat16"), default="float32")
  flags.add_family_flag(parser)
  add("--tower", choices=("discriminator", "generator"), help="of ELECTRA")
  args = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  try:
    if args.output == "-":
      with files.text_output("-") as out:
        json.dump(files.without_nan(run(args)), out, ensure_ascii=False)
        out.write("\n")
    else:
      results = run(args)
      if args.output:
        files.write_json(args.output, results)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")


if __name__ == "__main__":
  main()
