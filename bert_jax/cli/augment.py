"""Augments a task's training file, as TinyBERT's task stages need it.

python -m bert_jax.cli.augment --model BERT --task sst2 --input train.tsv \\
  --output train_augmented.tsv [--vectors glove.txt]

The output has each line and its variants, with the label of the line, and is
read by `python -m bert_jax.cli.prepare --task sst2 --input train=...`.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

from absl import logging

from bert_jax import files
from bert_jax.cli import flags_flags as flags
from bert_jax.tasks import read as reading
from bert_jax.tasks.files import custom as own
from bert_jax.tasks.files import glue
from bert_jax.tasks.published import Known
from bert_jax.use import augmentation, word_vectors
from bert_jax.use import predict as predicting
from bert_jax.use.augmentation import Example, Options

KINDS = ("classification", "regression")
_BREAKS = re.compile(r"[\t\r\n]")


def _parser() -> flags.Parser:
  parser = flags.Parser(
    prog="python -m bert_jax.cli.augment",
    description="Augments a task's training file by a masked language model"
    " and word vectors (TinyBERT).",
  )
  parser.add_argument(
    "--model",
    required=True,
    help="BERT with its masked-LM head: a run's folder, a converted one, one of"
    " transformers",
  )
  parser.add_argument(
    "--task",
    required=True,
    metavar="NAME",
    help=f"one of {', '.join(glue.TEXTS)}; or your own name, with --columns",
  )
  parser.add_argument("--input", required=True, help="the training file")
  parser.add_argument("--output", required=True, help="a .tsv to write")
  parser.add_argument(
    "--vectors",
    help="GloVe's text file; without it words of several pieces stay",
  )
  defaults = Options()
  for name, what in (
    ("samples", "variants drawn of each text"),
    ("threshold", "chance that a word is replaced"),
    ("candidates", "words that may replace one"),
    ("seed", "of all draws"),
  ):
    value = getattr(defaults, name)
    parser.add_argument(
      f"--{name}",
      type=type(value),
      default=value,
      help=f"{what} (default %(default)s)",
    )
  parser.add_argument(
    "--batch_size", type=int, default=128, help="rows at a time"
  )
  parser.add_argument(
    "--dtype", default="float32", choices=("float32", "bfloat16")
  )
  flags.add_family_flag(parser)
  group = parser.add_argument_group("your own task")
  group.add_argument(
    "--columns", metavar="ROLE=COLUMN,...", help="text, pair, label"
  )
  group.add_argument("--kind", choices=KINDS)
  return parser


def _check(args: Any) -> None:
  """Raises ValueError at a flag out of its range."""
  for name in ("samples", "candidates", "batch_size"):
    if getattr(args, name) < 1:
      raise ValueError(f"--{name}={getattr(args, name)}: must be at least 1.")
  if not 0 <= args.threshold <= 1:
    raise ValueError(f"--threshold={args.threshold}: must be from 0 to 1.")
  if args.seed < 0:
    raise ValueError(f"--seed={args.seed}: must be at least 0.")
  if not args.output.lower().endswith(".tsv"):
    raise ValueError(
      f"--output={args.output}: the columns are separated by tabs; give it a"
      " name that ends in .tsv."
    )
  if os.path.realpath(args.output) == os.path.realpath(args.input):
    raise ValueError(f"--output={args.output} is the input; choose another.")


def columns(
  name: str, kind: str | None, given: str | None
) -> tuple[Known, list[str]]:
  """A task of one or two texts, and the columns that are written.

  Args:
    name: of the task.
    kind: and `given`, the value of --columns: of one's own.

  Raises:
    ValueError: no such task, or none of that form.
  """
  known = reading.find(name, kind, given)
  if given is None:
    if name not in glue.TEXTS:
      raise ValueError(
        f"--task={name}: augmented are {', '.join(glue.TEXTS)}, and your own"
        " tasks of one or two texts, with --columns."
      )
    return known, [*glue.TEXTS[name], "label"]
  chosen = own.columns(given, known.task.kind)
  texts = [chosen[role] for role in ("text", "pair") if role in chosen]
  label_columns = chosen.get(own.LABEL_COLUMNS)
  return known, [*texts, *(label_columns or [chosen.get("label", "label")])]


def _examples(known: Known, path: str, skipped: list[str]) -> Iterator[Example]:
  for record in known.records(path, skipped):
    for example in known.parse(record, True):
      # In a JSON or CSV file they may be part of a text.
      texts = (_BREAKS.sub(" ", text) for text in example["texts"])
      columns = (known.columns or {}).get(own.LABEL_COLUMNS)
      if columns:
        marks = (str(int(name in example["label"])) for name in columns)
        yield Example(tuple(texts), "\t".join(marks))
        continue
      label = str(example["label"])
      if _BREAKS.search(label):
        raise ValueError(
          f"{record.where}: label {label!r:.60} has a tab or the end of a line"
          " in it, which no .tsv can hold."
        )
      yield Example(tuple(texts), label)


def _open_model(args: Any) -> predicting.Predictor:
  """Raises ValueError unless it fills masks of WordPiece."""
  predictor = predicting.open_model(
    args.model,
    args.batch_size,
    top=args.candidates,
    dtype=args.dtype,
    family=args.family,
  )
  if predictor.kind != "fill":
    raise ValueError(
      f"--model={args.model} is a model for {predictor.kind}; words are"
      " predicted by the pre-trained one, with its masked-LM head."
    )
  if predictor.vocabulary.kind != "wordpiece":
    raise ValueError(
      f"--model={args.model} has a tokenizer of kind"
      f" {predictor.vocabulary.kind}; the rules are those of BERT's WordPiece."
    )
  return predictor


def run(args: Any) -> None:
  """Writes the file that the flags ask for.

  Raises:
    ValueError: with one sentence; nothing is written.
  """
  _check(args)
  known, names = columns(args.task, args.kind, args.columns)
  skipped: list[str] = []
  # A bad line is named before the model runs.
  count = sum(1 for _ in _examples(known, args.input, skipped))
  if not count:
    raise ValueError(f"{args.input}: no examples in it.")
  vectors = word_vectors.read(args.vectors) if args.vectors else None
  options = Options(*(getattr(args, name) for name in Options._fields))
  predictor, written = _open_model(args), 0
  examples = _examples(known, args.input, [])
  with files.whole(args.output) as partial:
    with open(partial, "w", encoding="utf-8", newline="\n") as f:
      f.write("\t".join(names) + "\n")
      for made in augmentation.expand(predictor, vectors, options, examples):
        f.write("\t".join([*made.texts, made.label]) + "\n")
        written += 1
  for where in skipped:
    print(f"{where}: columns are missing; left out", file=sys.stderr)
  print(f"{args.output}: {written} examples of {count}")


def _stop(number: int, frame: Any) -> None:
  raise KeyboardInterrupt


def main() -> None:
  args = _parser().parse_args()
  logging.set_verbosity(logging.ERROR)
  signal.signal(signal.SIGTERM, _stop)
  try:
    run(args)
  except ValueError as e:
    sys.exit(f"error: {e}")
  except OSError as e:
    what = f"{e.filename}: {e.strerror}" if e.filename else str(e)
    sys.exit(f"error: {what}.")
  except KeyboardInterrupt:
    sys.exit("stopped; nothing was written.")


if __name__ == "__main__":
  main()
