"""Encodes the files of a task once, into a folder that fine-tuning reads.

  python -m bert_jax.cli.prepare_task --task sst2 --input train=train.tsv \\
    --input validation=dev.tsv --vocab vocab.txt --output data/sst2

`python -m bert_jax.cli.prepare --task ...` is the same. docs/finetune.md says which
tasks there are, and which files each has.
"""

import signal
import sys
from typing import Any

from bert_jax.cli import flags_flags as flags
from bert_jax.tasks import prepare_task as preparing
from bert_jax.tasks import questions as spans
from bert_jax.tasks import read as reading
from bert_jax.tasks.files import custom as own
from bert_jax.tasks.files import tables
from bert_jax.tasks.published import TASKS

# File of configs/ -> its tasks; the others use configs/own.py.
RECIPES = {
  "glue": "cola mnli mrpc qnli qqp rte sst2 stsb wnli".split(),
  "squad": ("squad", "squad2"),
  "choices": ("race", "swag"),
  "ner": ("conll2003", "wnut17"),
}


def _parser() -> flags.Parser:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.prepare_task",
    description="Encodes the files of a task once, into a folder that"
    " fine-tuning reads.",
  )
  parser.add_argument(
    "--task",
    required=True,
    metavar="NAME",
    help=f"one of {', '.join(TASKS)}; or your own name, with --columns",
  )
  parser.add_argument(
    "--input",
    action="append",
    required=True,
    metavar="SPLIT=FILE",
    help="of the original files, or SPLIT=tfds:NAME:SPLIT, or tfds for all"
    " splits of a published task; several are allowed, of one split too",
  )
  parser.add_argument(
    "--vocab",
    "--tokenizer",
    required=True,
    help="a vocabulary of any kind, or a model's folder",
  )
  flags.add_tokens_flag(parser)
  parser.add_argument("--output", required=True, help="the folder to make")
  parser.add_argument(
    "--length", type=int, help="tokens in a row at most (default: the task's)"
  )
  flags.add_cleaning_flags(parser)
  group = parser.add_argument_group("your own task")
  group.add_argument(
    "--columns",
    metavar="ROLE=COLUMN,...",
    help="text, pair, label, id; of tagging words, tags, id, or numbers of"
    " columns where a line is a word",
  )
  group.add_argument("--kind", choices=own.KINDS)
  group.add_argument(
    "--labels",
    help="all labels, in order (default: those found, sorted); quotes around"
    " one with a comma",
  )
  group = parser.add_argument_group("questions")
  group.add_argument(
    "--stride",
    type=int,
    default=spans.STRIDE,
    help="tokens from one window to the next (default %(default)s)",
  )
  group.add_argument(
    "--max_question",
    type=int,
    default=spans.MAX_QUESTION,
    help="tokens of a question at most (default %(default)s)",
  )
  return parser


def _report(meta: dict[str, Any]) -> None:
  """One line a split, and one on stderr for all that was not used as it is."""
  for split, sizes in meta["splits"].items():
    print(
      f"{split}: {sizes['examples']} examples, {sizes['rows']} rows of"
      f" {sizes['tokens'] / sizes['rows']:.1f} tokens on average"
    )
  for split, notes in meta["notes"].items():
    for what, (count, which) in notes.items():
      more = ", ..." if count > len(which) else ""
      line = f"{count} {what}: {', '.join(which)}{more}" if count else what
      print(f"{split}: {line}", file=sys.stderr)


def _stop(number: int, frame: Any) -> None:
  raise KeyboardInterrupt


def main() -> None:
  args = _parser().parse_args()
  signal.signal(signal.SIGTERM, _stop)
  try:
    labels = tables.split_commas(args.labels or "", "--labels")
    for name in ("length", "stride", "max_question"):
      if (value := getattr(args, name)) is not None and value < 1:
        raise ValueError(f"--{name}={value}: must be 1 or more.")
    known = reading.find(
      args.task, args.kind, args.columns, [x for x in labels if x]
    )
    meta = preparing.prepare(
      known,
      reading.parse_inputs(known, args.input),
      args.vocab,
      args.output,
      args.length,
      args.stride,
      args.max_question,
      add_tokens=args.add_tokens,
      **flags.cleaning_options(args),
    )
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    what = f"{e.filename}: {e.strerror}" if e.filename else str(e)
    sys.exit(f"error: {what}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")
  _report(meta)
  task = meta["task"]
  print(
    f"{args.output}: task {task['name']}, labels {task['labels'] or 'none'},"
    f" scored by {task['metrics'][0]}"
  )
  names = (
    f"{file}:{args.task}"
    for file, tasks in RECIPES.items()
    if args.task in tasks
  )
  print(
    f"next: python -m bert_jax.cli.train --config {next(names, 'own')}"
    f" --workdir runs/{args.task} --config.data.path={args.output}"
    " --config.init_from=PRETRAINED"
  )


if __name__ == "__main__":
  main()
