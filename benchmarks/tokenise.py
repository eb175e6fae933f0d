"""Compares tokens per CPU-second with Hugging Face's libraries.

  python benchmarks/tokenise.py --input wiki.jsonl --vocab vocab.txt

Both sides encode the same text, a thousand lines in each call, in Python. If
TensorFlow is installed, bert_jax also encodes it through TensorFlow, as a seqio
task does. For a line with `cold`, a new tokenizer reads the first half of the
text. For a line with `warm`, the same tokenizer then reads the second half. CPU
time is that of all threads of the process, so libraries with and without
threads can be compared. The best of several rounds is printed.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tokenizers

from bert_jax.cli import flags
from bert_jax.corpus import sources
from bert_jax.text import open_vocabulary
from bert_jax.text.vocabulary import Vocabulary

Row = dict[str, Any]


def measure(name: str, counts: Iterable[int]) -> Row:
  """Times an iterator over numbers of tokens, until it ends."""
  start = time.process_time()
  num_tokens = sum(counts)
  cpu_seconds = time.process_time() - start
  return {
    "form": name,
    "tokens": num_tokens,
    "cpu_seconds": round(cpu_seconds, 3),
    "million_tokens_per_cpu_second": round(num_tokens / cpu_seconds / 1e6, 3),
  }


def read_lines(pattern: str, megabytes: float) -> list[str]:
  """Returns lines that are not blank, up to `megabytes` million characters."""
  lines, num_chars = [], 0
  for record in sources.read_records(sources.find_sources(pattern)):
    for line in filter(str.strip, record.text.split("\n")):
      lines.append(line)
      num_chars += len(line)
      if num_chars > megabytes * 1e6:
        return lines
  return lines


def batches(lines: list[str], batch_size: int) -> Iterator[list[str]]:
  for begin in range(0, len(lines), batch_size):
    yield lines[begin : begin + batch_size]


def measure_tensorflow(
  tokenizer: Vocabulary, halves: list[list[str]], batch_size: int
) -> list[Row]:
  """Measures how a seqio task encodes text through TensorFlow."""
  try:
    import tensorflow as tf

    from bert_jax.seqio_tasks.text_vocabulary import TextVocabulary
  except ImportError:
    return []
  vocabulary = TextVocabulary(lambda: tokenizer)

  def make_dataset(lines: list[str]):
    texts = tf.data.Dataset.from_tensor_slices(lines).batch(batch_size)
    return texts.map(vocabulary.encode_tf, num_parallel_calls=1)

  names = "bert_jax, TensorFlow, cold", "bert_jax, TensorFlow, warm"
  return [
    measure(name, (int(ids.flat_values.shape[0]) for ids in dataset))
    for name, dataset in zip(
      names, list(map(make_dataset, halves)), strict=True
    )
  ]


def measure_function(
  name: str,
  encode: Callable[[list[str]], list[Any]],
  lines: list[str],
  batch_size: int,
) -> Row:
  """Measures a function that returns ids, or objects as long as the ids."""
  line_batches = batches(lines, batch_size)
  return measure(name, (sum(map(len, encode(texts))) for texts in line_batches))


def measure_hugging_face(
  tokenizer: Vocabulary, lines: list[str], batch_size: int
):
  """Measures the library's fastest call, and transformers' usual call."""
  library_tokenizer = tokenizer.plain_text_tokenizer

  def encode_fast(texts: list[str]) -> list[Any]:
    return library_tokenizer.encode_batch_fast(texts, add_special_tokens=False)

  name = f"tokenizers {tokenizers.__version__}, encode_batch_fast"
  rows = [measure_function(name, encode_fast, lines, batch_size)]
  try:
    import transformers
  except ImportError:
    return rows
  transformers_tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=library_tokenizer
  )
  # Texts may be long paragraphs, so turn off the warning about their length.
  transformers_tokenizer.model_max_length = sys.maxsize
  name = f"transformers {transformers.__version__}"
  return [
    *rows,
    measure_function(
      name, lambda t: transformers_tokenizer(t)["input_ids"], lines, batch_size
    ),
  ]


def measure_once(
  lines: list[str], new_tokenizer: Callable[[], Vocabulary], batch_size: int
) -> list[Row]:
  """Measures all pipelines once, with new tokenizers, whose caches are empty.

  Args:
    lines: the lines of the text.
    new_tokenizer: makes a tokenizer.
    batch_size: the number of lines in a call.
  """
  middle = len(lines) // 2
  halves = [lines[:middle], lines[middle:]]
  rows = measure_tensorflow(new_tokenizer(), halves, batch_size)
  encode = new_tokenizer().encode_batch
  names = "bert_jax, encode_batch, cold", "bert_jax, encode_batch, warm"
  for name, half in zip(names, halves, strict=True):
    rows.append(measure_function(name, encode, half, batch_size))
  return rows + measure_hugging_face(new_tokenizer(), halves[1], batch_size)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--input", required=True, help="glob of text files")
  parser.add_argument("--vocab", required=True, help="a file or folder")
  flags.add(parser, "no-lower-case", "keep-accents")
  parser.add_argument(
    "--megabytes", type=float, default=16.0, help="largest size of the text"
  )
  parser.add_argument(
    "--batch", type=int, default=1000, help="lines in each call"
  )
  parser.add_argument("--rounds", type=int, default=3)
  args = parser.parse_args()
  # Give each library one core. It reads these variables at its first use.
  os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
  options = flags.cleaning_options(args)

  def new_tokenizer() -> Vocabulary:
    return open_vocabulary.load(args.vocab, **options)

  try:
    kind = new_tokenizer().algorithm
    lines = read_lines(args.input, args.megabytes)
    if len(lines) < 2:
      raise ValueError(
        f"{args.input} has fewer than two lines; give more text."
      )
    rounds = [
      measure_once(lines, new_tokenizer, args.batch) for _ in range(args.rounds)
    ]
  except ValueError as e:
    sys.exit(f"error: {e}")
  for rows_of_pipeline in zip(*rounds, strict=True):
    print(
      json.dumps(
        {"kind": kind} | min(rows_of_pipeline, key=lambda r: r["cpu_seconds"])
      )
    )


if __name__ == "__main__":
  main()
