"""SentencePiece models with fairseq's ids: XLM-R's and CamemBERT's.

fairseq puts its own special pieces before those of the model, and <mask> after
them, so that an id here is not the one in the file (transformers
convert_slow_tokenizer.py, XLMRobertaConverter and CamembertConverter).
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

from bert_jax.data import bpe, sentencepiece_model, tokenizer_json
from bert_jax.data.tokenizer import Vocabulary

# The file's name in folders of these models.
MODEL = "sentencepiece.bpe.model"
# Class in tokenizer_config.json -> the first pieces with their scores, and how
# many pieces of the file they stand for.
_FIRST = {
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
_UNKNOWN = 3


def build(content: bytes, source: str, tokenizer_class: str = "") -> Vocabulary:
  """Builds the tokenizer of a model's SentencePiece file.

  Args:
    content: the content of the file.
    source: its name, for messages.
    tokenizer_class: what tokenizer_config.json names; XLM-R's if it is empty.

  Raises:
    ValueError: damaged, or a model of another kind.
  """
  parsed = sentencepiece_model.parse(content, source)
  if parsed.pieces[:3] != ["<unk>", "<s>", "</s>"]:
    raise ValueError(
      f"{source}: its first pieces are {parsed.pieces[:3]}, and not <unk>, <s>,"
      " </s> as in the models of XLM-R and CamemBERT."
    )
  camembert = tokenizer_class.startswith("Camembert")
  first, count = _FIRST["Camembert" if camembert else "XLMRoberta"]
  rest = zip(parsed.pieces[count:], parsed.scores[count:], strict=True)
  vocab = [*first, *rest, (bpe.ROBERTA["mask"], 0.0)]
  made = Tokenizer(models.Unigram(vocab, _UNKNOWN, False))
  if parsed.charsmap:
    made.normalizer = normalizers.Precompiled(parsed.charsmap)
  space = dict(replacement=_SPACE, prepend_scheme="always")
  made.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)]
  )
  made.decoder = decoders.Metaspace(**space)
  *special, mask = (
    bpe.ROBERTA[r] for r in ("pad", "unk", "cls", "sep", "mask")
  )
  made.add_special_tokens([AddedToken(t, normalized=False) for t in special])
  token = AddedToken(mask, lstrip=camembert, normalized=False)
  made.add_special_tokens([token])
  cls, sep = bpe.ROBERTA["cls"], bpe.ROBERTA["sep"]
  made.post_processor = processors.TemplateProcessing(
    f"{cls} $A {sep}",
    f"{cls} $A {sep} {sep} $B {sep}",
    [(t, made.token_to_id(t)) for t in (cls, sep)],
  )
  return tokenizer_json.from_json(made.to_str(), source)
