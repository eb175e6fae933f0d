"""For tools that ask for a setup.py; pyproject.toml holds the metadata."""

from setuptools import setup

setup()
