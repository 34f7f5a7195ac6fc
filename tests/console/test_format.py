"""How figures are written in the console: short, and never another figure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

SOURCE = (
    Path(__file__).resolve().parents[2] / "server/src/cronoq_server/api/console/static/format.js"
)


def written(call: str) -> str:
    """What a call of the module returns."""
    program = f"{SOURCE.read_text(encoding='utf-8')}\nconsole.log(JSON.stringify({call}));"
    command = ["node", "--input-type=module"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, check=True)
    text: str = json.loads(done.stdout)
    return text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0 s"),
        ("0.000250", "250 µs"),
        ("0.0015", "1.5 ms"),
        ("0.010", "10 ms"),
        ("0.5", "500 ms"),
        ("0.75", "750 ms"),
        ("0.9999", "1000 ms"),
        ("1", "1 s"),
        ("10", "10 s"),
        ("12.345", "12.3 s"),
        ("100", "100 s"),
        ("119.9", "120 s"),
        ("600", "10 min"),
        ("7200", "2.0 h"),
        ("null", "–"),
    ],
)
def test_lengths_of_time_keep_their_zeros(value: str, text: str) -> None:
    """Only zeros behind the point are left out."""
    assert written(f"seconds({value})") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("0", "0/s"), ("0.5", "0.5/s"), ("10", "10/s"), ("99.6", "100/s"), ("1234.5", "1,235/s")],
)
def test_rates_are_plain_numbers(value: str, text: str) -> None:
    """No exponent, whatever the size."""
    assert written(f"rate({value})") == text
