"""Pieces are written in order, checkpoints seldom, and nothing after something that failed."""

import threading

import pytest

from numpyro_fwd.storage import writer
from numpyro_fwd.storage.writer import WAITING, Writer


def lists():
    """What was written, and what checkpoints said."""
    written, said = [], []
    return written, said, lambda _, done: written.append(done), lambda _, done: said.append(done)


def test_a_checkpoint_stands_for_several_pieces(monkeypatch):
    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 60.0)
    written, said, append, commit = lists()
    with Writer(append, commit) as some:
        for done in range(20):
            some.put({"a": 0}, [], done)
        some.settle()
        some.settle()  # says nothing new
    assert written == list(range(20))
    assert said == [0, 19]


def test_a_checkpoint_follows_each_piece_that_takes_long(monkeypatch):
    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 0.0)
    written, said, append, commit = lists()
    with Writer(append, commit) as some:
        for done in range(5):
            some.put({"a": 0} if done > 2 else {}, [], done)  # none in the warm-up
        some.settle()
    assert (written, said) == ([3, 4], [0, 1, 2, 3, 4])


def test_nothing_is_written_after_an_error(monkeypatch):
    """A gap would be among the draws."""
    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 60.0)
    written, said, append, commit = lists()
    begun = threading.Event()

    def fail_once(draws, done):
        begun.wait(10)  # until others wait behind it
        if done == 1:
            raise OSError("full")
        append(draws, done)

    with pytest.raises(OSError, match="full"), Writer(fail_once, commit) as some:
        for done in range(WAITING):
            some.put({"a": 0}, [], done)
        begun.set()
        some.settle()
    assert (written, said) == ([0], [0])


def test_few_pieces_wait(monkeypatch):
    """Each holds its draws in memory."""
    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 60.0)
    written, _, append, commit = lists()
    most, put = 0, 0

    def slowly(draws, done):
        nonlocal most
        most = max(most, put - len(written))
        threading.Event().wait(0.01)
        append(draws, done)

    with Writer(slowly, commit) as some:
        for done in range(12):
            put = done + 1
            some.put({"a": 0}, [], done)
        some.settle()
    assert len(written) == 12 and most <= WAITING + 1
