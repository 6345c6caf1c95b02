"""Message formats of row changes, DDLs and resolved timestamps: an encoder and a decoder for each. Pure."""
