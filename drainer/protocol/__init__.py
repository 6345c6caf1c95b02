"""Message formats of row changes, DDLs and resolved timestamps: encoders and decoders, one folder each. Pure."""
