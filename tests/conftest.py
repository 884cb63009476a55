"""What holds for all tests."""

import signal

# Whoever runs the tests in the background may have them ignore Ctrl-C, and every program they
# start would inherit that. Some tests are about Ctrl-C: here it means what it means to a person.
signal.signal(signal.SIGINT, signal.default_int_handler)
