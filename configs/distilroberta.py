"""DistilRoBERTa-base, distilled from RoBERTa-base in pre-training.

Paper: Sanh et al. 2019 for the method; the model is described in
  huggingface/transformers research_projects/distillation/README.md.
Sizes: 6 layers of 768, 12 heads, 82M parameters (README.md;
  training_configs/distilroberta-base.json); the teacher has 12 layers, 125M.
Recipe: that of DistilBERT (configs/distilbert.py), with the teacher's layers 0,
  2, 4, 7, 9, 11 as well (scripts/extract.py).
Data: OpenWebText, a quarter of RoBERTa's text (README.md).
Steps: computed here: 3 epochs of 40 GB at 4.5 bytes a piece are 12,700 batches
  of 4,096 rows of 512.
Original hardware: [not published].
Scores: GLUE dev, macro 79.0 (RoBERTa-base 83.2): CoLA 59.3, MNLI 84.0, MRPC
  86.6, QNLI 90.8, QQP 89.4, RTE 67.9, SST-2 92.5, STS-B 88.3, WNLI 52.1
  (README.md).
Command:
  python -m bert_jax.cli.train --config configs/distilroberta.py \\
    --workdir runs/distilroberta --config.data.path=PREPARED_FOLDER \\
    --config.teacher.path=ROBERTA_BASE
The teacher: docs/distillation.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=12_700,
      batch_size=4096,
      micro_batches=16,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="roberta",
        variant="base",
        num_layers=6,
        padding_id=placeholder(int),  # that of the data
        vocab_size=placeholder(int),  # that of the data
        max_positions=514,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      teacher=dict(path="", model=dict(family="roberta", variant="base")),
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
        length=512,
        max_predictions=77,
        mask_rate=0.15,
        masking="token",
        smoothing=0.7,
        replacement="bert",
        count="ceil_all",
        static_masks=0,
        max_sequences=1,
        cased=True,
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
      log=dict(every=50),
      evaluate=dict(every=500, examples=10_000),
      checkpoint=dict(every=250, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
