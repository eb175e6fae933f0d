"""The tokenizer of a converted model, from the files that came with it.

As transformers builds them (tokenization_bert.py, tokenization_roberta.py,
tokenization_openai.py) where there is no tokenizer.json.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import (
  AddedToken,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from bert_jax.data import bpe, corpus
from bert_jax.data.tokenizer import mark


def build(family: str, files: Mapping[str, bytes]) -> Tokenizer | None:
  """Builds a tokenizer that adds special tokens, and neither pads nor cuts.

  Args:
    family: a key of `models.FAMILIES`.
    files: name -> bytes; the first of tokenizer.json, vocab.txt, vocab.json
      with merges.txt counts.

  Returns:
    None if there is none of them, as with a SentencePiece model alone.

  Raises:
    ValueError: a damaged file.
  """
  try:
    if "tokenizer.json" in files:
      tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode("utf-8"))
      # Files remember the length of their last batch; transformers forgets it.
      tokenizer.no_padding()
      tokenizer.no_truncation()
      return tokenizer
    options = json.loads(files.get("tokenizer_config.json", b"{}"))
    if "vocab.txt" in files:
      return _wordpiece(files["vocab.txt"].decode("utf-8"), options)
    if "vocab.json" in files and "merges.txt" in files:
      vocab = json.loads(files["vocab.json"])
      merges = bpe.read_merges(files["merges.txt"].decode(), "merges.txt")
      make = _gpt if family == "gpt" else _byte_level
      return make(vocab, merges, options)
  except Exception as e:
    # The library raises plain Exceptions.
    raise ValueError(f"the tokenizer's files are damaged: {e}.") from e
  return None


def _present(tokenizer: Tokenizer, tokens: Iterable[str]) -> list[str]:
  """The tokens that the vocabulary has; none is added to it."""
  return [t for t in tokens if tokenizer.token_to_id(t) is not None]


def _wordpiece(text: str, options: Mapping[str, Any]) -> Tokenizer:
  lower = options.get("do_lower_case", True)
  accents = options.get("strip_accents")
  vocab = {piece: i for i, piece in enumerate(text.splitlines())}
  tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
  tokenizer.normalizer = normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    strip_accents=lower if accents is None else accents,
    lowercase=lower,
  )
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = decoders.WordPiece(prefix="##")
  tokenizer = mark(tokenizer, _present(tokenizer, corpus.SPECIAL_TOKENS))
  if "[CLS]" in vocab and "[SEP]" in vocab:
    tokenizer.post_processor = processors.BertProcessing(
      ("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"])
    )
  return tokenizer


def _byte_level(
  vocab: dict[str, int],
  merges: list[tuple[str, str]],
  options: Mapping[str, Any],
) -> Tokenizer:
  space = options.get("add_prefix_space", False)
  made = bpe.bytelevel_rules(vocab, merges, space)
  plain = [t for t in bpe.ROBERTA.values() if t != bpe.ROBERTA["mask"]]
  tokenizer = mark(made, _present(made, plain))
  if "<mask>" in vocab:
    # The space before a mask belongs to it.
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    tokenizer.add_special_tokens([mask])
  if "<s>" in vocab and "</s>" in vocab:
    tokenizer.post_processor = processors.RobertaProcessing(
      ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]), add_prefix_space=space
    )
  return tokenizer


def _gpt(
  vocab: dict[str, int],
  merges: list[tuple[str, str]],
  options: Mapping[str, Any],
) -> Tokenizer:
  del options
  made = bpe.gpt1_rules(vocab, merges)
  return mark(made, _present(made, bpe.GPT1.values()))
