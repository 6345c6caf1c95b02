"""Codecs of TiDB's row data and schema JSON. Pure functions; invalid or truncated input raises DecodeError.

bytes of a value      varint, decimal, time, json, and datum for all of them
bytes of a row        row (v1 and v2), mutation (the rows of a transaction), key (keys of the store)
meaning of a value    flatten (Python to datum, datum to text, and the value of a missing column)
schema                types, table (and its parts), job; document reads their JSON
"""
