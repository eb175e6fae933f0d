"""Measures how many tokens per CPU-second the data pipelines make.

  python benchmarks/data.py --input 'text/*.jsonl.xz' --vocab vocab.txt

The program prepares the text, or takes a prepared folder as `--input`. Then it
reads batches of every recipe and every unit of masks. On the same text, the
program measures the usual pipeline with Hugging Face's libraries: tokenise,
concatenate, cut into rows, and mask in `DataCollatorForLanguageModeling` (with
numpy, so torch is not needed). Without `transformers`, it uses `tokenizers` and
the collator's rule in numpy instead. Hugging Face's pipeline is not measured
for pairs, because current `transformers` has no next-sentence data set.

Rates are per second of CPU time of all threads of the process, so libraries
with and without threads can be compared. Real tokens are those that are not
padding. Places are all positions of the rows, padding included.
"""

import argparse
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tokenizers

from bert_jax.corpus import sources
from bert_jax.corpus.reader import open_prepared
from bert_jax.examples import loader
from bert_jax.examples.masked_units import UNIT_RULES
from bert_jax.examples.recipes import RECIPES
from bert_jax.text.vocabulary import SPECIAL_TOKENS

# Hugging Face's pipeline tokenises this number of texts at a time, as in
# `datasets.map(batched=True)`.
TEXTS_PER_CALL = 1000


def measure(name: str, masks: Iterator[np.ndarray], seconds: float) -> dict:
  """Reads attention masks [B, L] for `seconds` of CPU time.

  Returns:
    The row of the table for this pipeline.
  """
  num_real_tokens = num_places = num_batches = 0
  start = time.process_time()
  for mask in masks:
    num_real_tokens += int(np.count_nonzero(mask))
    num_places += mask.size
    num_batches += 1
    spent_seconds = time.process_time() - start
    if spent_seconds > seconds:
      break
  return {
    "pipeline": name,
    "batches": num_batches,
    "cpu_seconds": round(spent_seconds, 3),
    "million_real_tokens_per_cpu_second": round(
      num_real_tokens / spent_seconds / 1e6, 3
    ),
    "million_places_per_cpu_second": round(num_places / spent_seconds / 1e6, 3),
  }


def measure_preparation(pattern: str, vocab: str, output: str) -> dict:
  """Runs `bert_jax prepare`; returns the row of the table for its speed."""
  usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
  command = [sys.executable, "-m", "bert_jax", "prepare", "--input", pattern]
  process = subprocess.run(
    [*command, "--vocab", vocab, "--output", output], stdout=sys.stderr
  )
  if process.returncode:
    raise ValueError(f"preparing {pattern} failed; its message is above.")
  usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
  spent_seconds = (
    usage_after.ru_utime
    + usage_after.ru_stime
    - usage_before.ru_utime
    - usage_before.ru_stime
  )
  meta = json.loads(Path(output, "meta.json").read_text(encoding="utf-8"))
  num_tokens = sum(split["tokens"] for split in meta["splits"].values())
  return {
    "pipeline": "bert_jax prepare, once",
    "cpu_seconds": round(spent_seconds, 3),
    "million_real_tokens_per_cpu_second": round(
      num_tokens / spent_seconds / 1e6, 3
    ),
  }


def read_masks(
  folder: str, batch_size: int, builder: str, options: dict
) -> Iterator[np.ndarray]:
  """Yields the sequence_ids of bert_jax's endless training batches."""
  rows = loader.open_data(folder, builder, **options)
  for first_row in itertools.count(0, batch_size):
    yield rows.read(first_row, batch_size)["sequence_ids"]


def pipelines(
  args: argparse.Namespace, folder: str
) -> Iterator[tuple[str, str, dict]]:
  """Yields (name of the pipeline, builder, options of the builder).

  Without --builder, the function yields all builders that fit the prepared
  folder: only ELMo's for a vocabulary of words, and all others for any other
  vocabulary.
  """
  has_words = open_prepared(folder).meta["tokenizer"] == "words"
  fitting_names = [name for name in RECIPES if (name == "elmo") == has_words]
  for name in args.builder or fitting_names:
    defaults = RECIPES[name].defaults
    options = {"length": args.length}
    if args.max_sequences > 1:
      if "max_sequences" not in defaults or name == "full_sentences":
        continue  # The rows of `full_sentences` are full.
      options["max_sequences"] = args.max_sequences
    if "masking" not in defaults:
      yield name, name, options
      continue
    options["max_predictions"] = max(1, math.ceil(args.length * 0.15))
    for unit in args.masking or UNIT_RULES:
      yield f"{name}, {unit}", name, options | {"masking": unit}


def cut_rows(
  texts: list[str], tokenise: Callable, length: int
) -> Iterator[list[int]]:
  """Yields rows of concatenated tokens, as run_mlm.py makes them."""
  for begin in range(0, len(texts), TEXTS_PER_CALL):
    ids_by_text = tokenise(texts[begin : begin + TEXTS_PER_CALL])
    ids = list(itertools.chain.from_iterable(ids_by_text))
    for start in range(0, len(ids) - length + 1, length):
      yield ids[start : start + length]


