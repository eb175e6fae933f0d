"""SST-2 by TinyBERT's two task stages: a student learns from a teacher.

Paper: Jiao et al. 2020, "TinyBERT: Distilling BERT for Natural Language
  Understanding", sections 3.2 and 4.2.
Before: a teacher, BERT-base fine-tuned with configs/finetune/sst2.py; a student
  after the general stage, configs/tinybert_4x312.py; the training file grown
  to about 20 variants a line (--samples: 10 for MNLI and QQP, 20 for SST-2 and
  QNLI, 30 for the others; data_augmentation.py, default_params).
Recipe: first the inner layers: 20 epochs (MNLI, QQP, QNLI 10, CoLA 50), 32
  examples a batch, 5e-5; then the predictions: 3 epochs, batches of 16 or 32,
  1e-5, 2e-5 or 3e-5, temperature 1, the best on the development set; texts cut
  to 64 tokens, pairs to 128 (section 4.2). The rate of the first is constant,
  that of the second decays linearly after 10% of warm-up; Adam as in BERT's
  code, weight decay 0.01, clip 1.0 (huawei-noah/Pretrained-Language-Model
  TinyBERT task_distill.py; its own epochs: SST-2 10, MNLI and QQP 5).
Metric: of the first stage the held-out loss, of the second accuracy.
Scores: 92.6 (test, 4 layers of 312), 93.1 (6 of 768), Table 1.
Other tasks: data.path and epochs; of STS-B as released the second stage learns
  gold labels: --config.objective.targets=labels.
Commands (TRAIN and DEV: the original files; BERT: a folder with a masked-LM
head; VECTORS: GloVe's text file):
  python -m bert_jax.cli.augment --model BERT --task sst2 --input TRAIN \\
    --output train_augmented.tsv --vectors VECTORS
  python -m bert_jax.cli.prepare --task sst2 --input train=train_augmented.tsv \\
    --input validation=DEV --vocab BERT --length 64 --output TASK_FOLDER
  python -m bert_jax.cli.train --config configs/finetune/tinybert_sst2.py \\
    --workdir runs/layers --config.init_from=runs/tinybert_4x312 \\
    --config.teacher.path=runs/sst2 --config.data.path=TASK_FOLDER
  python -m bert_jax.cli.train --config configs/finetune/tinybert_sst2.py \\
    --workdir runs/prediction --config.init_from=runs/layers \\
    --config.teacher.path=runs/sst2 --config.data.path=TASK_FOLDER \\
    --config.objective.stage=prediction --config.data.epochs=3.0 \\
    --config.schedule.name=linear --config.schedule.peak=2e-5 \\
    --config.schedule.warmup=0.1
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The first stage, complete and flat; the second by the flags above."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=placeholder(int),  # data.epochs of the training rows
      batch_size=32,
      micro_batches=1,
      phases={},
      init_from="",  # the student
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family=placeholder(str),  # that of init_from, as all its sizes
        variant=placeholder(str),
        vocab_size=placeholder(int),
        dropout=placeholder(float),
        attention_dropout=placeholder(float),
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      teacher=dict(
        path="",
        model=dict(family=placeholder(str), variant=placeholder(str)),
      ),
      objective=dict(
        name="tinybert_task",
        stage="layers",
        maps="shared",
        attention_weight=1.0,
        hidden_weight=1.0,
        embedding_weight=1.0,
        head_dropout=placeholder(float),  # the family's
        targets="teacher",
        temperature=1.0,
      ),
      data=dict(
        path="",
        train="train",
        validation="validation",
        epochs=20.0,
        shuffle=True,
        group=True,
        buckets=(16, 32, 48, 64, 96, 128),
      ),
      optimizer=dict(
        name="adamw_bert",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        layer_decay=1.0,
        layer_rule="released",
      ),
      schedule=dict(name="constant", peak=5e-5, warmup=0.0),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=200),
      evaluate=dict(every=placeholder(int)),  # once an epoch
      checkpoint=dict(every=placeholder(int), keep=1, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
