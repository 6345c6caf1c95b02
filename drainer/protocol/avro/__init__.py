"""TiCDC's Avro: one message for each row, its key and its value records with a schema id before them. Pure.

encoder = make_encoder(options)                        # or registry.make_encoder
for required in encoder.required_schemas(topic, table):
    ...                                                # the driver registers it and gets an id
encoder = encoder.with_ids(ids)                        # picklable; goes to the executors
encoder.in_topic(topic).table(table).encode(changes)   # SchemaIdMissing where the driver has to come first
"""
