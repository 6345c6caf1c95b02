"""DDL statements generated from the difference of two TableInfos. Pure.

table_diff    the differences
mysql_*       their SQL for servers of the MySQL family
lexer         parsing of SQL text, where TableInfos are not enough
"""
