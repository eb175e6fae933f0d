"""Trains BERT-base's encoder by masked LM alone, on 67 million words.

Sizes: BERT-base (Devlin et al. 2019) with 12 layers of width 768 and 12 heads,
  but only 128 positions, because no row has more tokens.
Rows: RoBERTa's full sentences, no pairs (Liu et al. 2019, section 4.2). Three
  phases have rows of 32, 64 and 128 tokens. A step has the same number of
  tokens in all phases.
The study in this folder varies all other settings; see README.md.
"""

from bert_jax.configs.common import MASKED, PRETRAIN, check_name, merge
from ml_collections import ConfigDict


def phase_section(
  fraction: float, length: int, rate: float, scale: float
) -> dict:
  """Returns a phase; its rows have slots for the share `rate` of the tokens."""
  return dict(
    fraction=fraction,
    length=length,
    max_predictions=round(length * rate) + 1,
    mask_rate=rate,
    batch_scale=scale,
    micro_scale=1,
  )


STUDY = dict(
  total_steps=8_000,
  batch_size=128,
  phases=dict(
    phase1=phase_section(0.4, 32, 0.15, 4.0),
    phase2=phase_section(0.3, 64, 0.15, 2.0),
    phase3=phase_section(0.3, 128, 0.15, 1.0),
  ),
  model=dict(family="bert", max_positions=128, unroll=12),
  objective=dict(pairs=False),
  data=dict(builder="full_sentences", replacement="bert", count="round"),
  optimizer=dict(name="adamw", b2=0.98),
  schedule=dict(name="linear", peak=5e-4, warmup=0.05, decay=1.0),
  log=dict(every=250),
  evaluate=dict(every=1000, examples=2048),
  checkpoint=dict(every=1_000_000, keep=1, keep_best=0),
)


# Each of the 34,000 steps has 32,768 token positions, and 77% of these hold
# text. So the run reads 858 million tokens: it reads the text of 86.6 million
# tokens 9.9 times.
FLAGSHIP = dict(
  total_steps=34_000,
  batch_size=256,
  phases=dict(
    phase1=phase_section(0.35, 32, 0.4, 4.0),
    phase2=phase_section(0.3, 64, 0.3, 2.0),
    phase3=phase_section(0.35, 128, 0.15, 1.0),
  ),
  optimizer=dict(name="muon"),
  schedule=dict(name="trapezoid", decay=0.4),
  log=dict(every=500),
  evaluate=dict(every=2000, examples=4096),
  checkpoint=dict(every=5000),
)


# The model in the package; see experiments/mini. There is no dropout, because a
# model of this size does not overfit the text.
MINI = dict(
  total_steps=64_000,
  batch_size=512,
  model=dict(
    hidden=384,
    num_layers=5,
    heads=6,
    mlp=1536,
    dropout=0.0,
    attention_dropout=0.0,
    unroll=5,
  ),
  schedule=dict(peak=2e-3),
)
RECIPES = {
  "study": [STUDY],
  "flagship": [STUDY, FLAGSHIP],
  "mini": [STUDY, FLAGSHIP, MINI],
}


def get_config(name: str = "study") -> ConfigDict:
  """Returns the config of a recipe. "study" is the base of the other two."""
  return merge(PRETRAIN, MASKED, *RECIPES[check_name(name, RECIPES)])
