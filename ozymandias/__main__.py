"""`python -m ozymandias` runs the daemon."""

from ozymandias.daemon.main import main

if __name__ == "__main__":
    main()
