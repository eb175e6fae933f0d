"""A small DistilBERT in minutes on one GPU, from a teacher trained here.

Paper: Sanh et al. 2019 for objective, initial layers and masks.
Sizes: chosen here, for one GPU and minutes: 6 layers of 256, rows of 128
  tokens, 128 of them a batch, 10,000 steps; the teacher of
  small_teacher_gpu.py, 12 layers of 256. How close it gets to it: `kl_loss` of
  the held-out rows, beside that of small_alone_gpu.py.
Text: Wikipedia, prepared with BERT's uncased vocabulary; ten million tokens are
  enough.
Original hardware: none; one GPU.
Command:
  python -m bert_jax.cli.prepare --input 'wiki-*.jsonl.xz' --heldout 0.01 \\
    --vocab VOCABULARY --output PREPARED_FOLDER
  python -m bert_jax.cli.train --config configs/small_distil_gpu.py \\
    --workdir runs/small_distil_gpu --config.data.path=PREPARED_FOLDER \\
    --config.teacher.path=runs/small_teacher_gpu
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=10_000,
      batch_size=128,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="distilbert",
        variant="base",
        hidden=256,
        num_layers=6,
        heads=4,
        mlp=1024,
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.04,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      teacher=dict(
        path="",
        model=dict(
          family="bert",
          variant="mini",
          num_layers=12,
          max_positions=128,
        ),
      ),
      objective=dict(
        name="distil",
        layers=(0, 2, 4, 7, 9, 11),
        kl_weight=5.0,
        mlm_weight=2.0,
        cosine_weight=1.0,
        temperature=2.0,
        kl_tokens="all",
        freeze_positions=True,
      ),
      data=dict(
        path="",
        builder="doc_sentences",
        length=128,
        max_predictions=20,
        mask_rate=0.15,
        masking="token",
        smoothing=0.7,
        replacement="bert",
        count="ceil_all",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.98,
        epsilon=1e-6,
        weight_decay=0.0,
        clip_norm=5.0,
      ),
      schedule=dict(name="linear", peak=5e-4, warmup=0.05),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=500),
      evaluate=dict(every=1000, examples=2048),
      checkpoint=dict(every=2000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
