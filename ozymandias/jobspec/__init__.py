"""Job files: YAML (or JSON) in, a complete Job or one problem with every complaint out."""
