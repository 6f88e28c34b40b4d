"""Statements that signals do not divide."""

import signal

import pytest

from strategies.rounds.interruption import uninterrupted


@pytest.fixture(autouse=True)
def handled():
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    """Act as Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


@uninterrupted()
def interrupted_step(done):
    interrupt()
    done.append("first half")
    done.append("second half")


@uninterrupted()
def step_interrupted_twice(done):
    interrupt()
    done.append("first half")
    interrupt()
    done.append("second half")


@uninterrupted()
def interrupted_step_with_an_error():
    interrupt()
    raise ValueError("the cause")


def test_a_signal_acts_after_the_statements_and_then_at_once_again():
    done = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_step(done)
    assert done == ["first half", "second half"]
    with pytest.raises(KeyboardInterrupt):
        interrupt()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_other_signals_that_end_a_run_wait_too(number):
    done = []
    before = signal.signal(number, lambda *_: done.append("signal"))
    try:
        with uninterrupted():
            signal.raise_signal(number)
            done.append("statements")
    finally:
        signal.signal(number, before)
    assert done == ["statements", "signal"]


def test_a_second_sigterm_waits_too():
    """A batch system and the parent process may both send it."""
    done = []
    before = signal.signal(signal.SIGTERM, lambda *_: done.append("signal"))
    try:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            done.append("statements")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == ["statements", "signal"]


def test_a_second_ctrl_c_acts_at_once():
    done = []
    with pytest.raises(KeyboardInterrupt):
        step_interrupted_twice(done)
    assert done == ["first half"]


def test_an_error_of_the_statements_is_not_lost():
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupted_step_with_an_error()
    assert isinstance(raised.value.__context__, ValueError)
