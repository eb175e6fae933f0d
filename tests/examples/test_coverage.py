"""Tests how much of a text is in the rows, and what is printed about it."""

import itertools

import numpy as np
import pytest
from prepared import random_documents, write_prepared

from bert_jax import hashing
from bert_jax.corpus import prepare, reader
from bert_jax.corpus import sizes as text_sizes
from bert_jax.examples import coverage, loader, recipes
from bert_jax.text.vocabulary import SPECIAL_TOKENS, SpecialIds

SPECIAL_IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
OPTIONS_BY_BUILDER = {
  "bert_pairs": dict(max_predictions=5),
  "albert_pairs": dict(max_predictions=5, single="random_document"),
  "electra_segments": dict(max_predictions=5),
  "full_sentences": dict(max_predictions=5),
  "doc_sentences": dict(max_predictions=5, max_sequences=1),
  "lm": {},
}


def corpus_with_unique_ids(sizes: list[list[int]]) -> reader.Corpus:
  """Returns a corpus in which no id occurs twice.

  Args:
    sizes: the sizes of the sentences of each document.
  """
  next_id, documents = 5, []
  for sentence_sizes in sizes:
    ends = next_id + np.cumsum([0, *sentence_sizes])
    documents.append([range(*pair) for pair in itertools.pairwise(ends)])
    next_id = int(ends[-1])
  return reader.corpus_from_documents(documents, dtype=np.uint32)


@pytest.fixture(scope="module")
def corpora() -> dict[str, reader.Corpus]:
  rng = np.random.default_rng(0)
  short_sizes = [
    rng.integers(3, 12, rng.integers(2, 9)).tolist() for _ in range(80)
  ]
  single_sizes = [[size] for size in rng.integers(3, 120, 60).tolist()]
  long_sizes = [rng.integers(50, 400, 3).tolist() for _ in range(20)]
  return {
    "short": corpus_with_unique_ids(short_sizes),
    "single": corpus_with_unique_ids(single_sizes),
    "long": corpus_with_unique_ids(long_sizes),
  }


@pytest.mark.parametrize("corpus_name", ["short", "single", "long"])
@pytest.mark.parametrize("builder", OPTIONS_BY_BUILDER)
def test_measured_shares_are_those_of_the_rows(corpora, corpus_name, builder):
  corpus = corpora[corpus_name]
  options = OPTIONS_BY_BUILDER[builder] | {"length": 32}
  recipe = recipes.make_recipe(
    builder, SPECIAL_IDS, corpus.num_tokens + 5, options
  )
  key = hashing.make_key("reach")
  examples = recipe.index(corpus, 0, corpus.num_documents, key)
  numbers = np.arange(len(examples), dtype=np.uint64)
  batch = recipe.build(corpus, examples, numbers, key)
  ids = batch["input_ids"]
  if "mlm_ids" in batch:
    # Write the original ids over the masks.
    rows, slots = np.nonzero(batch["mlm_weights"])
    positions = batch["mlm_positions"][rows, slots]
    ids[rows, positions] = batch["mlm_ids"][rows, slots]
  share = np.setdiff1d(ids, SPECIAL_IDS).size / corpus.num_tokens
  measurement = coverage.measure_coverage(corpus, recipe)
  assert measurement.held_share == pytest.approx(share, abs=1e-9)
  if builder == "bert_pairs":
    # The label of a pair says whether its second text is random.
    random_share = batch["pair_labels"].mean()
    assert measurement.random_share == pytest.approx(random_share, abs=1e-9)
  elif builder == "albert_pairs":
    random_share = np.mean(examples["random"])
    assert measurement.random_share == pytest.approx(random_share, abs=1e-9)
  else:
    assert measurement.random_share is None


def test_coverage_counts_every_text_of_a_packed_row(corpora):
  corpus = corpora["single"]
  options = dict(length=128, max_predictions=25, max_sequences=8)
  packed_coverage, single_coverage = [
    coverage.measure_coverage(
      corpus,
      recipes.make_recipe(
        "bert_pairs", SPECIAL_IDS, corpus.num_tokens + 5, recipe_options
      ),
    )
    for recipe_options in (options, options | {"max_sequences": 1})
  ]
  # Every document is one sentence, so all pairs are random.
  assert packed_coverage.random_share == single_coverage.random_share == 1.0
  # With packing, a first text gets another second text than without packing, so
  # the shares are not quite equal.
  assert packed_coverage.held_share == pytest.approx(
    single_coverage.held_share, abs=0.05
  )


def test_a_large_text_is_sampled(corpora, monkeypatch):
  corpus = corpora["short"]
  options = OPTIONS_BY_BUILDER["doc_sentences"] | {"length": 32}
  recipe = recipes.make_recipe("doc_sentences", SPECIAL_IDS, 9999, options)
  assert list(coverage._document_ranges(corpus)) == [(0, corpus.num_documents)]
  monkeypatch.setattr(coverage, "SAMPLE_TOKENS", 400)
  ranges = list(coverage._document_ranges(corpus))
  assert len(ranges) == 4 and all(a < b for a, b in ranges)
  assert ranges[0][0] == 0 and ranges[-1][1] <= corpus.num_documents
  assert coverage.measure_coverage(corpus, recipe).held_share == 1.0


