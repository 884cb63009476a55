"""Tests of the documentation: its commands run, its links lead somewhere, its examples are valid."""
