"""A small ELMo in minutes on two CPU cores.

Paper: Peters et al. 2018 for model and objective.
Sizes: chosen here, for minutes on a CPU: two layers of 256 cells a direction,
  words of 64 from 128 filters, rows of 20 words, 32 of them a batch, 1,500
  steps; the full softmax, rows without states, AdamW.
Text: the quickstart's, as 3,000 words.
Original hardware: none; two CPU cores.
Scores: held-out loss 4.33 nats, 1.28 under the training words' 5.61; after
  1,000 steps 4.38.
Command:
  python -m bert_jax.cli.train_vocab --input docstrings --kind words --size 3000 \\
    --output words.txt
  python -m bert_jax.cli.prepare --input docstrings --vocab words.txt \\
    --heldout 0.02 --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_elmo_cpu.py \\
    --workdir runs/small_elmo_cpu --config.data.path=PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Two layers of 256 cells a direction, minutes on two CPU cores."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=1500,
      batch_size=32,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="elmo",
        variant="small",
        hidden=64,
        cell=256,
        num_layers=2,
        filters=((1, 16), (2, 16), (3, 32), (4, 64)),
        highways=1,
        clip=3.0,
        vocab_size=placeholder(int),  # that of the data
        dropout=0.1,
        dtype="float32",
        unroll=4,
        remat=False,
      ),
      objective=dict(name="elmo", negatives=0, stateful=False),
      data=dict(
        path="",
        builder="elmo",
        length=20,
        streams=0,
        cased=True,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="cosine", peak=2e-3, warmup=0.05),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=500, examples=512),
      checkpoint=dict(every=500, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
