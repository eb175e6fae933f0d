"""Published weights to parameter trees and back; `python -m bert_jax.weights`.

Reading and writing Hugging Face's files needs the extra `convert`.
"""
