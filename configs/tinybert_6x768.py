"""TinyBERT, 6 layers of 768: the general stage, from BERT-base.

Paper: Jiao et al. 2020, "TinyBERT: Distilling BERT for Natural Language
  Understanding", sections 3.1, 3.2 and 4.2.
Sizes: 6 layers of 768, 12 heads, MLP of 3,072, 67M parameters (section
  4.2); the teacher has 12 layers of 768.
Recipe: mean squared differences of attention scores, hidden states and
  embeddings, layer m from the teacher's 2m; Wikipedia, 128 tokens, 3 epochs,
  the rest as BERT (section 4.2): Adam 1e-4 with warm-up over 10,000 steps,
  decay 0.01, clip 1.0. The released program has 5e-5 and warm-up over 10%,
  batches of 256 (huawei-noah/Pretrained-Language-Model TinyBERT README.md,
  general_distill.py). No token is hidden, as released
  (pregenerate_training_data.py): the builder's masks are put back.
Steps: computed here: 3 epochs of 2,500M words of Wikipedia at 1.3 pieces a word
  are 300,000 batches of 256 rows of 128.
One learnt map of embeddings and all layers, with a bias, as released; the two
  of the paper: --config.objective.maps=two.
Original hardware: [not published].
Scores: GLUE test after both stages, average 79.4: MNLI 84.6/83.2, QQP 71.6,
  QNLI 90.4, SST-2 93.1, CoLA 51.1, STS-B 83.7, MRPC 87.3, RTE 70.0 (Table 1).
Command:
  python -m bert_jax.cli.train --config configs/tinybert_6x768.py \\
    --workdir runs/tinybert_6x768 --config.data.path=PREPARED_FOLDER \\
    --config.teacher.path=BERT_BASE
The teacher: docs/distillation.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=300_000,
      batch_size=256,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="tinybert",
        variant="6x768",
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
        remat=False,
      ),
      teacher=dict(path="", model=dict(family="bert", variant="base")),
      objective=dict(
        name="tinybert",
        maps="shared",
        attention_weight=1.0,
        hidden_weight=1.0,
        embedding_weight=1.0,
      ),
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
        name="adamw_bert",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="bert", peak=1e-4, warmup=1 / 30),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=5_000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
