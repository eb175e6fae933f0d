"""A small ELECTRA in minutes on one GPU.

Paper: Clark et al. 2020 for objective and data.
Sizes: chosen here, for one GPU and minutes: 4 layers of 512, rows of 128
  tokens, 128 of them a batch, 24,000 steps, no dropout, wider initial values
  (0.02 is made for a width of 768). The generator is 256 wide; the embeddings
  are as wide as the layers, as in ELECTRA-base.
Text: Wikipedia, prepared with BERT's uncased vocabulary; ten million tokens are
  enough.
Original hardware: none; one GPU.
Command:
  python -m bert_jax.cli.prepare --input 'wiki-*.jsonl.xz' --heldout 0.01 \\
    --vocab VOCABULARY --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_electra_gpu.py \\
    --workdir runs/small_electra_gpu --config.data.path=PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Four layers of 512, minutes on one GPU."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=24_000,
      batch_size=128,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="electra",
        variant="small",
        embedding_size=512,
        hidden=512,
        num_layers=4,
        heads=8,
        mlp=2048,
        generator_hidden=256,
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.0,
        attention_dropout=0.0,
        activation="gelu",
        initializer_range=0.04,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=4,
        remat=False,
      ),
      objective=dict(
        name="electra",
        discriminator_weight=50.0,
        temperature=1.0,
      ),
      data=dict(
        path="",
        builder="electra_segments",
        length=128,
        max_predictions=20,
        mask_rate=0.15,
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
      schedule=dict(name="electra", peak=5e-4, warmup=0.1),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=500),
      evaluate=dict(every=1000, examples=2048),
      checkpoint=dict(every=2000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
