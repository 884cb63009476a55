"""Ozymandias: one computer for containers, made of ordinary Linux machines."""

__version__ = "0.1.0"
