"""Predicts with any model that has a head: a line of JSON in, a line out.

python -m bert_jax.predict --model PATH --input FILE.jsonl --output FILE.jsonl
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import IO, Any

from absl import logging

from bert_jax import text_rows
from bert_jax.data import files, flags
from bert_jax.finetune import predicting, requests

_EPILOG = """Lines of the input: {"text": "..."} and, of pairs, "text_pair";
{"text": "...", "choices": ["...", ...]}; {"words": [...]} to tag;
{"question": "...", "context": "..."}; {"text": "... [MASK] ..."} for a masked
language model. Each line of the output has the input's "id", or its number."""


def _parser() -> flags.Parser:
  parser = flags.Parser(
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


def _lines(path: str) -> Iterator[str]:
  if path == "-":
    return text_rows.decode(sys.stdin.buffer, "stdin")
  return text_rows.read_lines(path)


def _check_flags(args: argparse.Namespace) -> None:
  for name in ("batch_size", "length", "top"):
    if getattr(args, name) < 1:
      raise ValueError(f"--{name} must be at least 1.")
  where = os.path.realpath(args.output)
  if args.output != "-" and where == os.path.realpath(args.input):
    raise ValueError(f"--output={args.output} is the input; choose another.")


def run(args: argparse.Namespace) -> None:
  """Does what the flags ask for.

  Raises:
    ValueError: with one sentence; of a file, no line has been answered.
    OSError: a file cannot be written.
  """
  _check_flags(args)
  predictor = predicting.open_model(
    args.model,
    args.batch_size,
    args.length,
    args.top,
    args.best,
    args.no_answer,
    args.dtype,
  )
  where = "stdin" if args.input == "-" else args.input
  if args.input != "-":
    # A bad line is named before the model runs.
    for _ in requests.read(_lines(args.input), predictor.kind, where):
      pass
  with _written(args.output) as out:
    examples = requests.read(_lines(args.input), predictor.kind, where)
    if not predicting.write(predictor, examples, out):
      raise ValueError(f"{where} has no lines.")


def _stop(number: int, frame: Any) -> None:
  raise KeyboardInterrupt


def main() -> None:
  args = _parser().parse_args()
  logging.set_verbosity(logging.ERROR)
  signal.signal(signal.SIGTERM, _stop)
  try:
    run(args)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    print("stopped; no file was written.", file=sys.stderr, flush=True)
    # The threads of jax may be at work, which an ordinary exit dies of.
    os._exit(1)


if __name__ == "__main__":
  main()
