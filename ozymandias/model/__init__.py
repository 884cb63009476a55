"""The nouns of Ozymandias: immutable values, shared by everything. Standard library only."""
