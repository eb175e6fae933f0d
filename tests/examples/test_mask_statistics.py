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
# Algorithm of a tokenizer -> a function that says whether a piece begins a
# word.
BEGINS_WORD = {
  "wordpiece": lambda piece: not piece.startswith("##"),
  "bytelevel": lambda piece: piece.startswith("Ġ"),
  # As in ALBERT's program, a word begins at a piece that is not English letters
  # and signs, or that is a single sign.
  "unigram": lambda piece: (
    not re.fullmatch(r"[A-Za-z]|[A-Za-z!-&(-/:;?@\[-`{-~]{2,}", piece)
  ),
}
# The shares of predicted tokens that become [MASK], and that stay unchanged.
BERT_SHARES, ELECTRA_SHARES = (0.8, 0.1), (0.85, 0.15)
# Name -> the recipe, its options, and the shares.
OBJECTIVES = {
  "bert": ("bert_pairs", dict(masking="token"), BERT_SHARES),
  "bert_words": ("bert_pairs", dict(masking="whole_word"), BERT_SHARES),
  "albert": ("albert_pairs", dict(masking="ngram"), BERT_SHARES),
  "electra": ("electra_segments", {}, ELECTRA_SHARES),
  "roberta": ("full_sentences", {}, BERT_SHARES),
  "roberta_docs": ("doc_sentences", {}, BERT_SHARES),
  "spanbert": (
    "doc_sentences",
    dict(masking="span", replacement="bert", count="ceil"),
    BERT_SHARES,
  ),
}


def open_tokenizer(algorithm):
  vocab = pathlib.Path(DATA) / "vocab"
  if algorithm == "wordpiece":
    return open_vocabulary.load(str(vocab / "bert-base-uncased-vocab.txt"))
  if algorithm == "unigram":
    path = vocab / "albert_like" / "30k-clean.model"
    return open_vocabulary.load(str(path))
  pieces = json.loads((vocab / "roberta" / "vocab.json").read_text())
  # The three filler ids are not in the file.
  unused = sorted(set(range(50_265)) - set(pieces.values()))
  pieces |= {f"madeupword{i}": unused[i] for i in range(len(unused))}
  merges = (vocab / "gpt2" / "vocab.bpe").read_text(encoding="utf-8")
  return bpe.build_bytelevel(pieces, bpe.read_merges(merges, "vocab.bpe"))


@pytest.fixture(scope="module", params=BEGINS_WORD)
def tokenized_articles(request):
  """Returns a vocabulary, articles, and [V] True if a piece begins a word."""
  vocabulary = open_tokenizer(request.param)
  path = pathlib.Path(DATA) / "pretrain" / "wiki-valid.jsonl.xz"
  documents = []
  with lzma.open(path, "rt", encoding="utf-8") as f:
    for line in itertools.islice(f, 40):
      article = json.loads(line)["text"][:20_000]
      sentences = [s for s in article.replace("\n", " ").split(". ") if s]
      documents.append(vocabulary.encode_batch(sentences))
  starts = [[vocabulary.find_word_starts(s) for s in d if s] for d in documents]
  documents = [[s for s in d if s] for d in documents]
  begins_word = np.array(
    [BEGINS_WORD[request.param](p) for p in vocabulary.pieces]
  )
  return (
    vocabulary,
    reader.corpus_from_documents(documents, starts),
    begins_word,
  )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_masks_follow_the_published_rules(tokenized_articles, objective):
  vocabulary, corpus, begins_word = tokenized_articles
  name, options, (masked_share, unchanged_share) = OBJECTIVES[objective]
  special = vocabulary.special
  recipe = recipes.RECIPES[name](
    special,
    vocabulary.vocab_size,
    length=LENGTH,
    max_predictions=SLOTS,
    **options,
  )
  batch = streams.Stream(corpus, recipe, 0).read(0, ROWS)
  is_used = batch["mlm_weights"] > 0
  counts = is_used.sum(1)
  row, slot = np.nonzero(is_used)
  column, old_ids = (
    batch["mlm_positions"][row, slot],
    batch["mlm_ids"][row, slot],
  )
  new_ids = batch["input_ids"][row, column]
  original = batch["input_ids"].copy()
  original[row, column] = old_ids
  special_ids = np.array(sorted({i for i in special if i is not None}))
  unmaskable = [special.pad, special.cls, special.sep]
  maskable = (batch["sequence_ids"] > 0) & ~np.isin(original, unmaskable)

  # Check the number of predictions.
  num_real = (batch["sequence_ids"] > 0).sum(1)
  if objective.startswith("roberta"):
    least_count = np.floor(0.15 * num_real)
    assert ((counts == least_count) | (counts == least_count + 1)).all()
    assert abs(counts.sum() / num_real.sum() - 0.15) < 0.001
  else:
    largest_count = np.maximum(np.rint(0.15 * num_real), 1)
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

  # Check the positions: no special token is hidden, and no token is hidden
  # twice. If words are hidden, all pieces of a word are hidden, or none.
  assert maskable[row, column].all()
  is_hidden = np.zeros(maskable.shape, bool)
  is_hidden[row, column] = True
  assert is_hidden.sum() == len(row)
  if "masking" in options and options["masking"] != "token":
    maskable_before = np.pad(maskable, ((0, 0), (1, 0)))[:, :-1]
    continues_word = maskable & maskable_before & ~begins_word[original]
    # The first piece of a sentence begins a word in any case, and tokenizers
    # say that the unknown piece begins a word.
    first_pieces = np.unique(corpus.tokens[corpus.sentences[:-1]])
    continues_word &= ~np.isin(original, [*first_pieces, special.unk])
    positions_inside = np.nonzero(continues_word)
    assert len(positions_inside[0]) > 10_000
    assert (
      is_hidden[positions_inside]
      == is_hidden[positions_inside[0], positions_inside[1] - 1]
    ).all()

  # Check the replacements.
  assert abs((new_ids == special.mask).mean() - masked_share) < 0.005
  assert abs((new_ids == old_ids).mean() - unchanged_share) < 0.005
  random_ids = new_ids[(new_ids != special.mask) & (new_ids != old_ids)]
  if objective == "electra":
    assert not len(random_ids)
  elif objective.startswith("roberta"):
    assert not np.isin(random_ids, special_ids).any()
  else:
    assert abs(random_ids.mean() / vocabulary.vocab_size - 0.5) < 0.01
