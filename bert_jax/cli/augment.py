"""`bert_jax augment`: variants of a task's training examples."""

import argparse
import shlex
import sys

from bert_jax.cli import flags

HELP = """Augments a task's training file by a masked language model and word
vectors (TinyBERT). The output has each line and its variants, with the line's
label."""
EXAMPLE = """\
  bert_jax augment --model bert --task sst2 --input train.tsv \\
    --output train_augmented.tsv --vectors glove.txt"""


def add_flags(parser: flags.Parser) -> None:
  from bert_jax.use import augmentation

  flags.add(parser, "model", "task")
  flags.add(parser, "input", help="the training file")
  flags.add(parser, "output", metavar="FILE", help="a .tsv to write")
  parser.add_argument(
    "--vectors",
    metavar="FILE",
    help="GloVe's text file; without it, words of several pieces are never"
    " replaced",
  )
  defaults = augmentation.Options()
  parser.add_argument(
    "--samples",
    type=int,
    default=defaults.num_samples,
    metavar="N",
    help="variants of each text (default %(default)s)",
  )
  parser.add_argument(
    "--threshold",
    type=float,
    default=defaults.threshold,
    metavar="P",
    help="chance that a word is replaced (default %(default)s)",
  )
  parser.add_argument(
    "--candidates",
    type=int,
    default=defaults.num_candidates,
    metavar="N",
    help="words to choose a replacement from (default %(default)s)",
  )
  flags.add(parser, "seed", default=defaults.seed)
  flags.add(parser, "batch-size", default=128)
  flags.add(parser, "dtype", "family")
  group = parser.add_argument_group("your own task")
  flags.add(group, "columns", help="text, pair, label")
  flags.add(group, "kind", choices=("classification", "regression"))


def run(args: argparse.Namespace) -> None:
  from bert_jax.use import augment_task, augmentation

  flags.check_at_least(1, args, "samples", "candidates", "batch_size")
  options = augmentation.Options(
    num_samples=args.samples,
    threshold=args.threshold,
    num_candidates=args.candidates,
    seed=args.seed,
  )
  augmented_file = augment_task.augment(
    args.model,
    args.task,
    args.input,
    args.output,
    args.vectors,
    options,
    kind=args.kind,
    columns=args.columns,
    batch_size=args.batch_size,
    dtype=args.dtype,
    family=args.family,
  )
  for line in augmented_file.skipped_lines:
    print(f"{line}: columns are missing; the line is left out", file=sys.stderr)
  print(
    f"{args.output}: {augmented_file.num_written} examples of"
    f" {augmented_file.num_read}"
  )
  task_flags = {"--columns": args.columns, "--kind": args.kind}
  task_flags_text = "".join(
    f" {flag} {shlex.quote(text)}" for flag, text in task_flags.items() if text
  )
  print(
    f"next: bert_jax prepare-task --task {args.task}{task_flags_text}"
    f" --input train={args.output} --vocab {args.model}"
    f" --output data/{args.task}_augmented"
  )
