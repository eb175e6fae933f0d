"""The systems that `compare.py` compares: what is equal, and what differs.

All Transformers have 8 layers of 512, one text, one WordPiece vocabulary, no
dropout, AdamW and the same schedule. A step has 32,768 token positions. Rows
have 64 tokens for 60% of the steps, then 128: short rows first are better for
the same compute (see ../flagship), and 64 tokens still hold two segments for
the systems that read pairs. `compare.py` computes the number of steps from a
budget of FLOPs.

  name            differs from `roberta` in
  bert            pairs of segments, next sentence prediction
  bert_no_nsp     the rows of `bert`, without its loss on pairs
  bert_sop        pairs of segments, sentence order (ALBERT's rows)
  roberta         nothing: full sentences, new masks in each epoch
  roberta_static  one fixed set of masks for each phase
  whole_word      all pieces of a word are hidden together
  spans           SpanBERT's masks and boundary objective
  albert          ALBERT: one layer applied 8 times, embeddings of width 128,
                  hidden n-grams, sentence order
  electra         ELECTRA: a generator of width 128, replaced tokens
  gpt             GPT-1: next token, rows of one document
  elmo            ELMo: words from characters, 2 LSTM layers each way
  distilbert      4 layers of 512; learns from the best BERT
  tinybert        4 layers of 256; learns from the best BERT's inner states

`NAME,tiny` is the same system with 2 layers of 64, for a trial on a CPU.
"""

from typing import Any

from bert_jax.configs import albert, distilbert, electra, elmo, gpt, tinybert
from bert_jax.configs.common import MASKED, PRETRAIN, check_name, merge
from ml_collections import ConfigDict

FIRST_SHARE = 0.6
LENGTHS = (64, 128)
MASK_RATE = 0.15


def phase_section(fraction: float, length: int, has_masks: bool) -> dict:
  """Returns a phase with as many tokens in a batch as rows of 128 tokens."""
  section: dict[str, Any] = dict(
    fraction=fraction,
    length=length,
    batch_scale=LENGTHS[1] / length,
    micro_scale=1,
  )
  if has_masks:
    section["max_predictions"] = round(length * MASK_RATE) + 1
  return section


def phases(has_masks: bool = True) -> dict:
  """Returns the section `phases` of all Transformers."""
  shares = (FIRST_SHARE, 1 - FIRST_SHARE)
  return dict(
    phases={
      f"phase{i + 1}": phase_section(shares[i], LENGTHS[i], has_masks)
      for i in range(2)
    }
  )


# `compare.py` replaces total_steps and the three intervals, which depend on
# total_steps.
RECIPE = dict(
  total_steps=1000,
  batch_size=256,
  model=dict(dropout=0.0),
  optimizer=dict(name="adamw", b2=0.98),
  schedule=dict(name="linear", peak=5e-4, warmup=0.06),
  log=dict(every=50),
  evaluate=dict(every=125, examples=2048),
  checkpoint=dict(every=1_000_000, keep=1, keep_best=0),
)


def encoder_size(layers: int, hidden: int, heads: int) -> dict[str, Any]:
  """Returns the keys of `model` for a size; the MLP is 4 times as wide."""
  return dict(
    hidden=hidden,
    num_layers=layers,
    heads=heads,
    mlp=4 * hidden,
    max_positions=LENGTHS[1],
    attention_dropout=0.0,
    unroll=layers,
  )


