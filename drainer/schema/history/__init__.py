"""Sources of DDL jobs: a file, a TiDB status port, etcd."""