@pytest.mark.parametrize("block_size", [1, 3, 2**20])
def test_sizes_of_sentences_and_documents(monkeypatch, block_size):
  monkeypatch.setattr(text_sizes, "_BLOCK_OFFSETS", block_size)
  corpus = corpus_with_unique_ids([[3, 5], [10], [1, 1, 4], [2]])
  sizes = text_sizes.measure_lengths(corpus.sentences, corpus.documents)
  assert sizes == text_sizes.LengthStatistics(
    mean_tokens=26 / 7,
    longest_sentence=10,
    num_single_sentence_documents=2,
    num_documents=4,
  )


def lines_of_prepare(tmp_path, capsys, text: str, **options) -> list[str]:
  (tmp_path / "text.txt").write_text(text)
  pieces = [*SPECIAL_TOKENS, "word", ".", "a", "b"]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
  output = str(tmp_path / "out")
  paths = str(tmp_path / "text.txt"), str(tmp_path / "vocab.txt"), output
  prepare.prepare(*paths, processes=1, heldout=0.0, **options)
  return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
  "text, sizes, warning",
  # The sizes are: the mean and the largest number of tokens in a sentence, the
  # number of documents with one sentence, and the number of documents.
  [
    ("word a.\nword.\n\nb b.\nb.\n", ("2.5", 3, 0, 2), None),
    ("word a.\n\nword.\n\nb b.\n", ("2.7", 3, 3, 3), "100% of the documents"),
    ("word " * 300 + "\nword.\n", ("151.0", 300, 0, 1), "has 151 tokens"),
  ],
)
def test_prepare_says_how_long_sentences_are(
  tmp_path, capsys, text, sizes, warning
):
  lines = lines_of_prepare(tmp_path, capsys, text)
  mean, longest, num_single_sentence, num_documents = sizes
  start_of_line = f"train: {mean} tokens a sentence, {longest} in the longest;"
  start_of_line += f" {num_single_sentence} of {num_documents} documents ("
  assert sum(line.startswith(start_of_line) for line in lines) == 1
  warnings = [line for line in lines if line.startswith("warning: ")]
  assert len(warnings) == bool(warning)
  if warning:
    assert warning in warnings[0] and "text_lines" in warnings[0]


def test_a_run_says_what_its_rows_hold(tmp_path):
  documents = random_documents(40, seed=0)
  single_sentences = [[[7, 8, 9] * 200]] * 20
  for name, docs in (("good", documents), ("single", single_sentences)):
    write_prepared(tmp_path / name, docs, documents[:4])
  mixture = f"{tmp_path}/good=0.5,{tmp_path}/single=0.5"
  options = dict(
    path=mixture, builder="bert_pairs", length=32, max_predictions=5
  )
  data = loader.open_data(**options)
  lines = list(loader.describe_coverage(data, **options))
  good_lines = [line for path, line in lines if path == f"{tmp_path}/good"]
  single_lines = [line for path, line in lines if path == f"{tmp_path}/single"]
  assert len(good_lines) == 1 and "of the text's tokens; " in good_lines[0]
  assert single_lines[0].endswith(
    "; 100.0% of the pairs have a random second text"
  )
  assert [line.partition(":")[0] for line in single_lines[1:]] == [
    "warning"
  ] * 2
  assert "a sentence has 600 tokens on average" in single_lines[1]
  assert (
    "cut off. Train with longer rows (data.length). If a" in single_lines[1]
  )
  assert "20 of 20 documents are one sentence" in single_lines[2]


@pytest.mark.parametrize("length, block_size", [(32, 2**20), (48, 4)])
def test_the_warning_says_why_pairs_are_random(monkeypatch, length, block_size):
  """The reason is long sentences, or documents of one sentence."""
  monkeypatch.setattr(text_sizes, "_BLOCK_OFFSETS", block_size)
  documents_of_long_sentences, max_tokens = (
    [[length, length - 3, 90], [200] * 4],
    length - 3,
  )
  text = corpus_with_unique_ids(
    [*documents_of_long_sentences, [5, 6], [length], [length - 4, 2], [9]] * 3
  )
  assert text_sizes.count_long_sentences(text, max_tokens) == 3 * 7
  statistics = text_sizes.measure_lengths(text.sentences, text.documents)
  assert statistics.num_single_sentence_documents == 3 * 2

  def last_line(text):
    options = dict(length=length, max_predictions=5)
    vocab_size = text.num_tokens + 5
    recipe = recipes.make_recipe("bert_pairs", SPECIAL_IDS, vocab_size, options)
    return list(coverage.coverage_lines(text, recipe))[-1]

  warning = f"21 of the 39 sentences each fill a row of {length} tokens, so"
  assert warning in last_line(text)
  assert "data.length" in last_line(text)
  # In this corpus, 30 of the sentences that fill a row are whole documents.
  text = corpus_with_unique_ids([[length]] * 30 + documents_of_long_sentences)
  assert "30 of 32 documents are one sentence and have" in last_line(text)
  # If sentences are short, and documents have several, there is no warning.
  assert "warning" not in last_line(
    corpus_with_unique_ids([[3, 4, 5, 6, 7, 8, 9]] * 20)
  )
