"""Holds the error tree to the reasons of the wire."""

from __future__ import annotations

import grpc
import pytest
from scripted_server import make_status

from cronoq import ErrorReason, errors
from cronoq._proto import errors_pb2
from cronoq._transport import read_error_info, status_error
from cronoq.errors import CronoqError, UnavailableError, error_for


def _tree() -> list[type[CronoqError]]:
    found, waiting = [], [CronoqError]
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting.extend(kind.__subclasses__())
    return found


def test_reasons_are_those_of_the_contract() -> None:
    """None is missing, none is invented."""
    contract = {
        name.removeprefix("ERROR_REASON_").lower()
        for name in errors_pb2.ErrorReason.keys()  # noqa: SIM118 - no dict
        if not name.endswith("UNSPECIFIED")
    }
    assert contract == {reason.value for reason in ErrorReason}


@pytest.mark.parametrize("reason", ErrorReason, ids=lambda reason: reason.value)
def test_every_reason_has_a_class_of_its_own(reason: ErrorReason) -> None:
    """So that a program can catch it by name."""
    error = error_for("UNKNOWN", "text", reason=reason)
    assert error.reason is reason
    kinds = [k for k in _tree() if k.__dict__.get("default_reason") is reason]
    assert [type(error)] == kinds


def test_every_class_is_in_the_drawing_and_exported() -> None:
    """The tree at the top of the module is whole."""
    for kind in _tree():
        assert kind.__name__ in (errors.__doc__ or "")
        assert kind.__name__ in errors.__all__


@pytest.mark.parametrize("code", grpc.StatusCode, ids=lambda code: code.name)
def test_every_code_without_reason_becomes_an_error(code: grpc.StatusCode) -> None:
    """Old servers give no reasons."""
    error = error_for(code.name, "text")
    assert isinstance(error, CronoqError)
    assert error.message == "text"


def test_the_docstring_is_the_default_message() -> None:
    """An error always says something."""
    assert str(errors.QueueFullError()) == "The queue is full."


def test_only_some_reasons_say_that_nothing_was_executed() -> None:
    """Only then is a repetition safe for any call."""
    told = {r for r in ErrorReason if error_for("UNAVAILABLE", "", reason=r).executed is False}
    assert told == {ErrorReason.NOT_LEADER, ErrorReason.STOPPING}


def test_reasons_are_read_from_status_details() -> None:
    """As servers pack them."""
    status = make_status(grpc.StatusCode.UNAVAILABLE, "no", "not_leader")
    assert read_error_info(status.SerializeToString()) == (ErrorReason.NOT_LEADER, {})
    assert isinstance(status_error(status), errors.NotLeaderError)


def test_details_that_cannot_be_read_are_passed_over() -> None:
    """The status code still tells the class."""
    assert read_error_info(b"\xff\xff") == (None, {})
    status = make_status(grpc.StatusCode.UNAVAILABLE, "no", "of_a_later_version")
    error = status_error(status)
    assert type(error) is UnavailableError
    assert error.reason is None


def test_timeouts_are_timeouts_to_python_too() -> None:
    """`except TimeoutError` catches them."""
    assert issubclass(errors.WaitTimeoutError, TimeoutError)
