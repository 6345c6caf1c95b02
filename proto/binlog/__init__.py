"""The contract: everything two programs must agree on."""
