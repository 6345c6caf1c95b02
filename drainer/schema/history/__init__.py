"""Where DDL jobs come from: a file, a TiDB's status port, etcd."""
