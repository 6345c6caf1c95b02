"""The store: writes, resolves, recovers and reads binlogs. Independent of transport and registry."""
