"""A small ELMo in minutes on one GPU.

Paper: Peters et al. 2018 for model and objective.
Sizes: chosen here, for one GPU and minutes: two layers of 2,048 cells a
  direction, words of 256 from 512 filters, rows of 64 words, 128 of them a
  batch, 8,000 steps; the full softmax, rows without states, AdamW.
Text: Wikipedia, as 32,000 words; ten million words are enough.
Original hardware: none; one GPU.
Command:
  python -m bert_jax.cli.train_vocab --input 'wiki-*.jsonl.xz' --kind words \\
    --size 32000 --output words.txt
  python -m bert_jax.cli.prepare --input 'wiki-*.jsonl.xz' --heldout 0.01 \\
    --vocab words.txt --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_elmo_gpu.py \\
    --workdir runs/small_elmo_gpu --config.data.path=PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Two layers of 2,048 cells a direction, minutes on one GPU."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=8000,
      batch_size=128,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="elmo",
        variant="medium",
        hidden=256,
        cell=2048,
        num_layers=2,
        filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256)),
        highways=1,
        clip=3.0,
        vocab_size=placeholder(int),  # that of the data
        dropout=0.1,
        dtype="bfloat16",
        unroll=4,
        remat=False,
      ),
      objective=dict(name="elmo", negatives=0, stateful=False),
      data=dict(
        path="",
        builder="elmo",
        length=64,
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
      schedule=dict(name="cosine", peak=1e-3, warmup=0.05),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=500),
      evaluate=dict(every=1000, examples=1024),
      checkpoint=dict(every=2000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
