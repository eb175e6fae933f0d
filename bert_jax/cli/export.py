"""Exports a fine-tuned model with its tokenizer into one file.

python -m bert_jax.cli.export --model PATH --output FILE
python -m bert_jax.cli.run_exported FILE --input FILE.jsonl --output FILE.jsonl
"""

import os
import sys

from absl import logging

from bert_jax.cli import flags_flags as flags
from bert_jax.use import export as exported
from bert_jax.weights import load as loading


def main() -> None:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.export",
    description="Exports a fine-tuned model with its tokenizer into one file.",
  )
  add = parser.add_argument
  add("--model", required=True, help="what bert_jax.load opens: RUN@best too")
  add("--output", required=True, help="the file to write")
  add(
    "--lengths",
    default=",".join(map(str, exported.LENGTHS)),
    help="of rows, each a program (default %(default)s)",
  )
  add(
    "--platforms",
    default=",".join(exported.PLATFORMS),
    help="that it runs on (default %(default)s)",
  )
  add("--dtype", choices=("float32", "bfloat16"), default="float32")
  flags.add_family_flag(parser)
  args = parser.parse_args()
  logging.set_verbosity(logging.ERROR)
  try:
    parts = args.lengths.split(",")
    if not all(part.strip().isdigit() for part in parts):
      raise ValueError(f"--lengths {args.lengths}: numbers with commas.")
    platforms = args.platforms.split(",")
    if not set(platforms) <= set(exported.PLATFORMS):
      raise ValueError(
        f"--platforms {args.platforms}: of {', '.join(exported.PLATFORMS)}."
      )
    if os.path.isdir(args.output):
      raise ValueError(f"{args.output} is a folder; name a file.")
    weights = loading.read(args.model, args.family, None)
    meta = exported.save(
      args.output,
      weights,
      args.model,
      [int(part) for part in parts],
      platforms,
      args.dtype,
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")
  lengths = ", ".join(map(str, meta["lengths"]))
  print(f"{args.output}: {meta['kind']}, rows of {lengths} tokens.")


if __name__ == "__main__":
  main()
