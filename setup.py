"""Serves tools that need a setup.py; pyproject.toml holds the metadata."""

from setuptools import setup

setup()
