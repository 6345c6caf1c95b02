"""binlogctl: what an operator asks the registry and the pumps."""
