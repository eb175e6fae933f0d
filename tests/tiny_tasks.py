"""Writes tiny models and task folders for tests of fine-tuning."""

import numpy as np
import tiny_families

from bert_jax.models import from_config, task_heads
from bert_jax.tasks import encoded_rows, prepare_task
from bert_jax.tasks.encoded_rows import Task
from bert_jax.text import open_vocabulary
from bert_jax.weights import model_folder

WORDS = (
  "red",
  "green",
  "blue",
  "cat",
  "dog",
  "bird",
  "runs",
  "sleeps",
  "sings",
)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (*SPECIAL_TOKENS, *WORDS, ".", "?", "##s")
TASKS = {
  "classification": Task(
    "animals",
    "classification",
    ("cat", "dog"),
    num_choices=1,
    metrics=("accuracy",),
  ),
  "regression": Task(
    "sizes", "regression", (), num_choices=1, metrics=("pearson",)
  ),
  "choice": Task(
    "ends", "choice", ("0", "1", "2"), num_choices=3, metrics=("accuracy",)
  ),
  "tagging": Task(
    "names",
    "tagging",
    ("O", "B-X", "I-X"),
    num_choices=1,
    metrics=("tagging_f1",),
  ),
  "span": Task("answers", "span", (), num_choices=1, metrics=("squad",)),
}


def tokenizer_files():
  """Returns {file name: bytes} of an uncased WordPiece tokenizer."""
  return {"vocab.txt": "".join(f"{piece}\n" for piece in PIECES).encode()}


def vocabulary():
  return open_vocabulary.from_files(tokenizer_files(), "tiny", lower_case=True)


def write_model(path, task="pretraining", seed=0, **options):
  """Writes a converted folder of a random tiny BERT; returns its weights."""
  encoder = tiny_families.build_encoder("bert", vocab_size=len(PIECES))
  head = {"pairs": True} if task == "pretraining" else options.pop("head")
  config = model_folder.make_config(
    "bert", task, from_config.model_attributes(encoder), head=head, **options
  )
  rng = np.random.default_rng(seed)
  shapes = from_config.param_shapes(config)
  arrays = {
    name: (rng.normal(size=shape) * 0.2 + name.endswith("scale")).astype(
      np.float32
    )
    for name, shape in shapes.items()
  }
  weights = model_folder.Weights(config, arrays, tokenizer_files())
  model_folder.write(str(path), weights)
  return weights


def write_fine_tuned(path, kind, **options):
  """Writes a converted folder of a tiny BERT with the head of a task's kind."""
  task = TASKS[kind]
  from bert_jax.models import bert

  head = task_heads.head_options(
    kind, bert.POOLING, num_labels=len(task.labels), dropout=None
  )
  labels = [*task.labels] if kind in ("classification", "tagging") else None
  if kind == "regression":
    labels = ["LABEL_0"]
  problem = kind if kind in ("classification", "regression") else None
  return write_model(
    path,
    task_heads.TASK_BY_KIND[kind],
    head=head,
    labels=labels,
    problem=problem,
    **options,
  )


def random_sentences(count, seed=0, max_words=9):
  rng = np.random.default_rng(seed)
  return [
    " ".join(rng.choice(WORDS, rng.integers(1, max_words + 1)))
    for _ in range(count)
  ]


def classified_examples(count, seed=0):
  """Returns examples; the first word of each, "cat" or "dog", is its label."""
  rng = np.random.default_rng(seed)
  examples = []
  for i, text in enumerate(random_sentences(count, seed)):
    animal = ("cat", "dog")[rng.integers(2)]
    examples.append(dict(id=str(i), texts=[f"{animal} {text}"], label=animal))
  return examples


def write_task(path, length=16, num_train=21, num_validation=10):
  """Writes the task folder of a classification task; returns its path."""
  task, tokenizer = TASKS["classification"], vocabulary()
  splits = {}
  for split, count, seed in (
    ("train", num_train, 1),
    ("validation", num_validation, 2),
  ):
    examples = classified_examples(count, seed)
    encoded_examples = prepare_task.encode_examples(
      task, examples, tokenizer, length
    )
    splits[split] = encoded_examples.rows, examples
  meta = dict(
    pad=0,
    vocab_size=len(PIECES),
    special=tokenizer.special._asdict(),
    tokenizer="wordpiece",
    lower_case=True,
  )
  files = open_vocabulary.to_files(tokenizer)
  encoded_rows.save(str(path), task, splits, meta, files)
  return str(path)
