"""Measures what the filters of `bert_jax prepare` cost, and what they keep.

  python benchmarks/filters.py --input 'text/*.txt'

First, each filter alone judges the documents. Then all filters judge them
together. Each time includes the counting of words, which every filter needs.
The program also prints the largest shares of symbols and of repeated text, and
the memory that the search for near-copies takes for each document.
"""

import argparse
import sys
import time
import tracemalloc

from bert_jax.corpus import filters, sources

FILTERS = {
  "--min-words=5": filters.Filters(min_words=5),
  "--normalise=NFC": filters.Filters(normalise="NFC"),
  "--normalise=NFKC": filters.Filters(normalise="NFKC"),
  "--max-symbols=0.1": filters.Filters(max_symbols=0.1),
  "--max-repetition=0.15": filters.Filters(max_repetition=0.15),
  "--drop-duplicates": filters.Filters(drop_duplicates=True),
  "--near-duplicates=0.8": filters.Filters(near_duplicates=0.8),
  "all together": filters.Filters(
    normalise="NFKC",
    min_words=5,
    max_symbols=0.1,
    max_repetition=0.15,
    drop_duplicates=True,
    near_duplicates=0.8,
  ),
}


def judge(records: list[sources.Record], settings: filters.Filters) -> int:
  """Returns how many records the filters keep."""
  rows, _ = filters.make_judge(settings)(records)
  earlier_documents = filters._EarlierDocuments(settings)
  verdicts = [row["verdict"] or earlier_documents.judge(row) for row in rows]
  # The verdict 0 means that no filter drops the document.
  return verdicts.count(0)


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--input", required=True, help="glob of text files")
  parser.add_argument(
    "--format", default="auto", help="as in `bert_jax prepare`"
  )
  options = parser.parse_args()
  records = list(
    sources.read_records(sources.find_sources(options.input, options.format))
  )
  texts = [record.text for record in records]
  num_words = sum(map(filters.count_words, texts))
  print(f"{len(records):,} documents, {num_words:,} words")
  print("CPU-seconds for a million words, documents kept:")
  for name, settings in FILTERS.items():
    start = time.process_time()
    num_kept = judge(records, settings)
    seconds = time.process_time() - start
    print(f"{name:<22} {seconds / num_words * 1e6:.2f}  {num_kept:,}")
  words_by_text = [filters.lower_case_words(text) for text in texts]
  repetition_shares = [
    filters.repetition_share(words, filters.hash_shingles(words))
    for words in words_by_text
  ]
  print(
    f"largest share of symbols: {max(map(filters.symbol_share, texts)):.3f}"
  )
  print(f"largest share of repeated text: {max(repetition_shares):.3f}")
  settings = filters.Filters(near_duplicates=0.8)
  rows, _ = filters.make_judge(settings)(records)
  tracemalloc.start()
  earlier_documents = filters._EarlierDocuments(settings)
  for row in rows:
    earlier_documents.judge(row)
  num_bytes, _ = tracemalloc.get_traced_memory()
  print(
    f"memory for near-copies: {num_bytes / len(rows):,.0f} bytes a document"
  )


if __name__ == "__main__":
  sys.exit(main())
