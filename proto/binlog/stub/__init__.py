"""Stand-ins that run in one process, for tests and for embedding: etcd in memory, a PD with a settable clock."""
