"""What the drainer knows of upstream's schemas: DDL jobs in, the TableInfo of a moment out."""
