r"""Counts evaluation texts that occur word for word in the training text.

  python experiments/flagship/overlap.py --text 'TEXT*.jsonl.xz' \\
    --blimp BLIMP --tasks EVAL --output overlap.json

The files of TEXT have JSON lines with "text". EVAL is a folder with the
original files of cola, rte, sst2, stsb and wnut17. A word is a sequence of
letters and digits, in lower case. A text counts if one document has all its
words, in the same order, with no other word between them. Texts of fewer than 6
words are left out, because such texts occur by chance. The set "control" has
passages of the training text.
"""

import argparse
import collections
import csv
import glob
import itertools
import json
import lzma
import os
import re
from collections.abc import Iterable, Iterator

from bert_jax.use import blimp

FEWEST_WORDS = 6
WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
  """Returns the words of a text in lower case."""
  return tuple(WORD.findall(text.lower()))


def column_texts(
  path: str, names: Iterable[int | str], delimiter: str
) -> list[str]:
  """Returns the texts in some columns of a table.

  Args:
    path: the table's file.
    names: headings of columns, or their numbers in a file without headings.
    delimiter: the character between two columns.
  """
  names = list(names)
  quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
  with open(path, encoding="utf-8", newline="") as f:
    table = list(csv.reader(f, delimiter=delimiter, quoting=quoting))
  if isinstance(names[0], str):
    heading = table.pop(0)
    names = [heading.index(name) for name in names]
  return [row[number] for row in table for number in names]


def evaluation_texts(blimp_path: str, folder: str) -> dict[str, list[str]]:
  """Returns {name of an evaluation set: its texts}."""
  blimp_files = blimp.read(blimp_path)
  texts = {
    "BLiMP, acceptable": [
      text for file in blimp_files for text in file.good_sentences
    ],
    "BLiMP, unacceptable": [
      text for file in blimp_files for text in file.bad_sentences
    ],
  }
  tables = {
    "CoLA, development": (
      ("cola/in_domain_dev.tsv", "cola/out_of_domain_dev.tsv"),
      [3],
      "\t",
    ),
    "RTE, development": (("rte/dev.tsv",), ["sentence1", "sentence2"], "\t"),
    "SST-2, development": (("sst2/dev.tsv",), ["sentence"], "\t"),
    "STS-B, development": (("stsb/stsb-en-dev.csv",), [0, 1], ","),
  }
  for name, (files, names, delimiter) in tables.items():
    texts[name] = [
      text
      for file in files
      for text in column_texts(os.path.join(folder, file), names, delimiter)
    ]
  sentences: list[list[str]] = [[]]
  path = os.path.join(folder, "wnut17/emerging.dev.conll")
  with open(path, encoding="utf-8") as f:
    for line in f:
      if line.strip():
        sentences[-1].append(line.split("\t")[0])
      else:
        sentences.append([])
  texts["WNUT17, development"] = [" ".join(words) for words in sentences]
  return texts


def training_documents(pattern: str) -> Iterator[str]:
  """Yields the documents of the training text."""
  for path in sorted(glob.glob(pattern)):
    with lzma.open(path, "rt", encoding="utf-8") as f:
      for line in f:
        yield json.loads(line)["text"]


def occurring_texts(
  texts: set[tuple[str, ...]], training: Iterable[str]
) -> set[tuple[str, ...]]:
  """Returns the texts that occur in a document of the training text.

  Args:
    texts: the words of each text; each has at least `FEWEST_WORDS`.
    training: the documents of the training text.
  """
  by_first_words = collections.defaultdict(list)
  for words in texts:
    by_first_words[" ".join(words[:FEWEST_WORDS])].append(words)
  occurring = set()
  for document in training:
    words = words_of(document)
    windows = zip(*(words[n:] for n in range(FEWEST_WORDS)), strict=False)
    for start, window in enumerate(windows):
      for text in by_first_words.get(" ".join(window), ()):
        if words[start : start + len(text)] == text:
          occurring.add(text)
  return occurring


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--text", required=True, help="pattern of the training text's files")
  add("--blimp", required=True, help="folder or tar file")
  add("--tasks", required=True, help="folder of the tasks' original files")
  add("--output", required=True, help="a .json file")
  args = parser.parse_args()
  texts = {
    name: [words for text in sentences if (words := words_of(text))]
    for name, sentences in evaluation_texts(args.blimp, args.tasks).items()
  }
  # The control has twelve words of each of 200 documents. The search must find
  # all of them.
  first_documents = itertools.islice(training_documents(args.text), 200)
  texts["control"] = [words_of(text)[50:62] for text in first_documents]
  long_texts = {
    words
    for sentences in texts.values()
    for words in sentences
    if len(words) >= FEWEST_WORDS
  }
  occurring = occurring_texts(long_texts, training_documents(args.text))
  report = {}
  for name, sentences in texts.items():
    counted_texts = {words for words in sentences if len(words) >= FEWEST_WORDS}
    report[name] = {
      "texts": len(set(sentences)),
      "of_6_words_or_more": len(counted_texts),
      "in_the_training_text": len(counted_texts & occurring),
    }
    print(name, report[name], flush=True)
  with open(args.output, "w", encoding="utf-8") as f:
    json.dump(report, f, indent=1)
    f.write("\n")


if __name__ == "__main__":
  main()
