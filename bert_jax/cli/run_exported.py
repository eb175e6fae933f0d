"""Predicts with an exported model, from its file alone.

  python -m bert_jax.cli.run_exported FILE --input FILE.jsonl --output FILE.jsonl

Lines in and out are those of `bert_jax.cli.predict`.
"""

import sys
import time

from absl import logging

from bert_jax import files
from bert_jax.cli import flags_flags as flags
from bert_jax.use import export as exported
from bert_jax.use import serve as serving
from bert_jax.use.predict import Predictor


def run(predictor: Predictor, source: str, target: str) -> int:
  """Answers every line of a file; a file is written whole or not at all.

  Args:
    predictor: the model.
    source: the file with a line an example; "-" is stdin.
    target: the file with a line a prediction; "-" is stdout.

  Returns:
    The number of predictions.

  Raises:
    ValueError: a bad line, which is named, no line, or one file for both.
  """
  serving.check_paths(source, target)
  with files.text_output(target) as out:
    return serving.answer(predictor, source, out)


def main() -> None:
  parser = flags.Parser(
    stdout=True,
    prog="python -m bert_jax.cli.run_exported",
    description="Predicts with an exported model, from its file alone.",
  )
  add = parser.add_argument
  add("file", help="that export_program wrote")
  add(
    "--input",
    required=True,
    help="a .jsonl file, an example a line; - for stdin",
  )
  add("--output", required=True, help="the .jsonl file to write; - for stdout")
  add("--batch_size", type=int, default=32, help="rows (default %(default)s)")
  add(
    "--no_answer",
    action="store_true",
    help="a question may have no answer (SQuAD 2.0)",
  )
  args = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  begin = time.monotonic()
  try:
    if args.batch_size < 1:
      raise ValueError(f"--batch_size {args.batch_size}: 1 or more.")
    model = exported.load(args.file, args.batch_size, args.no_answer)
    count = run(model, args.input, args.output)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")
  seconds = time.monotonic() - begin
  if args.output == "-":
    return
  print(f"{args.output}: {count:,} predictions in {seconds:.1f} s.")


if __name__ == "__main__":
  main()
