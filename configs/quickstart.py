"""A small BERT in minutes on two CPU cores: what `make quickstart` trains.

Paper: Devlin et al. 2019 for objective and data; the size is BERT-Tiny, 2
  layers of 128 (Turc et al. 2019). Chosen here, for little text and little
  time: Adam with bias correction, a high rate, wider initial values (0.02 is
  made for a width of 768), no dropout, float32.
Original hardware: none; measured figures are in the README.
Command: make quickstart, or
  python -m bert_jax.cli.train --config configs/quickstart.py \\
    --workdir runs/quickstart --config.data.path=PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Two layers of 128, MLM and NSP, about five minutes."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=2700,
      batch_size=16,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="bert",
        variant="tiny",
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.0,
        attention_dropout=0.0,
        activation="gelu",
        initializer_range=0.05,
        dtype="float32",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=2,
        remat=False,
      ),
      objective=dict(name="mlm", pairs=True),
      data=dict(
        path="",
        builder="bert_pairs",
        length=128,
        max_predictions=20,
        mask_rate=0.15,
        short_probability=0.1,
        random_share="published",
        masking="token",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="linear", peak=1.5e-3, warmup=0.15),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=500, examples=512),
      checkpoint=dict(every=500, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
