"""Predicts with any model that has a head: a line of JSON in, a line out.

python -m bert_jax.cli.predict --model PATH --input FILE.jsonl --output FILE.jsonl
"""

import argparse
import os
import signal
import sys
from typing import Any

from absl import logging

from bert_jax import files
from bert_jax.cli import flags_flags as flags
from bert_jax.use import predict as predicting
from bert_jax.use import serve as serving

_EPILOG = """Lines of the input: {"text": "..."} and, of pairs, "text_pair";
{"text": "...", "choices": ["...", ...]}; {"words": [...]} to tag;
{"question": "...", "context": "..."}; {"text": "... [MASK] ..."} for a masked
language model. Each line of the output has the input's "id", or its number."""


def _parser() -> flags.Parser:
  parser = flags.Parser(
    stdout=True,
    prog="python -m bert_jax.cli.predict",
    description="Predicts with any model that has a head.",
    epilog=_EPILOG,
  )
  parser.add_argument(
    "--model",
    required=True,
    help="a run's folder (or RUN@best, RUN@STEP), a converted folder or a"
    " transformers folder",
  )
  parser.add_argument(
    "--input",
    required=True,
    help="JSON lines; - for stdin, whose lines are answered as they arrive",
  )
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
  flags.add_family_flag(parser)
  return parser


def _check_flags(args: argparse.Namespace) -> None:
  for name in ("batch_size", "length", "top"):
    if getattr(args, name) < 1:
      raise ValueError(f"--{name} must be at least 1.")
  serving.check_paths(args.input, args.output)


def run(args: argparse.Namespace) -> None:
  """Does what the flags ask for.

  Raises:
    ValueError: with one sentence; of a file, no line has been answered.
    OSError: a file cannot be written.
  """
  _check_flags(args)
  with files.text_output(args.output) as out:
    predictor = predicting.open_model(
      args.model,
      args.batch_size,
      args.length,
      args.top,
      args.best,
      args.no_answer,
      args.dtype,
      args.family,
    )
    serving.answer(predictor, args.input, out)


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
    ending = "." if args.output == "-" else "; no file was written."
    print(f"stopped{ending}", file=sys.stderr, flush=True)
    # The threads of jax may be at work, which an ordinary exit dies of.
    os._exit(1)


if __name__ == "__main__":
  main()
