"""Checks 20,000 masked rows of every objective with published tokenizers."""

import itertools
import json
import lzma
import os
import pathlib
import re

import numpy as np
import pytest

from bert_jax.corpus import reader
from bert_jax.examples import recipes, streams
from bert_jax.text import bpe, open_vocabulary

DATA = os.environ.get("BERT_JAX_TEST_DATA")
if not DATA:
  pytest.skip("BERT_JAX_TEST_DATA names no folder", allow_module_level=True)
ROWS, LENGTH, SLOTS = 20_000, 64, 12
# Kind of tokenizer -> a function that says whether a piece begins a word.
BEGINS = {
  "wordpiece": lambda piece: not piece.startswith("##"),
  "bytelevel": lambda piece: piece.startswith("Ġ"),
  # ALBERT's program: a piece that is not English letters and signs, or that is
  # a single sign.
  "unigram": lambda piece: (
    not re.fullmatch(r"[A-Za-z]|[A-Za-z!-&(-/:;?@\[-`{-~]{2,}", piece)
  ),
}
# The shares of [MASK] and of unchanged tokens.
BERT, ELECTRA = (0.8, 0.1), (0.85, 0.15)
OBJECTIVES = {
  "bert": ("bert_pairs", dict(masking="token"), BERT),
  "bert_words": ("bert_pairs", dict(masking="whole_word"), BERT),
  "albert": ("albert_pairs", dict(masking="ngram"), BERT),
  "electra": ("electra_segments", {}, ELECTRA),
  "roberta": ("full_sentences", {}, BERT),
  "roberta_docs": ("doc_sentences", {}, BERT),
  "spanbert": (
    "doc_sentences",
    dict(masking="span", replacement="bert", count="ceil"),
    BERT,
  ),
}


def tokenizer(kind):
  vocab = pathlib.Path(DATA) / "vocab"
  if kind == "wordpiece":
    return open_vocabulary.load(str(vocab / "bert-base-uncased-vocab.txt"))
  if kind == "unigram":
    path = vocab / "albert_like" / "30k-clean.model"
    return open_vocabulary.load(str(path))
  pieces = json.loads((vocab / "roberta" / "vocab.json").read_text())
  # The three filler ids are not in the file.
  unused = sorted(set(range(50_265)) - set(pieces.values()))
  pieces |= {f"madeupword{i}": unused[i] for i in range(len(unused))}
  merges = (vocab / "gpt2" / "vocab.bpe").read_text(encoding="utf-8")
  return bpe.bytelevel(pieces, bpe.read_merges(merges, "vocab.bpe"))


@pytest.fixture(scope="module", params=BEGINS)
def text(request):
  """Returns (vocabulary, corpus of articles, [V] bool: begins a word)."""
  vocabulary = tokenizer(request.param)
  path = pathlib.Path(DATA) / "pretrain" / "wiki-valid.jsonl.xz"
  documents = []
  with lzma.open(path, "rt", encoding="utf-8") as f:
    for line in itertools.islice(f, 40):
      article = json.loads(line)["text"][:20_000]
      sentences = [s for s in article.replace("\n", " ").split(". ") if s]
      documents.append(vocabulary.encode_batch(sentences))
  starts = [[vocabulary.word_starts(s) for s in d if s] for d in documents]
  documents = [[s for s in d if s] for d in documents]
  flags = np.array([BEGINS[request.param](p) for p in vocabulary.pieces])
  return vocabulary, reader.corpus_from_documents(documents, starts), flags


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_published_rules(text, objective):
  vocabulary, docs, begins = text
  name, options, (masked, unchanged) = OBJECTIVES[objective]
  ids = vocabulary.special
  recipe = recipes.RECIPES[name](
    ids,
    vocabulary.vocab_size,
    length=LENGTH,
    max_predictions=SLOTS,
    **options,
  )
  batch = streams.Stream(docs, recipe, 0).read(0, ROWS)
  used = batch["mlm_weights"] > 0
  counts = used.sum(1)
  row, slot = np.nonzero(used)
  column, old = batch["mlm_positions"][row, slot], batch["mlm_ids"][row, slot]
  new = batch["input_ids"][row, column]
  original = batch["input_ids"].copy()
  original[row, column] = old
  special = np.array(sorted({i for i in ids if i is not None}))
  unmaskable = [ids.pad, ids.cls, ids.sep]
  maskable = (batch["sequence_ids"] > 0) & ~np.isin(original, unmaskable)

  # Check the number of predictions.
  real = (batch["sequence_ids"] > 0).sum(1)
  if objective.startswith("roberta"):
    least_count = np.floor(0.15 * real)
    assert ((counts == least_count) | (counts == least_count + 1)).all()
    assert abs(counts.sum() / real.sum() - 0.15) < 0.001
  else:
    largest_count = np.maximum(np.rint(0.15 * real), 1)
    if objective == "spanbert":
      largest_count = np.ceil(0.15 * maskable.sum(1))
    largest_count = np.minimum(
      np.minimum(largest_count, SLOTS), maskable.sum(1)
    )
    assert (counts <= largest_count).all()
    if objective in ("bert", "electra"):
      assert (counts == largest_count).all()
    else:
      assert (
        counts == largest_count
      ).mean() > 0.85 and counts.sum() > 0.97 * largest_count.sum()

  # Check their positions: no special token and no token twice; of a word, all
  # pieces or none.
  assert maskable[row, column].all()
  is_hidden = np.zeros(maskable.shape, bool)
  is_hidden[row, column] = True
  assert is_hidden.sum() == len(row)
  if "masking" in options and options["masking"] != "token":
    maskable_before = np.pad(maskable, ((0, 0), (1, 0)))[:, :-1]
    continues_word = maskable & maskable_before & ~begins[original]
    # The first piece of a sentence begins a word in any case, and tokenizers
    # say that the unknown piece begins a word.
    first = np.unique(docs.tokens[docs.sentences[:-1]])
    continues_word &= ~np.isin(original, [*first, ids.unk])
    positions_inside = np.nonzero(continues_word)
    assert len(positions_inside[0]) > 10_000
    assert (
      is_hidden[positions_inside]
      == is_hidden[positions_inside[0], positions_inside[1] - 1]
    ).all()

  # Check the replacements.
  assert abs((new == ids.mask).mean() - masked) < 0.005
  assert abs((new == old).mean() - unchanged) < 0.005
  other = new[(new != ids.mask) & (new != old)]
  if objective == "electra":
    assert not len(other)
  elif objective.startswith("roberta"):
    assert not np.isin(other, special).any()
  else:
    assert abs(other.mean() / vocabulary.vocab_size - 0.5) < 0.01
