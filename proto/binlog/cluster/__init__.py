"""How programs find one another: etcd, PD, TiKV, the registry of nodes, timestamps."""
