"""Clients of the cluster: etcd, PD, TiKV, the registry of nodes, and timestamps."""
