"""MySQL, MariaDB and TiDB: rows applied by the driver in one transaction, or by executors in marked chunks."""
