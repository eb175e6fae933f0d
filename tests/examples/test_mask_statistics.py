"""20,000 rows of every objective, with the published tokenizers' words."""

import itertools
import json
import lzma
import os
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
# What a piece that begins a word looks like.
BEGINS = {
  "wordpiece": lambda piece: not piece.startswith("##"),
  "bytelevel": lambda piece: piece.startswith("Ġ"),
  # ALBERT's program: not of English letters and signs, or a sign alone.
  "unigram": lambda piece: (
    not re.fullmatch(r"[A-Za-z]|[A-Za-z!-&(-/:;?@\[-`{-~]{2,}", piece)
  ),
}
# Shares of [MASK] and of kept tokens; which random ids are never drawn.
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
  vocab = os.path.join(DATA, "vocab")
  if kind == "wordpiece":
    path = os.path.join(vocab, "bert-base-uncased-vocab.txt")
    return open_vocabulary.load(path)
  if kind == "unigram":
    path = os.path.join(vocab, "albert_like", "30k-clean.model")
    return open_vocabulary.load(path)
  with open(os.path.join(vocab, "roberta", "vocab.json")) as f:
    pieces = json.load(f)
  # The three filler ids are not in the file.
  unused = sorted(set(range(50_265)) - set(pieces.values()))
  pieces |= {f"madeupword{i}": unused[i] for i in range(len(unused))}
  with open(os.path.join(vocab, "gpt2", "vocab.bpe"), encoding="utf-8") as f:
    merges = bpe.read_merges(f.read(), "vocab.bpe")
  return bpe.bytelevel(pieces, merges)


@pytest.fixture(scope="module", params=BEGINS)
def text(request):
  """(tokenizer, corpus of some articles, [V] whether a piece begins a word)."""
  made = tokenizer(request.param)
  path = os.path.join(DATA, "pretrain", "wiki-valid.jsonl.xz")
  documents = []
  with lzma.open(path, "rt", encoding="utf-8") as f:
    for line in itertools.islice(f, 40):
      article = json.loads(line)["text"][:20_000]
      sentences = [s for s in article.replace("\n", " ").split(". ") if s]
      documents.append(made.encode_batch(sentences))
  starts = [[made.word_starts(s) for s in d if s] for d in documents]
  documents = [[s for s in d if s] for d in documents]
  flags = np.array([BEGINS[request.param](piece) for piece in made.pieces])
  return made, reader.corpus_from_documents(documents, starts), flags


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_published_rules(text, objective):
  made, docs, begins = text
  name, options, (hidden, kept) = OBJECTIVES[objective]
  builder = recipes.RECIPES[name](
    made.special,
    made.vocab_size,
    length=LENGTH,
    max_predictions=SLOTS,
    **options,
  )
  batch = streams.Stream(docs, builder, 0).read(0, ROWS)
  used = batch["mlm_weights"] > 0
  counts = used.sum(1)
  row, slot = np.nonzero(used)
  column, old = batch["mlm_positions"][row, slot], batch["mlm_ids"][row, slot]
  new = batch["input_ids"][row, column]
  original = batch["input_ids"].copy()
  original[row, column] = old
  special = np.array(sorted({i for i in made.special if i is not None}))
  unmaskable = [made.special.pad, made.special.cls, made.special.sep]
  maskable = (batch["sequence_ids"] > 0) & ~np.isin(original, unmaskable)

  # How many.
  real = (batch["sequence_ids"] > 0).sum(1)
  if objective.startswith("roberta"):
    low = np.floor(0.15 * real)
    assert ((counts == low) | (counts == low + 1)).all()
    assert abs(counts.sum() / real.sum() - 0.15) < 0.001
  else:
    most = np.maximum(np.rint(0.15 * real), 1)
    if objective == "spanbert":
      most = np.ceil(0.15 * maskable.sum(1))
    most = np.minimum(np.minimum(most, SLOTS), maskable.sum(1))
    assert (counts <= most).all()
    if objective in ("bert", "electra"):
      assert (counts == most).all()
    else:
      assert (counts == most).mean() > 0.85 and counts.sum() > 0.97 * most.sum()

  # Where: no special token, each once, all pieces of a word or none.
  assert maskable[row, column].all()
  chosen = np.zeros(maskable.shape, bool)
  chosen[row, column] = True
  assert chosen.sum() == len(row)
  if "masking" in options and options["masking"] != "token":
    before = np.pad(maskable, ((0, 0), (1, 0)))[:, :-1]
    inside = maskable & before & ~begins[original]
    # A piece that a sentence begins with does so whatever it looks like, and
    # the tokenizers say it of an unknown one.
    first = np.unique(docs.tokens[docs.sentences[:-1]])
    inside &= ~np.isin(original, [*first, made.special.unk])
    both = np.nonzero(inside)
    assert len(both[0]) > 10_000
    assert (chosen[both] == chosen[both[0], both[1] - 1]).all()

  # What becomes of them.
  mask = made.special.mask
  assert abs((new == mask).mean() - hidden) < 0.005
  assert abs((new == old).mean() - kept) < 0.005
  other = new[(new != mask) & (new != old)]
  if objective == "electra":
    assert not len(other)
  elif objective.startswith("roberta"):
    assert not np.isin(other, special).any()
  else:
    assert abs(other.mean() / made.vocab_size - 0.5) < 0.01
