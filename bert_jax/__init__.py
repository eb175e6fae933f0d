"""BERT-family encoders in JAX: pre-training, fine-tuning and study."""

from typing import TYPE_CHECKING

from bert_jax import messages

if TYPE_CHECKING:
  from bert_jax.use.finetune import finetune
  from bert_jax.use.model import Model, load
  from bert_jax.use.pretrain import pretrain
  from bert_jax.use.report import report

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "finetune", "load", "pretrain", "report"]

messages.refuse_module_as_command()

# These names are imported at their first use, because the import takes seconds.
__getattr__, __dir__ = messages.lazy_names(
  globals(),
  {
    "Model": "bert_jax.use.model",
    "finetune": "bert_jax.use.finetune",
    "load": "bert_jax.use.model",
    "pretrain": "bert_jax.use.pretrain",
    "report": "bert_jax.use.report",
  },
  # Names that users of other libraries may try -> the name in this package.
  dict.fromkeys(
    (
      *("from_pretrained", "AutoModel", "AutoTokenizer", "AutoConfig"),
      *("BertModel", "SentenceTransformer", "pipeline", "load_model", "open"),
    ),
    "load",
  )
  | dict.fromkeys(("Trainer", "train", "fit"), "finetune"),
)
