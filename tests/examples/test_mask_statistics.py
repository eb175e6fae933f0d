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

DATA_FOLDER = os.environ.get("BERT_JAX_TEST_DATA")
if not DATA_FOLDER:
  pytest.skip("BERT_JAX_TEST_DATA names no folder", allow_module_level=True)
NUM_ROWS, LENGTH, NUM_SLOTS = 20_000, 64, 12
# Algorithm of a tokenizer -> a function that says whether a piece begins a
# word.
BEGINS_WORD_BY_ALGORITHM = {
  "wordpiece": lambda piece: not piece.startswith("##"),
  "bytelevel": lambda piece: piece.startswith("Ġ"),
  # As in ALBERT's program, every piece begins a word, except a single English
  # letter, and two or more English letters or signs.
  "unigram": lambda piece: (
    not re.fullmatch(r"[A-Za-z]|[A-Za-z!-&(-/:;?@\[-`{-~]{2,}", piece)
  ),
}
# The share of predicted tokens that become [MASK], and the share that stay
# unchanged.
BERT_SHARES, ELECTRA_SHARES = (0.8, 0.1), (0.85, 0.15)
# Objective -> its recipe, the recipe's options, and the two shares.
RECIPE_BY_OBJECTIVE = {
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
  vocab_folder = pathlib.Path(DATA_FOLDER) / "vocab"
  if algorithm == "wordpiece":
    return open_vocabulary.load(
      str(vocab_folder / "bert-base-uncased-vocab.txt")
    )
  if algorithm == "unigram":
    path = vocab_folder / "albert_like" / "30k-clean.model"
    return open_vocabulary.load(str(path))
  pieces = json.loads((vocab_folder / "roberta" / "vocab.json").read_text())
  # The file lacks three ids that no token uses.
  unused_ids = sorted(set(range(50_265)) - set(pieces.values()))
  pieces |= {f"madeupword{i}": unused_ids[i] for i in range(len(unused_ids))}
  merges = (vocab_folder / "gpt2" / "vocab.bpe").read_text(encoding="utf-8")
  return bpe.build_bytelevel(pieces, bpe.read_merges(merges, "vocab.bpe"))


@pytest.fixture(scope="module", params=BEGINS_WORD_BY_ALGORITHM)
def tokenized_articles(request):
  """Returns (vocabulary, corpus, begins_word).

  begins_word is a bool array [vocab_size]: True for a piece that begins a word.
  """
  vocabulary = open_tokenizer(request.param)
  path = pathlib.Path(DATA_FOLDER) / "pretrain" / "wiki-valid.jsonl.xz"
  documents = []
  with lzma.open(path, "rt", encoding="utf-8") as article_file:
    for line in itertools.islice(article_file, 40):
      article = json.loads(line)["text"][:20_000]
      sentences = [
        sentence
        for sentence in article.replace("\n", " ").split(". ")
        if sentence
      ]
      documents.append(vocabulary.encode_batch(sentences))
  word_starts = [
    [vocabulary.find_word_starts(sentence) for sentence in document if sentence]
    for document in documents
  ]
  documents = [
    [sentence for sentence in document if sentence] for document in documents
  ]
  begins_word = np.array(
    [
      BEGINS_WORD_BY_ALGORITHM[request.param](piece)
      for piece in vocabulary.pieces
    ]
  )
  return (
    vocabulary,
    reader.corpus_from_documents(documents, word_starts),
    begins_word,
  )


@pytest.mark.parametrize("objective", RECIPE_BY_OBJECTIVE)
def test_masks_follow_the_published_rules(tokenized_articles, objective):
  vocabulary, corpus, begins_word = tokenized_articles
  recipe_name, options, (masked_share, unchanged_share) = RECIPE_BY_OBJECTIVE[
    objective
  ]
  special = vocabulary.special
  recipe = recipes.RECIPES[recipe_name](
    special,
    vocabulary.vocab_size,
    length=LENGTH,
    max_predictions=NUM_SLOTS,
    **options,
  )
  batch = streams.Stream(corpus, recipe, seed=0).read(0, NUM_ROWS)
  is_used_slot = batch["mlm_weights"] > 0
  num_predicted = is_used_slot.sum(1)
  rows, slots = np.nonzero(is_used_slot)
  columns, old_ids = (
    batch["mlm_positions"][rows, slots],
    batch["mlm_ids"][rows, slots],
  )
  new_ids = batch["input_ids"][rows, columns]
  original_ids = batch["input_ids"].copy()
  original_ids[rows, columns] = old_ids
  special_ids = np.array(sorted({i for i in special if i is not None}))
  unmaskable_ids = [special.pad, special.cls, special.sep]
  is_maskable = (batch["sequence_ids"] > 0) & ~np.isin(
    original_ids, unmaskable_ids
  )

  # Check the number of predictions.
  num_tokens = (batch["sequence_ids"] > 0).sum(1)
  if objective.startswith("roberta"):
    least_count = np.floor(0.15 * num_tokens)
    assert (
      (num_predicted == least_count) | (num_predicted == least_count + 1)
    ).all()
    assert abs(num_predicted.sum() / num_tokens.sum() - 0.15) < 0.001
  else:
    largest_count = np.maximum(np.rint(0.15 * num_tokens), 1)
    if objective == "spanbert":
      largest_count = np.ceil(0.15 * is_maskable.sum(1))
    largest_count = np.minimum(
      np.minimum(largest_count, NUM_SLOTS), is_maskable.sum(1)
    )
    assert (num_predicted <= largest_count).all()
    if objective in ("bert", "electra"):
      assert (num_predicted == largest_count).all()
    else:
      assert (
        num_predicted == largest_count
      ).mean() > 0.85 and num_predicted.sum() > 0.97 * largest_count.sum()

  # Check the positions: no special token is predicted, and no token is
  # predicted twice. If whole words are masked, all pieces of a word are
  # predicted, or none.
  assert is_maskable[rows, columns].all()
  is_predicted = np.zeros(is_maskable.shape, bool)
  is_predicted[rows, columns] = True
  assert is_predicted.sum() == len(rows)
  if "masking" in options and options["masking"] != "token":
    is_maskable_before = np.pad(is_maskable, ((0, 0), (1, 0)))[:, :-1]
    continues_word = (
      is_maskable & is_maskable_before & ~begins_word[original_ids]
    )
    # The first piece of a sentence begins a word in any case, and tokenizers
    # say that the unknown piece begins a word.
    first_pieces = np.unique(corpus.tokens[corpus.sentences[:-1]])
    continues_word &= ~np.isin(original_ids, [*first_pieces, special.unk])
    continuation_positions = np.nonzero(continues_word)
    assert len(continuation_positions[0]) > 10_000
    assert (
      is_predicted[continuation_positions]
      == is_predicted[continuation_positions[0], continuation_positions[1] - 1]
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
