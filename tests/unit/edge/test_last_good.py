"""When most of it vanishes at once, the last known is served for a while."""

from ozymandias.edge.last_good import LastKnownGood


def test_most_at_once_is_held():
    """Over half of the groups gone: they stay for the time, then go."""
    guard: LastKnownGood[str, int] = LastKnownGood(30.0)
    assert guard.admit({"a": 1, "b": 2, "c": 3}, 0.0) == {"a": 1, "b": 2, "c": 3}
    assert guard.admit({"c": 3}, 1.0) == {"a": 1, "b": 2, "c": 3}
    assert guard.next_release == 31.0 and guard.held == {"a", "b"}
    assert guard.admit({"c": 3}, 30.9) == {"a": 1, "b": 2, "c": 3}
    assert guard.admit({"c": 3}, 31.0) == {"c": 3}
    assert guard.next_release is None


def test_what_comes_back_is_held_no_more():
    """A group with something of its own again is served from that alone."""
    guard: LastKnownGood[str, int] = LastKnownGood(30.0)
    guard.admit({"a": 1, "b": 2}, 0.0)
    guard.admit({}, 1.0)
    assert guard.admit({"a": 9}, 2.0) == {"a": 9, "b": 2}
    assert guard.admit({}, 3.0) == {"b": 2}  # one of one is not "most at once"


def test_the_usual_is_believed():
    """Half or less, or the only group: believed at once; a job that was stopped is let go."""
    guard: LastKnownGood[str, int] = LastKnownGood(30.0)
    guard.admit({"a": 1, "b": 2}, 0.0)
    assert guard.admit({"b": 2}, 1.0) == {"b": 2}
    assert guard.admit({}, 2.0) == {}
    guard.admit({"a": 1, "b": 2}, 3.0)
    assert guard.admit({}, 4.0, wanted={"b"}) == {}
    guard.admit({"a": 1, "b": 2}, 5.0)
    assert guard.admit({}, 6.0, wanted={"a", "b"}) == {"a": 1, "b": 2}
    assert guard.admit({}, 7.0, wanted={"a"}) == {"a": 1}


def test_with_nobody_to_tell_nothing_is_believed_gone():
    """No node is there: even the only group stays for the time; what was stopped is let go."""
    guard: LastKnownGood[str, int] = LastKnownGood(30.0)
    guard.admit({"a": 1}, 0.0)
    assert guard.admit({}, 1.0, wanted={"a"}, is_blind=True) == {"a": 1}
    assert guard.admit({}, 2.0, wanted={"a"}) == {"a": 1}  # the nodes are back, one by one
    assert guard.admit({"a": 2}, 3.0, wanted={"a"}) == {"a": 2}
    assert guard.admit({}, 4.0, wanted=set(), is_blind=True) == {}
