"""One time per instance: the newest holds, and what is over is taken once."""

import random

from ozymandias.daemon.timetable import Timetable
from ozymandias.model.instance import InstanceId
from ozymandias.store import keys

WEB = keys.job_key("default", "web")
ONE, TWO = InstanceId(WEB, 1), InstanceId(WEB, 2)


def test_what_is_due_is_taken_once() -> None:
    """A time that has come is handed out, and then there is none."""
    times = Timetable()
    times.put(ONE, 5.0)
    times.put(TWO, 7.0)
    assert (times.take(4.9), times.first()) == (set(), 5.0)
    assert (times.take(5.0), times.first()) == ({ONE}, 7.0)
    assert (times.take(100.0), times.first()) == ({TWO}, None)


def test_the_last_word_counts() -> None:
    """A time can be put off, brought forward and taken back."""
    times = Timetable()
    for at in (5.0, 9.0, 5.0, 7.0):
        times.put(ONE, at)
    assert (times.take(6.0), times.first()) == (set(), 7.0)
    times.put(ONE, None)
    assert (times.take(100.0), times.first()) == (set(), None)


def test_it_agrees_with_a_plain_dictionary() -> None:
    """Whatever is put and taken, it says the same as looking at every entry would."""
    dice = random.Random(3)
    times, plain = Timetable(), dict[InstanceId, float]()
    for step in range(2000):
        instance = InstanceId(WEB, dice.randrange(8))
        at = dice.choice((None, float(step + dice.randrange(20))))
        times.put(instance, at)
        plain.pop(instance, None)
        if at is not None:
            plain[instance] = at
        if dice.random() < 0.3:
            due = {i for i, when in plain.items() if when <= step}
            assert times.take(float(step)) == due
            plain = {i: when for i, when in plain.items() if i not in due}
        assert times.first() == min(plain.values(), default=None)