def make_collator(vocab_size: int, special: list[int], mask_id: int):
  """Returns the rule of DataCollatorForLanguageModeling, written in numpy."""
  rng = np.random.default_rng(0)

  def collate(features: list[dict]) -> dict[str, np.ndarray]:
    ids = np.array([feature["input_ids"] for feature in features])
    is_chosen = (rng.random(ids.shape) < 0.15) & ~np.isin(ids, special)
    labels = np.where(is_chosen, ids, -100)
    # 80% of the chosen tokens become [MASK], 10% become random tokens, and 10%
    # stay.
    draws = rng.random(ids.shape)
    random_ids = rng.integers(0, vocab_size, ids.shape)
    ids = np.where(is_chosen & (draws < 0.8), mask_id, ids)
    ids = np.where(is_chosen & (draws >= 0.9), random_ids, ids)
    attention = np.ones(ids.shape, np.int64)
    return {"input_ids": ids, "labels": labels, "attention_mask": attention}

  return collate


def open_hugging_face(vocab: str) -> tuple[str, Callable, Callable]:
  """Opens Hugging Face's libraries.

  Returns:
    The name and version of the library, a function from texts to lists of ids,
    and a function that makes a batch of rows.
  """
  wordpiece = tokenizers.BertWordPieceTokenizer(vocab)
  try:
    import transformers
  except ImportError:
    special_ids = [wordpiece.token_to_id(piece) for piece in SPECIAL_TOKENS]
    collate = make_collator(
      wordpiece.get_vocab_size(), special_ids, wordpiece.token_to_id("[MASK]")
    )
    return (
      f"tokenizers {tokenizers.__version__} and numpy",
      lambda texts: [encoded.ids for encoded in wordpiece.encode_batch(texts)],
      collate,
    )
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=wordpiece._tokenizer,
    pad_token="[PAD]",
    unk_token="[UNK]",
    cls_token="[CLS]",
    sep_token="[SEP]",
    mask_token="[MASK]",
  )
  # Do not warn about the length of whole documents.
  tokenizer.model_max_length = sys.maxsize
  collate = transformers.DataCollatorForLanguageModeling(
    tokenizer, mlm_probability=0.15, return_tensors="np"
  )
  return (
    f"transformers {transformers.__version__}",
    lambda texts: tokenizer(texts)["input_ids"],
    collate,
  )


def measure_hugging_face(
  pattern: str, vocab: str, batch_size: int, length: int, seconds: float
) -> list[dict]:
  """Measures Hugging Face's pipeline, with and without tokenisation."""
  name, tokenise, collate = open_hugging_face(vocab)
  # The time to read and split the text is measured for neither pipeline.
  documents = itertools.islice(sources.read_documents(pattern), 5000)
  texts = [sentence for document in documents for sentence in document]

  def masks(source: Iterator[list[int]]) -> Iterator[np.ndarray]:
    while (
      len(chunk := list(itertools.islice(source, batch_size))) >= batch_size
    ):
      yield collate([{"input_ids": ids} for ids in chunk])["attention_mask"]

  endless_rows = itertools.chain.from_iterable(
    cut_rows(texts, tokenise, length) for _ in itertools.count()
  )
  ready_rows = list(
    itertools.islice(cut_rows(texts, tokenise, length), 20 * batch_size)
  )
  if not ready_rows:
    raise ValueError(f"{pattern} has too little text for one row; give more.")
  return [
    measure(f"{name}: tokenise, collate", masks(endless_rows), seconds),
    measure(
      f"{name}: collate only", masks(itertools.cycle(ready_rows)), seconds
    ),
  ]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--input", required=True, help="glob or prepared folder")
  parser.add_argument("--vocab", help="vocab.txt, unless --input is a folder")
  parser.add_argument(
    "--builder",
    action="append",
    choices=RECIPES,
    help="recipe of rows (default: all that fit the text)",
  )
  parser.add_argument(
    "--masking",
    action="append",
    choices=UNIT_RULES,
    help="unit of masks (default: all)",
  )
  parser.add_argument(
    "--max-sequences",
    type=int,
    default=1,
    help="sequences in a row; more than 1 packs rows",
  )
  parser.add_argument("--length", type=int, default=128)
  parser.add_argument("--batch", type=int, default=256)
  parser.add_argument(
    "--seconds", type=float, default=5.0, help="CPU-seconds for each pipeline"
  )
  parser.add_argument(
    "--json", action="store_true", help="print a JSON object on each line"
  )
  args = parser.parse_args()
  is_prepared = Path(args.input).is_dir()
  if not is_prepared and not args.vocab:
    parser.error("--vocab is needed to prepare text")
  table = []
  try:
    with tempfile.TemporaryDirectory() as scratch:
      folder = args.input
      if not is_prepared:
        folder = str(Path(scratch, "prepared"))
        table.append(measure_preparation(args.input, args.vocab, folder))
      for name, builder, options in pipelines(args, folder):
        masks = read_masks(folder, args.batch, builder, options)
        table.append(measure(f"bert_jax: {name}", masks, args.seconds))
    if not is_prepared:
      table += measure_hugging_face(
        args.input, args.vocab, args.batch, args.length, args.seconds
      )
  except ValueError as e:
    sys.exit(f"error: {e}")
  for row in table:
    if args.json:
      print(json.dumps(row | {"length": args.length, "batch": args.batch}))
    else:
      real_rate = row["million_real_tokens_per_cpu_second"]
      place_rate = row.get("million_places_per_cpu_second", "")
      print(f"{row['pipeline']:48} {real_rate:>8} {place_rate:>8}")
  if not args.json:
    print(
      "\nmillions of real tokens, and of places with padding, per CPU-second"
    )


if __name__ == "__main__":
  main()
