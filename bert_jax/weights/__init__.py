"""Published weights to parameter trees and back; `bert_jax convert`.

Reading and writing Hugging Face's files needs the extra `convert`.
"""
