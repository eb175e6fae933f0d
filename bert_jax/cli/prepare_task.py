"""`bert_jax prepare-task`: encodes a task's files for fine-tuning."""

import argparse
import sys

from bert_jax.cli import flags
from bert_jax.tasks import questions
from bert_jax.tasks.files import custom

HELP = """Encodes the files of a task once, into a folder that fine-tuning
reads. docs/finetune.md lists the tasks and their files."""
EXAMPLE = """\
  bert_jax prepare-task --task sst2 --input train=train.tsv \\
    --input validation=dev.tsv --vocab vocab.txt --output data/sst2"""
# The name of a file in configs/ -> the tasks that have a config in this file.
# All other tasks use configs/own.py.
TASKS_BY_CONFIG: dict[str, tuple[str, ...]] = {
  "glue": (
    *("cola", "mnli", "mrpc", "qnli", "qqp"),
    *("rte", "sst2", "stsb", "wnli"),
  ),
  "squad": ("squad", "squad2"),
  "choices": ("race", "swag"),
  "ner": ("conll2003", "wnut17"),
}


def add_flags(parser: flags.Parser) -> None:
  flags.add(parser, "task")
  flags.add(
    parser,
    "input",
    action="append",
    metavar="SPLIT=FILE",
    help="a file as published; or SPLIT=tfds:NAME:SPLIT; or tfds for all splits"
    " of a published task. Give the flag again for more files, also of the same"
    " split",
  )
  flags.add(parser, "vocab", "add-tokens", "no-lower-case", "keep-accents")
  flags.add(parser, "output", metavar="DIR", help="the folder to make")
  flags.add(
    parser,
    "length",
    help="largest number of tokens in a row (default: the task's)",
  )
  task_group = parser.add_argument_group("your own task")
  flags.add(
    task_group,
    "columns",
    help="roles are text, pair, label, id; for tagging words, tags, id. In"
    " files with a word on each line, COLUMN is a number",
  )
  flags.add(task_group, "kind", choices=custom.KINDS)
  task_group.add_argument(
    "--labels",
    metavar="A,B,...",
    help="all labels, in order (default: the labels in the files, sorted)",
  )
  question_group = parser.add_argument_group("questions")
  question_group.add_argument(
    "--stride",
    type=int,
    default=questions.STRIDE,
    metavar="N",
    help="tokens between the starts of windows (default %(default)s)",
  )
  question_group.add_argument(
    "--max-question",
    type=int,
    default=questions.MAX_QUESTION,
    metavar="N",
    help="largest number of tokens in a question (default %(default)s)",
  )


def run(args: argparse.Namespace) -> None:
  from bert_jax.tasks import prepare_task, task_inputs
  from bert_jax.tasks.files import tables

  labels = tables.split_commas(args.labels or "", "--labels")
  flags.check_at_least(1, args, "length", "stride", "max_question")
  labels = [label for label in labels if label]
  task = task_inputs.find_task(args.task, args.kind, args.columns, labels)
  meta = prepare_task.prepare(
    task,
    task_inputs.parse_inputs(task, args.input),
    args.vocab,
    args.output,
    args.length,
    args.stride,
    args.max_question,
    add_tokens=args.add_tokens,
    **flags.cleaning_options(args),
  )
  print("\n".join(prepare_task.size_lines(meta)))
  for line in prepare_task.note_lines(meta):
    print(line, file=sys.stderr)
  task_fields = meta["task"]
  print(
    f"{args.output}: task {task_fields['name']}, labels"
    f" {task_fields['labels'] or 'none'}, metric {task_fields['metrics'][0]}"
  )
  config_names = (
    f"{file}:{args.task}"
    for file, tasks in TASKS_BY_CONFIG.items()
    if args.task in tasks
  )
  print(
    f"next: bert_jax train --config {next(config_names, 'own')} --workdir"
    f" runs/{args.task} --config.data.path={args.output}"
    " --config.init_from=PRETRAINED"
  )
