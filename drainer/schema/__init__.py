"""The drainer's knowledge of upstream's schemas: DDL jobs in, the TableInfo at a given time out."""
