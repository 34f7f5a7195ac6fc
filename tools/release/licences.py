"""Decides which licences a dependency of ours may have, and how they are told from texts.

What ships with us, or is installed because of us, has to be permissive: no duty beyond naming the
authors. What is not, is refused, unless it is excused here with the reason.
"""

from __future__ import annotations

import re

from license_expression import (  # type: ignore[import-untyped,unused-ignore]
    AND,
    OR,
    ExpressionError,
    LicenseWithExceptionSymbol,
    get_spdx_licensing,
)

PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "PSF-2.0",
    "Python-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
EXCUSED = {
    "certifi": "MPL-2.0: a list of certificates, installed as it is and never changed",
}
# What packages write instead of an SPDX expression.
ALIASES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache Software License 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The MIT License": "MIT",
}
UNKNOWN = "unknown"
_SPDX = get_spdx_licensing()


def expression_of(*stated: str) -> str:
    """Return the first statement that is an SPDX expression, or one's alias; else ``unknown``."""
    for text in stated:
        # Crates of old separate alternatives by a slash.
        known = ALIASES.get(text.strip(), text.strip().replace("/", " OR "))
        if not known:
            continue
        try:
            return str(_SPDX.parse(known, validate=True))
        except ExpressionError:
            continue
    return UNKNOWN


def expression_of_text(text: str) -> str:
    """Return what the text of a licence file is, of the few that there are among Go modules."""
    flat = re.sub(r"\s+", " ", text)
    if "Apache License Version 2.0" in flat:
        return "Apache-2.0"
    if "Redistribution and use in source and binary forms" in flat:
        return "BSD-3-Clause" if "Neither the name" in flat else "BSD-2-Clause"
    if "Permission is hereby granted, free of charge" in flat:
        return "MIT"
    return UNKNOWN


def is_permissive(expression: str) -> bool:
    """Return whether an expression can be satisfied with permissive licences alone."""
    if expression == UNKNOWN:
        return False
    return _holds(_SPDX.parse(expression))


def _holds(node: object) -> bool:
    if isinstance(node, AND):
        return all(map(_holds, node.args))
    if isinstance(node, OR):
        return any(map(_holds, node.args))
    if isinstance(node, LicenseWithExceptionSymbol):
        return _holds(node.license_symbol)  # An exception only takes duties away.
    return getattr(node, "key", "") in PERMISSIVE
