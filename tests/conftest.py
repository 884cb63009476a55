"""What holds for all tests."""

import os
import signal

from hypothesis import settings

# Whoever runs the tests in the background may have them ignore Ctrl-C, and every program they
# start would inherit that. Some tests are about Ctrl-C: here it means what it means to a person.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time: a red run is then about the change it is run for. OZY_RANDOM=1
# draws others, to search. How long an example takes says nothing on a busy machine.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("random" if os.environ.get("OZY_RANDOM") else "steady")
