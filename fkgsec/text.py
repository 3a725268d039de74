"""Untrusted text (names in data, values in files) for messages and terminals: without control characters, and shortened.

    >>> printable("hospital\\x1b[2J")
    'hospital\\\\x1b[2J'
    >>> shown("x" * 100_000, most=12)
    "'xxxxxxxx..."

Graphs, records and files keep the original names. Text is escaped only for display.
"""

from __future__ import annotations

_MOST_BITS = 256
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they reorder the line around them
_CONTROL = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *_BIDIRECTIONAL, *range(0xD800, 0xE000))
_ESCAPES = {code: ascii(chr(code))[1:-1] for code in _CONTROL}
_ESCAPES_IN_LINES = {code: escape for code, escape in _ESCAPES.items() if chr(code) not in "\n\t"}


def printable(text: str, most: int | None = None, *, lines: bool = False) -> str:
    """Escape control characters as Python writes them.

    Args:
        text: to show.
        most: maximum number of characters; None: all.
        lines: whether line ends and tabs stay.
    """
    if most is not None and len(text) > most:
        text = f"{text[: most - 3]}..."
    return text.translate(_ESCAPES_IN_LINES if lines else _ESCAPES)


def shown(value: object, most: int = 80) -> str:
    """Format a value for a message: its `repr`, shortened.

    Args:
        value: to show.
        most: maximum number of characters.
    """
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:  # Python raises for thousands of digits
        return f"a number of {value.bit_length():,} bits"
    # Cut before formatting: the repr of a long text would be built in full.
    text = repr(value[:most] if isinstance(value, str | bytes) else value)
    cut = len(text) > most or (isinstance(value, str | bytes) and len(value) > most)
    return printable(f"{text[: most - 3]}..." if cut else text)
