r"""TinyBERT: the general stage, and the two stages of a task.

Paper: Jiao et al. 2020, "TinyBERT: Distilling BERT for Natural Language
  Understanding", sections 3.1, 3.2 and 4.2. README.md, general_distill.py,
  task_distill.py, pregenerate_training_data.py and data_augmentation.py are in
  huawei-noah/Pretrained-Language-Model TinyBERT.
General stage (4x312, 6x768): the teacher is BERT-base. The loss is the sum of
  the mean squared differences of attention scores, hidden states and
  embeddings. Layer m learns from the teacher's layer 3m (4x312) or 2m (6x768).
  The text is Wikipedia, a row has 128 tokens, and there are 3 epochs. The other
  settings are BERT's (section 4.2): Adam with a peak rate of 1e-4, a warm-up
  over 10,000 steps, weight decay 0.01 and a clipping norm of 1.0. The released
  program has 5e-5, a warm-up over 10% of the steps and batches of 256 rows
  (README.md, general_distill.py). No token is masked, as in the released
  program (pregenerate_training_data.py): the objective puts the masked tokens
  back. Embeddings and all layers share one learnt map with a bias, as in the
  released program. The paper has two maps; for this, add
  --config.objective.maps=two.
Steps of the general stage: these were computed here. 3 epochs of 2,500M words
  of Wikipedia at 1.3 pieces a word are 300,000 batches of 256 rows of 128
  tokens.
First stage of a task (sst2), which learns from the inner layers: 20 epochs, 32
  examples a batch and a constant rate of 5e-5. MNLI, QQP and QNLI have 10
  epochs, and CoLA has 50. The best checkpoint is the one with the lowest
  held-out loss.
Second stage of a task, which learns from the predictions: 3 epochs and
  temperature 1. The paper has batches of 16 or 32 examples, and takes the peak
  rate that is best on the development set, of 1e-5, 2e-5 and 3e-5. The rate
  decays linearly after a warm-up over 10% of the steps. In the released
  program, this stage learns the labels of STS-B instead; for this, add
  --config.objective.targets=labels.
Both stages of a task: a text is cut to 64 tokens, and a pair of texts to 128
  (section 4.2). The optimizer is Adam as in BERT's code, with weight decay 0.01
  and a clipping norm of 1.0 (task_distill.py, which has 10 epochs for SST-2 and
  5 for MNLI and QQP). For other tasks, change data.path and data.epochs.
A task needs a teacher (BERT-base, fine-tuned with configs/glue.py:sst2), a
  student after the general stage, and a training file with about 20 variants of
  each line. The flag --samples of `bert_jax augment` sets this number: 10 for
  MNLI and QQP, 20 for SST-2 and QNLI, and 30 for the others
  (data_augmentation.py, default_params).

  The sizes are layers x width, attention heads and the MLP's width. "GLUE test"
  is the average score after both stages of each task.
  name         size                   parameters   GLUE test
  4x312      4 x 312, 12, 1,200          14.5M       77.0
  6x768      6 x 768, 12, 3,072          67M         79.4
  (Sizes: section 4.2. The teacher has 12 layers with a width of 768. Scores:
  Table 1.)
  The scores on the tasks' test sets are (MNLI: matched/mismatched):
              MNLI    QQP  QNLI SST-2 CoLA STS-B MRPC  RTE
  4x312  82.5/81.8   71.3  87.7  92.6 44.1  80.4 86.4 66.6
  6x768  84.6/83.2   71.6  90.4  93.1 51.1  83.7 87.3 70.0
  Original hardware: not published.

TRAIN and DEV are the original files, BERT is a folder with a masked-LM head,
and VECTORS is GloVe's text file (docs/distillation.md). Command:
  bert_jax train --config configs/tinybert.py:4x312 \
    --workdir runs/tinybert_4x312 --config.data.path=PREPARED_FOLDER \
    --config.teacher.path=BERT_BASE
  bert_jax augment --model BERT --task sst2 --input TRAIN \
    --output train_augmented.tsv --vectors VECTORS
  bert_jax prepare-task --task sst2 --input train=train_augmented.tsv \
    --input validation=DEV --vocab BERT --length 64 --output TASK_FOLDER
  bert_jax train --config configs/tinybert.py:sst2 --workdir runs/layers \
    --config.init_from=runs/tinybert_4x312 \
    --config.teacher.path=runs/sst2 --config.data.path=TASK_FOLDER
  bert_jax train --config configs/tinybert.py:sst2 --workdir runs/prediction \
    --config.init_from=runs/layers \
    --config.teacher.path=runs/sst2 --config.data.path=TASK_FOLDER \
    --config.objective.stage=prediction --config.data.epochs=3.0 \
    --config.schedule.name=linear --config.schedule.peak=2e-5 \
    --config.schedule.warmup=0.1
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.bert import PAIR_ROWS
from bert_jax.configs.common import (
  MASKED,
  PRETRAIN,
  TASK,
  check_name,
  merge,
  steps_and_peak,
  unset,
)
from ml_collections import ConfigDict

LOSS_SETTINGS = dict(
  maps="shared",
  attention_weight=1.0,
  hidden_weight=1.0,
  embedding_weight=1.0,
)
GENERAL_STAGE = dict(
  model=dict(family="tinybert"),
  teacher=dict(path="", model=dict(family="bert", variant="base")),
  objective=dict(name="tinybert") | LOSS_SETTINGS,
)
ROW_SIZES = dict(data=dict(length=128, max_predictions=20))
TASK_STAGES = TASK | dict(
  teacher=dict(path="", model=dict(family=unset(str), variant=unset(str))),
  objective=dict(
    name="tinybert_task",
    stage="layers",
    targets="teacher",
    temperature=1.0,
    head_dropout=unset(float),  # from the family
  )
  | LOSS_SETTINGS,
)
SST2 = dict(
  data=dict(epochs=20.0),
  optimizer=dict(name="adamw_bert"),
  schedule=dict(name="constant", peak=5e-5, warmup=0.0),
  log=dict(every=200),
)


def get_config(name: str = "4x312") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  if check_name(name, ("4x312", "6x768", "sst2")) == "sst2":
    return merge(TASK_STAGES, SST2)
  steps_and_rate = steps_and_peak(300_000, 10_000, peak=1e-4)
  variant = dict(model=dict(variant=name))
  return merge(
    PRETRAIN,
    MASKED,
    PAIR_ROWS,
    GENERAL_STAGE,
    ROW_SIZES,
    steps_and_rate,
    variant,
  )
