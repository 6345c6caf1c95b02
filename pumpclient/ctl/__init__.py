"""binlogctl: the operator's command line tool for the registry and the pumps."""
