"""Codecs of TiDB's row data and schema JSON. Pure functions; invalid or truncated input raises DecodeError.

bytes of a value      varint, number, memcomparable, decimal, time, json (json_encode), and datum for all of them
bytes of a row        row (v1), row_v2, mutation (the rows of a transaction), key (keys of the store)
meaning of a value    unflatten (datum to text or Python), flatten (Python to datum), default (of a missing column)
schema                types, column, index, partition, table, job; document reads their JSON
"""
