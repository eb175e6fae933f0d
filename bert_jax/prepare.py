"""Tokenises text once, into a folder that training reads.

  python -m bert_jax.prepare --input 'text/*.txt' --vocab vocab.txt \\
    --output data/mine

Killed or stopped, the same command goes on where it was.
"""

import argparse
import signal
import sys

from bert_jax.data import preparing, reading


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m bert_jax.prepare",
    description="Tokenises text once, into a folder that training reads."
    " Killed or stopped, the same command goes on where it was.",
  )
  parser.add_argument(
    "--input",
    nargs="+",
    required=True,
    metavar="GLOB",
    help="files, tfds:NAME[:SPLIT] or docstrings; several are allowed",
  )
  parser.add_argument(
    "--vocab", required=True, help="a WordPiece vocabulary, a piece a line"
  )
  parser.add_argument("--output", required=True, help="the folder to make")
  parser.add_argument(
    "--format",
    choices=("auto", *reading.FORMATS),
    default="auto",
    help="auto (default) goes by the extension; .txt is bert: a sentence a"
    " line, a blank line between documents; text is plain text, a file a"
    " document",
  )
  parser.add_argument(
    "--errors",
    choices=("strict", "replace"),
    default="strict",
    help="what to do with bytes that are not UTF-8",
  )
  parser.add_argument(
    "--heldout",
    type=float,
    default=0.005,
    help="share of the documents to hold out (default %(default)s)",
  )
  parser.add_argument(
    "--processes", type=int, help="worker processes (default: one a core)"
  )
  parser.add_argument(
    "--no-lower-case",
    action="store_true",
    help="keep capitals and accents (for a cased vocabulary)",
  )
  parser.add_argument(
    "--language",
    default="en",
    help="ISO 639 code, for finding sentences (default %(default)s)",
  )
  return parser


def _stop(number, frame) -> None:
  raise KeyboardInterrupt


def main() -> None:
  args = _parser().parse_args()
  signal.signal(signal.SIGTERM, _stop)
  try:
    preparing.prepare(
      args.input,
      args.vocab,
      args.output,
      format=args.format,
      errors=args.errors,
      heldout=args.heldout,
      processes=args.processes,
      lower_case=not args.no_lower_case,
      language=args.language,
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    what = f"{e.filename}: {e.strerror}" if e.filename else str(e)
    sys.exit(
      f"error: {what.rstrip('.')}. Once that is mended, the same command goes"
      " on where it was."
    )
  except KeyboardInterrupt:
    sys.exit("stopped; the same command goes on where it was.")
  print(
    "next: python -m bert_jax.main --config configs/bert_base.py --workdir"
    f" runs/mine --config.data.path={args.output}"
  )


if __name__ == "__main__":
  main()
