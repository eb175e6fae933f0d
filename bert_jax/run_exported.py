"""Predicts with an exported model, from its file alone.

  python -m bert_jax.run_exported FILE --input FILE.jsonl --output FILE.jsonl

`bert_jax/answering.py` says what lines hold.
"""

import contextlib
import os
import sys
import time

from absl import logging

from bert_jax import answering, exported
from bert_jax.data import flags


def main() -> None:
  parser = flags.Parser(
    prog="python -m bert_jax.run_exported",
    description="Predicts with an exported model, from its file alone.",
  )
  add = parser.add_argument
  add("file", help="that export_program wrote")
  add("--input", required=True, help="a .jsonl file, an example a line")
  add("--output", required=True, help="the .jsonl file to write")
  add("--batch_size", type=int, default=32, help="rows (default %(default)s)")
  args = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  begin = time.monotonic()
  partial = f"{args.output}.partial"
  try:
    if args.batch_size < 1:
      raise ValueError(f"--batch_size {args.batch_size}: 1 or more.")
    model = exported.load(args.file)
    examples = answering.read(args.input, model.task)
    found = answering.predict(model, examples, args.batch_size)
    count = answering.write(partial, found)
    os.replace(partial, args.output)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")
  finally:
    with contextlib.suppress(FileNotFoundError):
      os.remove(partial)
  seconds = time.monotonic() - begin
  print(f"{args.output}: {count:,} predictions in {seconds:.1f} s.")


if __name__ == "__main__":
  main()