SIZE_KEYS = ("hidden", "num_layers", "heads", "mlp", "max_positions")
FULL = encoder_size(8, 512, 8)
TINY = encoder_size(2, 64, 4) | dict(dtype="float32", unroll=0)
TINY_RUN = dict(batch_size=8, evaluate=dict(examples=16))
SENTENCES = dict(
  model=dict(family="bert", variant="small"),
  objective=dict(pairs=False),
  data=dict(builder="full_sentences", replacement="bert", count="round"),
)
PAIRS = dict(
  objective=dict(pairs=True),
  data=dict(
    builder="bert_pairs", short_probability=0.1, random_share="published"
  ),
)
ORDER = dict(
  objective=dict(pairs=True, pair_name="sop"),
  data=dict(builder="albert_pairs", short_probability=0.1, single="split"),
)
# Name -> the sections in which a system differs from `roberta`.
MASKED_SYSTEMS: dict[str, tuple[dict, ...]] = {
  "bert": (PAIRS,),
  "bert_no_nsp": (PAIRS, dict(objective=dict(pairs=False))),
  "bert_sop": (ORDER,),
  "roberta": (),
  "roberta_static": (dict(data=dict(static_masks=1)),),
  "whole_word": (dict(data=dict(masking="whole_word")),),
  "spans": (
    dict(
      objective=dict(span_boundary=True),
      data=dict(masking="span", replacement="unigram", count="ceil"),
    ),
  ),
  "albert": (
    ORDER,
    albert.FAMILY_SETTINGS,
    dict(model=dict(variant="base_v2", embedding_size=128)),
  ),
}
ELECTRA = (
  dict(
    model=dict(
      family="electra",
      variant="small",
      embedding_size=512,
      generator_hidden=128,
    ),
    objective=electra.FAMILY_SETTINGS["objective"],
    data=dict(
      builder="full_sentences", replacement="electra", count="round_single"
    ),
  ),
)
# The published student of a teacher with 12 layers begins with the teacher's
# layers 0, 2, 4, 7, 9 and 11.
STUDENTS = {
  "distilbert": (
    dict(
      model=distilbert.DISTILLATION["model"],
      objective=distilbert.DISTILLATION["objective"]
      | dict(layers=(0, 2, 5, 7)),
      optimizer=dict(weight_decay=0.0),
    ),
    dict(model=encoder_size(4, 512, 8)),
  ),
  "tinybert": (
    dict(
      model=dict(family="tinybert", variant="4x312"),
      objective=tinybert.GENERAL_STAGE["objective"],
    ),
    dict(model=encoder_size(4, 256, 8)),
  ),
}
TINY_STUDENTS: dict[str, dict[str, Any]] = {
  "distilbert": dict(
    model=encoder_size(1, 64, 4) | dict(dtype="float32"),
    objective=dict(layers=(0,)),
  ),
  "tinybert": dict(model=encoder_size(1, 32, 4) | dict(dtype="float32")),
}
ELMO = (
  elmo.FAMILY_SETTINGS,
  RECIPE,
  dict(
    batch_size=128,
    model=dict(
      variant="medium",
      hidden=256,
      cell=2048,
      highways=1,
      filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256)),
    ),
    objective=dict(negatives=0, stateful=False),
    data=dict(length=64, streams=0),
    schedule=dict(peak=1e-3),
    evaluate=dict(examples=1024),
  ),
)
TINY_ELMO = dict(
  batch_size=4,
  evaluate=dict(examples=16),
  model=dict(
    hidden=32,
    cell=64,
    filters=((1, 8), (2, 8)),
    dtype="float32",
  ),
)
SYSTEM_NAMES = (*MASKED_SYSTEMS, "electra", "gpt", "elmo", *STUDENTS)


def student_config(name: str, is_tiny: bool) -> ConfigDict:
  """Returns the config of a student, whose teacher is a BERT of full size."""
  teacher_size = TINY if is_tiny else FULL
  changes: dict[str, Any] = dict(
    teacher=dict(
      path="",
      model=dict(family="bert", variant="small")
      | {key: teacher_size[key] for key in SIZE_KEYS},
    ),
  )
  rows = dict(data=SENTENCES["data"])
  if is_tiny:
    changes |= TINY_RUN | TINY_STUDENTS[name]
  return merge(
    PRETRAIN, MASKED, RECIPE, phases(), rows, *STUDENTS[name], changes
  )


def get_config(name: str = "roberta") -> ConfigDict:
  """Returns the config of `NAME` or `NAME,tiny`.

  Raises:
    ValueError: there is no config with this name.
  """
  name, _, scale = name.partition(",")
  check_name(name, SYSTEM_NAMES)
  if scale:
    check_name(scale, ("tiny",))
  if name in STUDENTS:
    return student_config(name, bool(scale))
  if name == "elmo":
    return merge(*ELMO, TINY_ELMO if scale else {})
  size = dict(model=TINY if scale else FULL)
  run = TINY_RUN if scale else {}
  if name == "gpt":
    sections = (gpt.FAMILY_SETTINGS, RECIPE, phases(has_masks=False))
    return merge(
      PRETRAIN, *sections, dict(model=dict(variant="base")), size, run
    )
  if name == "electra":
    sections = (RECIPE, phases(), *ELECTRA)
    tiny_widths = dict(model=dict(embedding_size=64, generator_hidden=32))
    widths = tiny_widths if scale else {}
    return merge(PRETRAIN, MASKED, *sections, size, run, widths)
  sections = (RECIPE, phases(), SENTENCES, *MASKED_SYSTEMS[name])
  return merge(PRETRAIN, MASKED, *sections, size, run)
