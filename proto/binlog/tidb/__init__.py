"""Pure codecs of TiDB's row data and schema JSON: values in, values out; DecodeError for whatever is torn.

bytes of a value      varint, number, memcomparable, decimal, time, json (json_encode), and datum over them all
bytes of a row        row (v1), row_v2, mutation (the rows of a transaction), key (keys of the store)
what a value means    unflatten (datum to text or Python), flatten (Python to datum), default (of a missing column)
schema                types, column, index, partition, table, job; document reads their JSON
"""
