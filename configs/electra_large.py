"""ELECTRA-Large, replaced token detection.

Paper: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators
  Rather Than Generators", sections 2 and 3, Table 6.
Sizes: discriminator 24 layers of 1024, 16 heads, tables of 1024, 335M
  parameters; generator 24 layers of 256 (google-research/electra
  util/training_utils.py, configure_pretraining.py, README).
Recipe: 2,048 sequences of 512 tokens a batch, 400,000 steps (ELECTRA-400K,
  section 3.4; --config.total_steps=1750000 --config.schedule.warmup=0.0057143
  for ELECTRA-1.75M), Adam 2e-4 without bias correction, warm-up over 10,000
  steps times linear decay, decay 0.01, clipping at 1.0, dropout 0.1, 25%
  masked, loss 1 x generator + 50 x discriminator, samples at temperature 1
  (Table 6; configure_pretraining.py, model/optimization.py).
Positions: drawn with replacement in the released code:
  --config.data.repeat_positions=True.
Original hardware: [not published]; 7.1e20 FLOPs (Table 2) [mem].
Scores: GLUE dev, average 89.0 after 400,000 steps, 89.5 after 1,750,000 (Table
  2).
Command:
  python -m bert_jax.cli.train --config configs/electra_large.py \\
    --workdir runs/electra_large --config.data.path=PREPARED_FOLDER
On a TPU slice, and on several hosts: docs/hosts.md. Which slices it fits:
  docs/tpu.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=400_000,
      batch_size=2048,
      micro_batches=4,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="electra",
        variant="large",
        vocab_size=placeholder(int),  # that of the data
        max_positions=512,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=True,
      ),
      objective=dict(
        name="electra",
        discriminator_weight=50.0,
        temperature=1.0,
      ),
      data=dict(
        path="",
        builder="electra_segments",
        length=512,
        max_predictions=130,
        mask_rate=0.25,
        short_probability=0.05,
        masking="token",
        replacement="electra",
        count="round_single",
        repeat_positions=False,
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw_bert",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="electra", peak=2e-4, warmup=0.025),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=5000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
