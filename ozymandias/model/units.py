"""Sizes, durations and numbers of things, as people write them and as machines count them.

Sizes are binary: ``1G`` is 2**30 bytes, ``512M``, ``512MB``, ``512Mi`` and ``512MiB`` are alike.
Durations are seconds, or ``30s``, ``5m``, ``2h``, ``1h30m``, ``500ms`` (compose's spelling).
"""

import re

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([KMGTP]?)(?:i?B)?", re.IGNORECASE)
_DURATION_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|us|s|m|h|d)")
_SIZE_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_DURATION_FACTORS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def counted(number: int, noun: str) -> str:
    """``1 instance``, ``2 instances``, ``0 instances``."""
    return f"{number} {noun}" + "s" * (number != 1)


def is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def parse_size(text: str | int) -> int:
    """Bytes of ``"2G"`` or ``2147483648``. ValueError says what a size looks like."""
    match = _SIZE.fullmatch(str(text).strip())
    if not match:
        raise ValueError(f"{str(text)[:40]!r} is not a size; write for example 512M or 2G")
    number, suffix = match.groups()
    return (
        int(float(number) * _SIZE_FACTORS[suffix.upper()])
        if "." in number
        else int(number) * _SIZE_FACTORS[suffix.upper()]
    )


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling, else one decimal: ``12G``, ``1.5G``, ``100M``, ``0B``."""
    if size_bytes < 0:
        return "-" + format_size(-size_bytes)
    for suffix in ("P", "T", "G", "M", "K"):
        factor = _SIZE_FACTORS[suffix]
        if size_bytes >= factor:
            if size_bytes % factor == 0:
                return f"{size_bytes // factor}{suffix}"
            return f"{size_bytes / factor:.1f}".removesuffix(".0") + suffix
    return f"{size_bytes}B"


def exact_size(size_bytes: int) -> str:
    """A size as a job file spells it, never rounded: ``2G``, ``1600M``, ``12345``."""
    for suffix, factor in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{suffix}"
    return str(size_bytes)


def format_cores(millis: int) -> str:
    """``2 cores``, ``0.5 cores``, ``1 core``."""
    return f"{millis / 1000:g} core" + "s" * (millis != 1000)


def parse_duration(text: str | int | float) -> float:
    """Seconds of ``30``, ``"30s"``, ``"1m30s"``. ValueError says what a duration looks like."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text)
    stripped = str(text).strip()
    try:
        return (
            float(stripped) if re.fullmatch(r"\d{1,12}(\.\d{1,6})?", stripped) else _parts(stripped)
        )
    except KeyError:
        raise ValueError(
            f"{stripped[:40]!r} is not a duration; write for example 30, 30s or 5m"
        ) from None


def _parts(text: str) -> float:
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise KeyError(text)
    return sum(float(number) * _DURATION_FACTORS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """``0.5s``, ``45s``, ``3m20s``, ``2h5m``, ``4d3h``: two units at most, for people."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    for big, small, factor, unit in (
        ("d", "h", 86400, 3600),
        ("h", "m", 3600, 60),
        ("m", "s", 60, 1),
    ):
        if whole >= factor:
            rest = whole % factor // unit
            return f"{whole // factor}{big}" + (f"{rest}{small}" if rest else "")
    return f"{whole}s"
