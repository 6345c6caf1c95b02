"""TiCDC's Avro: one message for each row. Key and value are records, each with a schema id in front. Pure.

encoder = AvroEncoder(options)                         # or registry.make_encoder
for required in encoder.required_schemas(topic, table):
    ...                                                # the driver registers the schema and gets its id
encoder = encoder.with_ids(ids)                        # can be pickled and sent to the executors
encoder.table(table, topic).encode_columns(changes)    # raises SchemaIdMissing if a schema must be registered first
"""
