"""The options of the protocols as settings of `[syncer.to]`, made from their table (drainer/protocol/options.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from binlog.runtime.fields import Section
from pydantic import Field, create_model

from drainer.protocol.option_readers import protocols_text
from drainer.protocol.options import Option, ProtocolOptions, option_table
from drainer.sink.kafka.settings.option_values import MessageBytes, Switch, whole_number
from drainer.sink.kafka.settings.original_tables import in_ticdc_table


def _type_of(hint: object, option: Option) -> object:
    """Return the type of a setting, which reads the texts of a sink URI, too."""
    if hint is bool:
        return Switch
    if hint is int:
        return MessageBytes if option.is_size else Annotated[int, whole_number(option.least)]
    return hint


def _settings() -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(ProtocolOptions)
    for name, (field, option) in option_table().items():
        if option.about:
            about = f"for {protocols_text(option.packages)}: {option.about}" if option.packages else option.about
            extra = in_ticdc_table(option.table)
            info = Field(field.default, repr=field.repr, description=about, json_schema_extra=extra)
            yield name, (_type_of(hints[name], option), info)


if TYPE_CHECKING:

    class ProtocolSection(Section):
        """A setting for each option that the drainer has."""

else:
    ProtocolSection = create_model("ProtocolSection", __base__=Section, **dict(_settings()))
