"""The documentation under test: commands run, links lead somewhere, examples are valid."""
