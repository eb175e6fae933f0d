"""Packs predictions for GLUE's or SuperGLUE's server.

python -m bert_jax.cli.submission --output glue.zip runs/*/CoLA.tsv ...
"""

import sys

from bert_jax.cli import flags_flags as flags
from bert_jax.tasks import server_files as formats


def main() -> None:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.submission",
    description="Packs predictions for GLUE's or SuperGLUE's server.",
  )
  parser.add_argument("--output", required=True, help="the .zip to make")
  parser.add_argument(
    "files", nargs="+", metavar="FILE", help="CoLA.tsv, BoolQ.jsonl, ..."
  )
  args = parser.parse_args()
  try:
    missing = formats.submission(args.output, args.files)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  print(args.output)
  if missing:
    print(f"The server also wants {', '.join(missing)}.", file=sys.stderr)


if __name__ == "__main__":
  main()
