"""BERT-base's encoder, masked LM alone, for recipes on 67 million words.

Sizes: BERT-base's (Devlin et al. 2019): 12 layers of 768, 12 heads; 128
  positions, as no row is longer.
Rows: RoBERTa's full sentences, no pairs (Liu et al. 2019, section 4.2); three
  phases of 32, 64 and 128 tokens with the same number of tokens a step.
Everything else is what the study beside this file varies; see README.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def phase(fraction: float, length: int, rate: float, scale: float) -> dict:
  """A phase whose rows have room for all hidden tokens."""
  return dict(
    fraction=fraction,
    length=length,
    max_predictions=round(length * rate) + 1,
    mask_rate=rate,
    batch_scale=scale,
    micro_scale=1,
  )


def get_config() -> ConfigDict:
  """8,000 steps of 16,384 tokens."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=8_000,
      batch_size=128,
      micro_batches=1,
      phases=dict(
        phase1=phase(0.4, 32, 0.15, 4.0),
        phase2=phase(0.3, 64, 0.15, 2.0),
        phase3=phase(0.3, 128, 0.15, 1.0),
      ),
      init_from="",
      model=dict(
        family="bert",
        variant="base",
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=12,
        remat=False,
      ),
      objective=dict(name="mlm", pairs=False),
      data=dict(
        path="",
        builder="full_sentences",
        mask_rate=0.15,
        masking="token",
        replacement="bert",
        count="round",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="linear", peak=5e-4, warmup=0.05, decay=1.0),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=250),
      evaluate=dict(every=1000, examples=2048),
      checkpoint=dict(every=1_000_000, keep=1, keep_best=0),
      profile=dict(start=0, steps=0),
    )
  )
