"""Values of Canal-JSON: each is a string or null."""

from __future__ import annotations

from datetime import tzinfo

from drainer.protocol.binary_columns import latin1_text
from drainer.protocol.json_fragments import Fragment, plain_double, text, utf8_text
from drainer.row.family import Family
from drainer.row.form import Form


def value_of(form: Form, zone: tzinfo) -> Fragment:
    """Return the fragment of a type. ENUM, SET and BIT are numbers. Each byte of a binary string is a character of ISO
    8859-1."""
    if form.family is Family.FLOAT:
        return plain_double(form)
    if form.family is Family.TEXT:
        return utf8_text
    if form.family is Family.BYTES:
        return latin1_text
    return text(form, zone)
