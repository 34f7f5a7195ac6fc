"""Decides which endpoints all SDKs must read alike: texts, with what each makes of them.

`conformance/vectors/endpoints.json` is one set of them, written by
`python -m tests.campaigns._endpoint_vectors`; the campaign makes larger ones in the same form.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from cronoq._endpoint import Endpoint, EndpointError, parse_configured, parse_redirect
from tests.campaigns._parser_cases import CORPUS, damaged, read_corpus

PATH: Final = Path(__file__).resolve().parents[2] / "conformance" / "vectors" / "endpoints.json"
ABOUT: Final = (
    "Endpoint texts and what every SDK makes of them; null is a refusal. 'configured' and 'tls' "
    "are what a user configures without and with TLS settings, 'redirect' is what a server names. "
    "Written by python -m tests.campaigns._endpoint_vectors. "
    "Rules: docs/spec/redirect-and-reconnect.md."
)
MADE: Final = 200
LONGEST: Final = 120
PARTS: Final = (
    *("http", "https", "HTTP", "ftp", "://", ":/", "//", ":", "", "@", "u:p@", "/", "//", "?", "#"),
    *("queue", "QUEUE", "a_b-c.d", "a..b", ".", "localhost", "localhost.", "127.0.0.1", "127.1"),
    *("0x7f.0.0.1", "127.000.000.001", "1", "[::1]", "[::1", "::1]", "[0:0:0:0:0:0:0:1]", "[::]"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[1::2::3]"),
    *("[::00001]", "[::ffff:1.2.3]", "[::ffff:01.2.3.4]", "[v1.x]", "[]", "[queue]", "[::FFFF]"),
    *(":0", ":1", ":80", ":0080", ":65535", ":65536", ":0000000000000001", ":+80", ":x", ":-1"),
    *(
        "\u212aueue",
        "\u0130",
        "\uff11",
        "é",
        "\u3002",
        "\u00ad",
        " ",
        "\t",
        "\0",
        "\x7f",
        "%2e",
        "\\",
    ),
)


def outcome(read: Callable[[], Endpoint]) -> str | None:
    """What reading comes to: the endpoint in full, or None where it is refused."""
    try:
        return str(read())
    except EndpointError:
        return None


def vector(text: str) -> dict[str, Any]:
    """What a text means in each way of reading."""
    redirect = outcome(lambda: parse_redirect(text))
    return {
        "text": text,
        "configured": outcome(lambda: parse_configured(text, tls=False)),
        "tls": outcome(lambda: parse_configured(text, tls=True)),
        "redirect": redirect,
        "is_loopback": redirect is not None and parse_redirect(text).is_loopback,
    }


def texts(count: int, seed: int) -> list[str]:
    """Endpoints, half of them put together from parts, half of them damaged ones."""
    chance = random.Random(seed)
    found = {"".join(chance.choices(PARTS, k=chance.randint(1, 5))) for _ in range(count // 2)}
    for content in damaged(read_corpus(CORPUS / "endpoints.jsonl"), seed):
        if len(found) >= count:
            return sorted(found)
        text = content.decode("utf-8", "replace")
        if len(text) <= LONGEST:
            found.add(text)
    return sorted(found)


def write(path: Path, chosen: Iterable[str]) -> None:
    """Writes vectors of these texts."""
    lines = [json.dumps(vector(text)) for text in chosen]
    body = ",\n    ".join(lines)
    path.write_text(f'{{\n  "about": {json.dumps(ABOUT)},\n  "vectors": [\n    {body}\n  ]\n}}\n')


def committed() -> list[str]:
    """The texts of the committed set: each part in its places, the corpus, and made ones."""
    chosen = {*texts(MADE, 1)}
    chosen |= {f"http://{part}" for part in PARTS} | {f"https://queue{part}" for part in PARTS}
    chosen |= {f"http://{part}:80" for part in PARTS} | set(PARTS)
    kept = read_corpus(CORPUS / "endpoints.jsonl")
    chosen |= {content.decode("utf-8", "replace")[:LONGEST] for content in kept}
    return sorted(chosen)


if __name__ == "__main__":
    write(PATH, committed())
