"""DDL as the difference of two TableInfos, and the statements that make it. Pure; knows no job, no server, no Spark.

column_pairs, table_diff, partition_diff    what changed
dialect, mysql_*                            the same said for a server of the MySQL family
lexer, rename_parser                        the little reading of SQL text that is left
"""
