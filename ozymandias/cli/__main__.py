"""`python -m ozymandias.cli` is `ozy`."""

from ozymandias.cli.main import main

if __name__ == "__main__":
    main()
