"""`bert_jax features`: writes vectors of texts from a frozen model."""

import argparse
import math
import time

from bert_jax.cli import flags
from bert_jax.messages import UserError

HELP = """Writes vectors of texts from a frozen model, in the order of the
input. The input has a text on each line, or is a .jsonl file with "text" or
"words" and, optionally, an "id"."""
EXAMPLE = """\
  bert_jax features --model bert --input texts.txt \\
    --output vectors.npz --layers=-2,-1 --combine mean --pooling word"""


def add_flags(parser: flags.Parser) -> None:
  from bert_jax.use import features

  add, defaults = parser.add_argument, features.Spec()
  flags.add(parser, "model")
  flags.add(parser, "input", help="a file with a text on each line, or .jsonl")
  flags.add(
    parser, "output", metavar="FILE", help="a .jsonl, .npz, .h5 or .hdf5 file"
  )
  add(
    "--layers",
    default="-1",
    metavar="N,...",
    help="numbers of layers: 0 for the embeddings, -1 (default) for the last"
    " layer; or all",
  )
  add(
    "--combine",
    choices=features.COMBINATIONS,
    default=defaults.combine,
    help="how several layers become one vector (default %(default)s)",
  )
  add(
    "--mix", default="", metavar="W,...", help="learnt weights of mixed layers"
  )
  add("--gamma", type=float, default=defaults.gamma, help="factor of the mix")
  add(
    "--pooling",
    choices=features.UNITS,
    help="a vector for each piece or word; or one for each text: the vector of"
    " [CLS], or the mean or the maximum over all pieces (default: the model's"
    " own pooling, or piece)",
  )
  add(
    "--pieces",
    choices=features.PIECE_CHOICES,
    default=defaults.pieces,
    help="which pieces of a word make its vector (default %(default)s)",
  )
  add("--unit-length", action="store_true", help="scale vectors to length 1")
  flags.add(
    parser, "length", help="tokens in a window (default: the model's limit)"
  )
  add(
    "--overlap",
    type=int,
    default=defaults.overlap,
    metavar="N",
    help="pieces that windows of a long text share (default %(default)s)",
  )
  flags.add(parser, "batch-tokens", "dtype", "family", "tower")


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import feature_files, features

  begin = time.monotonic()
  flags.check_at_least(1, args, "batch_tokens")
  if not math.isfinite(args.gamma):
    raise UserError(f"--gamma {args.gamma} must be a finite number.")
  layers = None  # All layers of the model.
  if args.layers != "all":
    layers = flags.parse_numbers(args.layers, int, "--layers")
  options = features.Spec(
    layers=layers,
    combine=args.combine,
    mix=flags.parse_numbers(args.mix, float, "--mix"),
    gamma=args.gamma,
    unit=args.pooling,
    pieces=args.pieces,
    normalize=args.unit_length,
    max_length=args.length,
    overlap=args.overlap,
  )
  num_texts = feature_files.extract_file(
    args.model,
    args.input,
    args.output,
    options,
    args.batch_tokens,
    dtype=args.dtype,
    family=args.family,
    tower=args.tower,
  )
  seconds = time.monotonic() - begin
  print(f"{args.output}: {num_texts:,} texts in {seconds:.1f} s.")
