"""`bert_jax predict`: reads a JSON object on each line, and writes one."""

import argparse

from bert_jax.cli import flags

HELP = """Predicts with any model that has a head. A line of the input is
  {"text": "...", "text_pair": "..."}       to classify one or two texts,
  {"text": "...", "choices": ["...", ...]}  to choose,
  {"words": ["...", ...]}                   to tag,
  {"question": "...", "context": "..."}     to answer,
  {"text": "... [MASK] ..."}                to fill masks.
Each line of the output has the input's "id", or its number."""
EXAMPLE = """\
  bert_jax predict --model runs/sst2 --input in.jsonl --output out.jsonl
  echo '{"text": "A fine film."}' | bert_jax predict --model runs/sst2 \\
    --input - --output -"""
# `main.py` reads this constant: `--output -` is allowed.
TAKES_STDOUT = True


def add_flags(parser: flags.Parser) -> None:
  # `SHARED_FLAGS` has the options of the flags that have none here.
  flags.add(parser, "model")
  flags.add(
    parser,
    "input",
    help="JSON lines; - for stdin, whose lines are answered as they arrive",
  )
  flags.add(parser, "output", metavar="FILE", help="JSON lines; - for stdout")
  flags.add(parser, "batch-size")
  flags.add(
    parser,
    "length",
    default=512,
    help="largest number of tokens in a row; longer texts are read in windows"
    " (default %(default)s)",
  )
  flags.add(parser, "top", "no-answer", "dtype", "family")


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import predict, serve

  flags.check_at_least(1, args, "batch_size", "length", "top")
  num_predictions = serve.answer_file(
    lambda: predict.open_predictor(
      args.model,
      args.batch_size,
      args.length,
      args.top,
      no_answer=args.no_answer,
      dtype=args.dtype,
      family=args.family,
    ),
    args.input,
    args.output,
  )
  if args.output != "-":
    print(f"{args.output}: {num_predictions:,} predictions.")
