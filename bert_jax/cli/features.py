"""Writes vectors of texts from a frozen model.

  python -m bert_jax.cli.features --model PATH --input FILE --output FILE

The input has a text a line, or (.jsonl) an object with "text" or "words" and
perhaps an "id"; the output is .jsonl, .npz, .h5 or .hdf5, in the same order.
"""

import math
import os
import sys
import time

from absl import logging

from bert_jax.cli import flags_flags as flags
from bert_jax.messages import note
from bert_jax.use import features as features_of
from bert_jax.use import features_feature_files as feature_files
from bert_jax.use import text_batches as text_rows
from bert_jax.use.features import Spec


def _numbers(text: str, kind: type, flag: str) -> tuple:
  try:
    found = tuple(kind(part) for part in text.split(",") if part.strip())
  except ValueError as e:
    raise ValueError(f"{flag} {text}: numbers with commas between them.") from e
  if not all(map(math.isfinite, found)):
    raise ValueError(f"{flag} {text}: not all are finite numbers.")
  return found


def _parser() -> flags.Parser:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.features",
    description="Writes vectors of texts from a frozen model.",
  )
  add, spec = parser.add_argument, Spec()
  add("--model", required=True, help="what bert_jax.load opens: RUN@best too")
  add("--input", required=True, help="a text a line, or .jsonl")
  add("--output", required=True, help="a .jsonl, .npz, .h5 or .hdf5 file")
  add(
    "--layers",
    default="-1",
    help="numbers with commas, 0 for the embeddings, -1 (default) for the last"
    " layer; or all; write --layers=-2,-1",
  )
  add(
    "--combine",
    choices=features_of.COMBINE,
    default=spec.combine,
    help="what is made of several layers (default %(default)s)",
  )
  add("--mix", default="", help="learnt weights of the layers, with commas")
  add("--gamma", type=float, default=spec.gamma, help="the mix's factor")
  add(
    "--vectors",
    choices=features_of.UNITS,
    help="one a piece or word; or one a text, that of [CLS], or the mean or the"
    " largest numbers of all pieces (default: as the model's 1_Pooling, and"
    " one a piece where it has none)",
  )
  add(
    "--pieces",
    choices=features_of.PIECES,
    default=spec.pieces,
    help="which of a word's pieces (default %(default)s)",
  )
  add("--normalize", action="store_true", help="make vectors of length 1")
  add("--max_length", type=int, help="of a window (default: the model's)")
  add(
    "--overlap",
    type=int,
    default=spec.overlap,
    help="pieces that windows of a long text share (default %(default)s)",
  )
  add("--batch_tokens", type=int, default=8192, help="padding included")
  add("--dtype", choices=("float32", "bfloat16"), default="float32")
  flags.add_family_flag(parser)
  add(
    "--tower",
    choices=("discriminator", "generator"),
    help="of ELECTRA (default: the discriminator where there are both)",
  )
  return parser


def main() -> None:
  args = _parser().parse_args()
  logging.set_verbosity(logging.ERROR)
  begin = time.monotonic()
  try:
    if args.batch_tokens < 1:
      raise ValueError(f"--batch_tokens {args.batch_tokens}: 1 or more.")
    feature_files.check(args.output)
    if os.path.realpath(args.output) == os.path.realpath(args.input):
      raise ValueError(f"--output {args.output} is the input; choose another.")
    if not math.isfinite(args.gamma):
      raise ValueError(f"--gamma {args.gamma}: a finite number.")
    layers = None
    if args.layers != "all":
      layers = _numbers(args.layers, int, "--layers")
    mix = _numbers(args.mix, float, "--mix")
    model = text_rows.open_model(
      args.model, args.family, args.tower, dtype=args.dtype
    )
    if layers is None:
      layers = tuple(range(features_of.num_layers(model)))
    unit, normalize, lines = features_of.own_pooling(model, args.vectors)
    for line in lines:
      note(f"note: {line}.")
    spec = Spec(
      layers,
      args.combine,
      mix,
      args.gamma,
      unit,
      args.pieces,
      args.normalize or normalize,
      args.max_length,
      args.overlap,
    )
    texts = text_rows.read_texts(args.input)
    found = features_of.extract_texts(model, texts, spec, args.batch_tokens)
    count = feature_files.write(args.output, found)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    sys.exit(f"error: {e.filename or args.output}: {e.strerror}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")
  seconds = time.monotonic() - begin
  print(f"{args.output}: {count:,} texts in {seconds:.1f} s.")


if __name__ == "__main__":
  main()
