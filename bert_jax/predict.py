"""Predicts with any model that has a head: a line of JSON in, a line out.

python -m bert_jax.predict --model PATH --input FILE.jsonl --output FILE.jsonl
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import IO

from absl import logging

from bert_jax.data import files
from bert_jax.finetune import predicting, requests

_EPILOG = """Lines of the input: {"text": "..."} and, of pairs, "text_pair";
{"text": "...", "choices": ["...", ...]}; {"words": [...]} to tag;
{"question": "...", "context": "..."}; {"text": "... [MASK] ..."} for a masked
language model. Each line of the output has the input's "id", or its number."""


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m bert_jax.predict",
    description="Predicts with any model that has a head.",
    epilog=_EPILOG,
  )
  parser.add_argument(
    "--model",
    required=True,
    help="a run's folder, a converted one, one of transformers",
  )
  parser.add_argument("--input", required=True, help="JSON lines; - for stdin")
  parser.add_argument("--output", required=True, help="the same; - for stdout")
  parser.add_argument(
    "--batch_size", type=int, default=32, help="rows at a time"
  )
  parser.add_argument(
    "--length",
    type=int,
    default=512,
    help="tokens in a row at most; longer texts are read in windows",
  )
  parser.add_argument(
    "--top", type=int, default=5, help="candidates for each mask"
  )
  parser.add_argument(
    "--best", action="store_true", help="of a run the best step, not the last"
  )
  parser.add_argument(
    "--no_answer",
    action="store_true",
    help="a question may have no answer (SQuAD 2.0)",
  )
  parser.add_argument(
    "--dtype", default="float32", choices=("float32", "bfloat16")
  )
  return parser


@contextlib.contextmanager
def _written(path: str) -> Iterator[IO[str]]:
  """A file that gets its name once it is whole; stdout for -."""
  if path == "-":
    yield sys.stdout
    return
  with files.whole(path) as partial:
    with open(partial, "w", encoding="utf-8") as f:
      yield f


@contextlib.contextmanager
def _lines(path: str) -> Iterator[Iterator[str]]:
  """A file's lines; a ValueError names the one that is not UTF-8."""
  if path == "-":
    yield iter(sys.stdin)
    return
  with open(path, "rb") as f:
    yield _decoded(f, path)


def _decoded(lines: IO[bytes], path: str) -> Iterator[str]:
  for number, line in enumerate(lines, 1):
    try:
      yield line.decode("utf-8")
    except UnicodeDecodeError as e:
      raise ValueError(f"{path}:{number}: not UTF-8.") from e


def _check(path: str, kind: str) -> None:
  """Reads a whole file, so that a bad line is named before the model runs."""
  if path == "-":
    return
  with _lines(path) as lines:
    count = sum(1 for _ in requests.read(lines, kind, path))
  if not count:
    raise ValueError(f"{path} has no lines.")


def main() -> None:
  args = _parser().parse_args()
  logging.set_verbosity(logging.ERROR)
  try:
    for name in ("batch_size", "length", "top"):
      if getattr(args, name) < 1:
        raise ValueError(f"--{name} must be at least 1.")
    predictor = predicting.open_model(
      args.model,
      args.batch_size,
      args.length,
      args.top,
      args.best,
      args.no_answer,
      args.dtype,
    )
    _check(args.input, predictor.kind)
    where = "stdin" if args.input == "-" else args.input
    with _lines(args.input) as lines, _written(args.output) as out:
      examples = requests.read(lines, predictor.kind, where)
      predicting.write(predictor, examples, out)
  except (ValueError, OSError) as e:
    sys.exit(f"error: {e}")


if __name__ == "__main__":
  main()
