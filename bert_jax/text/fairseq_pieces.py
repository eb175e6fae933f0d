"""Opens the SentencePiece models of XLM-R and CamemBERT, with fairseq's ids.

fairseq puts special pieces before the pieces of the SentencePiece file, and
<mask> after these pieces. So the ids differ from the ids in the SentencePiece
file (transformers convert_slow_tokenizer.py, XLMRobertaConverter and
CamembertConverter).
"""

from tokenizers import (
  AddedToken,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from bert_jax.messages import UserError
from bert_jax.text import bpe, tokenizer_json, unigram
from bert_jax.text.vocabulary import Vocabulary

# The name of the SentencePiece file in folders of XLM-R and CamemBERT.
MODEL_FILE = "sentencepiece.bpe.model"
# How the name of the tokenizer class in tokenizer_config.json begins -> (the
# first pieces and their scores, the number of pieces that they replace at the
# beginning of the SentencePiece file).
_FIRST_PIECES = {
  "XLMRoberta": (
    [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)],
    3,
  ),
  "Camembert": (
    [
      ("<s>NOTUSED", 0.0),
      ("<pad>", 0.0),
      ("</s>NOTUSED", 0.0),
      ("<unk>", 0.0),
      ("<unk>NOTUSED", -100.0),
    ],
    1,
  ),
}
_SPACE = "▁"
_UNKNOWN_ID = 3


def build(content: bytes, source: str, tokenizer_class: str = "") -> Vocabulary:
  """Builds the tokenizer of a model's SentencePiece file.

  Args:
    content: the content of the file.
    source: the name of the file, for messages.
    tokenizer_class: the class that tokenizer_config.json names; "" means the
      class of XLM-R.

  Raises:
    UserError: the file is damaged, or is no unigram model of XLM-R's kind.
  """
  model_file = unigram.parse_model(content, source)
  if model_file.pieces[:3] != ["<unk>", "<s>", "</s>"]:
    raise UserError(
      f"{source}: its first pieces are {model_file.pieces[:3]}, not <unk>, <s>,"
      " </s> as in the models of XLM-R and CamemBERT."
    )
  is_camembert = tokenizer_class.startswith("Camembert")
  first_pieces, num_replaced = _FIRST_PIECES[
    "Camembert" if is_camembert else "XLMRoberta"
  ]
  later_pieces = zip(
    model_file.pieces[num_replaced:],
    model_file.scores[num_replaced:],
    strict=True,
  )
  pieces_and_scores = [
    *first_pieces,
    *later_pieces,
    (bpe.ROBERTA_TOKENS["mask"], 0.0),
  ]
  tokenizer = Tokenizer(models.Unigram(pieces_and_scores, _UNKNOWN_ID, False))
  if model_file.charsmap:
    tokenizer.normalizer = normalizers.Precompiled(model_file.charsmap)
  metaspace = pre_tokenizers.Metaspace(_SPACE, "always")
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.WhitespaceSplit(), metaspace]
  )
  tokenizer.decoder = decoders.Metaspace(_SPACE, "always")
  *special_tokens, mask = (
    bpe.ROBERTA_TOKENS[role] for role in ("pad", "unk", "cls", "sep", "mask")
  )
  tokenizer.add_special_tokens(
    [AddedToken(token, normalized=False) for token in special_tokens]
  )
  mask_token = AddedToken(mask, lstrip=is_camembert, normalized=False)
  tokenizer.add_special_tokens([mask_token])
  cls, sep = bpe.ROBERTA_TOKENS["cls"], bpe.ROBERTA_TOKENS["sep"]
  tokenizer.post_processor = processors.TemplateProcessing(
    f"{cls} $A {sep}",
    f"{cls} $A {sep} {sep} $B {sep}",
    [(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
  )
  return tokenizer_json.from_json(tokenizer.to_str(), source)
