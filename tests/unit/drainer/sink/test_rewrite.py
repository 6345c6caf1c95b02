"""What a DDL's text becomes on its way to another server."""

from __future__ import annotations

import pytest

from drainer.sink.mysql.comments import without_tidb_clauses
from drainer.sink.mysql.rewrite import Defaults, Dialect, rewrite

MARIADB = Dialect("mariadb", frozenset({"utf8mb4_bin", "utf8mb4_general_ci", "latin1_bin", "utf8mb4_nopad_bin",
                                        "utf8mb4_uca1400_nopad_ai_ci", "utf8_bin"}))  # fmt: skip
MYSQL = Dialect("mysql", frozenset({"utf8mb4_bin", "utf8mb4_0900_ai_ci"}))
TIDB = Dialect("tidb", frozenset())
UTF8 = Defaults("utf8mb4", "utf8mb4_bin")


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (
            "CREATE TABLE `t` (`a` INT)",
            "CREATE TABLE `t` (`a` INT) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        ),
        (
            "CREATE TABLE `t` (`a` INT) COMMENT 'x' PARTITION BY HASH (`a`) PARTITIONS 3;",
            "CREATE TABLE `t` (`a` INT) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT 'x' "
            "PARTITION BY HASH (`a`) PARTITIONS 3;",
        ),
        (
            "CREATE TABLE `t` (`a` VARCHAR(9) CHARACTER SET LATIN1) DEFAULT CHARACTER SET = UTF8MB4",
            "CREATE TABLE `t` (`a` VARCHAR(9) CHARACTER SET LATIN1 COLLATE latin1_bin) "
            "DEFAULT CHARACTER SET = UTF8MB4 COLLATE utf8mb4_bin",
        ),
        (
            "CREATE TABLE `t` (`a` INT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci",
            "CREATE TABLE `t` (`a` INT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci",
        ),
        (
            "CREATE TABLE `t` (`ENGINE` INT) ENGINE = 'MyISAM' COLLATE utf8mb4_bin",
            "CREATE TABLE `t` (`ENGINE` INT) ENGINE = InnoDB COLLATE utf8mb4_bin",
        ),
        ("ALTER TABLE `t` ENGINE = BLACKHOLE", "ALTER TABLE `t` ENGINE = InnoDB"),
        ("CREATE TABLE `t` LIKE `u`", "CREATE TABLE `t` LIKE `u`"),
        ("CREATE TABLE `t` (LIKE `u`)", "CREATE TABLE `t` (LIKE `u`)"),
        ("CREATE DATABASE `d`;", "CREATE DATABASE `d` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;"),
        ("CREATE DATABASE `d` COLLATE = utf8mb4_bin", "CREATE DATABASE `d` COLLATE = utf8mb4_bin"),
        (
            "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4, COMMENT = 'CHARSET utf8mb4'",
            "ALTER TABLE `t` CONVERT TO CHARACTER SET UTF8MB4 COLLATE utf8mb4_bin, COMMENT = 'CHARSET utf8mb4'",
        ),
        (
            "ALTER TABLE `t` ADD COLUMN `g` CHAR(9) AS (CAST(`a` AS CHAR CHARACTER SET UTF8MB4)) VIRTUAL NOT NULL",
            "ALTER TABLE `t` ADD COLUMN `g` CHAR(9) AS (CAST(`a` AS CHAR CHARACTER SET UTF8MB4)) VIRTUAL ",
        ),
        (
            "ALTER TABLE `t` ALTER INDEX `i` INVISIBLE, ADD INDEX `j`(`INVISIBLE`) VISIBLE",
            "ALTER TABLE `t` ALTER INDEX `i` IGNORED, ADD INDEX `j`(`INVISIBLE`) NOT IGNORED",
        ),
        ("ALTER TABLE `t` DROP CHECK `c`", "ALTER TABLE `t` DROP CONSTRAINT IF EXISTS `c`"),
        ("ALTER TABLE `t` DROP INDEX `i`", "ALTER TABLE `t` DROP INDEX IF EXISTS `i`"),
        ("CREATE INDEX `i` ON `t` ((`a`+`b`))", ""),
        ("ALTER TABLE `t` ADD INDEX `i`((LOWER(`v`)))", ""),
        ("ALTER TABLE `t` ADD INDEX `i`((`v`*2)), ADD COLUMN `x` INT", "ALTER TABLE `t`  ADD COLUMN `x` INT"),
        ("ALTER TABLE `t` ADD COLUMN `x` INT, ADD INDEX `i`((`v`*2))", "ALTER TABLE `t` ADD COLUMN `x` INT"),
        (
            "CREATE TABLE `t` (`a` INT,`b` INT,INDEX `k`((`a`*2)),UNIQUE `u`(`b`)) COLLATE utf8mb4_bin",
            "CREATE TABLE `t` (`a` INT,`b` INT,UNIQUE `u`(`b`)) COLLATE utf8mb4_bin",
        ),
        (
            "CREATE TABLE `t` (`a` INT CHECK(`a`>0) ENFORCED,CHECK(`a`<9) NOT ENFORCED) COLLATE utf8mb4_bin",
            "CREATE TABLE `t` (`a` INT CHECK(`a`>0) ,CHECK(`a`<9) ) COLLATE utf8mb4_bin",
        ),
        (
            "ALTER TABLE `p` EXCHANGE PARTITION `x` WITH TABLE `n` WITHOUT VALIDATION",
            "ALTER TABLE `p` EXCHANGE PARTITION `x` WITH TABLE `n` ",
        ),
    ],
)
def test_into_mariadb(sql: str, wanted: str) -> None:
    assert rewrite(sql, UTF8, MARIADB).sql == wanted


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (
            "CREATE TABLE `t` (`a` INT CHECK(`a`>0) ENFORCED NOT NULL,CHECK((`a`<9)) NOT ENFORCED) COLLATE utf8mb4_bin",
            "CREATE TABLE `t` (`a` INT  NOT NULL) COLLATE utf8mb4_bin",
        ),
        (
            "CREATE TABLE `t` (`a` INT,CONSTRAINT `c` CHECK(`a`>0),CONSTRAINT CHECK(`a`>1),KEY (`a`)) "
            "COLLATE utf8mb4_bin",
            "CREATE TABLE `t` (`a` INT,KEY (`a`)) COLLATE utf8mb4_bin",
        ),
        ("ALTER TABLE `t` ADD CONSTRAINT `c` CHECK(`a`>0) NOT ENFORCED", ""),
        (
            "ALTER TABLE `t` ADD CHECK(`a`>0), ADD COLUMN `b` INT CONSTRAINT `d` CHECK(`b`>1)",
            "ALTER TABLE `t`  ADD COLUMN `b` INT ",
        ),
        ("ALTER TABLE `t` ADD COLUMN `check` INT AS (`check`)", "ALTER TABLE `t` ADD COLUMN `check` INT AS (`check`)"),
        ("CREATE VIEW `v` AS SELECT 1 WITH CHECK OPTION", "CREATE VIEW `v` AS SELECT 1 WITH CHECK OPTION"),
    ],
)
def test_checks_that_upstream_forgets_are_forgotten(sql: str, wanted: str) -> None:
    assert rewrite(sql, Defaults("utf8mb4", "utf8mb4_bin", checks=False), MARIADB).sql == wanted


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (
            "ALTER TABLE `t` ADD FOREIGN KEY `i`(`A`, `b`) REFERENCES `p`(`x`,`y`) ON DELETE SET NULL",
            "ALTER TABLE `t` ADD CONSTRAINT `fk_1_7` FOREIGN KEY `i`(`A`, `b`) REFERENCES `p`(`x`,`y`) "
            "ON DELETE SET NULL",
        ),
        (
            "ALTER TABLE `t` ADD CONSTRAINT FOREIGN KEY (`c`) REFERENCES `p`(`x`), DROP FOREIGN KEY `z`",
            "ALTER TABLE `t` ADD CONSTRAINT `fk_2_7` FOREIGN KEY (`c`) REFERENCES `p`(`x`), "
            "DROP FOREIGN KEY IF EXISTS `z`, DROP FOREIGN KEY IF EXISTS `z_7`",
        ),
        (
            "ALTER TABLE `t` ADD CONSTRAINT `own` FOREIGN KEY (`c`) REFERENCES `p`(`x`)",
            "ALTER TABLE `t` ADD CONSTRAINT `own` FOREIGN KEY (`c`) REFERENCES `p`(`x`)",
        ),
        (
            "CREATE TABLE `t` (`a` INT REFERENCES `d`.`p`(`x`) ON DELETE SET NULL ON UPDATE CASCADE NOT NULL,"
            "`references` INT,FOREIGN KEY (`c`) REFERENCES `p`(`x`)) COLLATE utf8mb4_bin",
            "CREATE TABLE `t` (`a` INT  NOT NULL,`references` INT,"
            "CONSTRAINT `fk_2_7` FOREIGN KEY (`c`) REFERENCES `p`(`x`)) COLLATE utf8mb4_bin",
        ),
        (
            "CREATE TABLE `t` (`a` INT REFERENCES `p`) COLLATE utf8mb4_bin",
            "CREATE TABLE `t` (`a` INT ) COLLATE utf8mb4_bin",
        ),
    ],
)
def test_foreign_keys_are_upstreams(sql: str, wanted: str) -> None:
    """A column's REFERENCES is nothing to TiDB; a name that it made up is needed to drop the key."""
    keys = ((("a", "b"), "fk_1"), (("c",), "fk_2"))
    assert rewrite(sql, Defaults("utf8mb4", "utf8mb4_bin", foreign_keys=keys, table_id=7), MARIADB).sql == wanted


def test_collations_the_destination_lacks_are_replaced_with_a_note() -> None:
    sql = (
        "CREATE TABLE `t` (`a` VARCHAR(9) COLLATE utf8mb4_0900_ai_ci) DEFAULT CHARSET=utf8mb4 "
        "COLLATE='utf8mb4_0900_bin'"
    )
    made = rewrite(sql, UTF8, MARIADB)
    assert made.sql == (
        "CREATE TABLE `t` (`a` VARCHAR(9) COLLATE utf8mb4_uca1400_nopad_ai_ci) DEFAULT CHARSET=utf8mb4 "
        "COLLATE=utf8mb4_nopad_bin"
    )
    assert len(made.notes) == 2
    assert rewrite(sql.replace("0900_bin", "bin"), UTF8, MYSQL).notes == ()


def test_an_unknown_collation_is_left_to_the_servers_own_error() -> None:
    assert "COLLATE klingon" in rewrite("CREATE DATABASE `d` COLLATE klingon", UTF8, MARIADB).sql


def test_timestamps_are_written_in_utc() -> None:
    defaults = Defaults("utf8mb4", "utf8mb4_bin", (("b", "2020-06-01 07:00:00"),))
    sql = "ALTER TABLE `t` ADD COLUMN `a` DATETIME DEFAULT _UTF8MB4'2020-06-01 12:00:00', " \
          "ADD COLUMN `B` TIMESTAMP NOT NULL DEFAULT _UTF8MB4'2020-06-01 12:00:00' COMMENT 'x'"  # fmt: skip
    assert rewrite(sql, defaults, MYSQL).sql.endswith("NOT NULL DEFAULT _UTF8MB4'2020-06-01 07:00:00' COMMENT 'x'")
    assert "DATETIME DEFAULT _UTF8MB4'2020-06-01 12:00:00'" in rewrite(sql, defaults, MYSQL).sql
    alter = "ALTER TABLE `t` ALTER COLUMN `b` SET DEFAULT '2020-06-01 12:00:00'"
    assert rewrite(alter, defaults, MYSQL).sql == alter.replace("12:00:00", "07:00:00")


def test_tidb_gets_its_own_clauses() -> None:
    sql = "CREATE TABLE `t` (`a` INT PRIMARY KEY /*T![clustered_index] CLUSTERED */) COLLATE utf8mb4_bin"
    assert rewrite(sql, UTF8, TIDB).sql == sql


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("ALTER TABLE `t` ADD COLUMN `a` INT, /*T! SHARD_ROW_ID_BITS = 0 */", "ALTER TABLE `t` ADD COLUMN `a` INT"),
        ("ALTER TABLE `t` ADD COLUMN `a` INT, /*T! X */;", "ALTER TABLE `t` ADD COLUMN `a` INT;"),
        ("ALTER TABLE `t` /*T![x] X */, ADD COLUMN `a` INT", "ALTER TABLE `t` ADD COLUMN `a` INT"),
        ("ALTER TABLE `d`.`t` ADD `a` INT, /*T! X */, ADD `b` INT", "ALTER TABLE `d`.`t` ADD `a` INT, ADD `b` INT"),
        ("ALTER TABLE `t` /*T![x] X */", "ALTER TABLE `t`"),
        ("CREATE TABLE `t` (`a` INT /*T![a] B */ COMMENT '/*T!*/')", "CREATE TABLE `t` (`a` INT COMMENT '/*T!*/')"),
        ("CREATE TABLE `t` (PRIMARY KEY (`a`) /*T![c] CLUSTERED */)", "CREATE TABLE `t` (PRIMARY KEY (`a`))"),
        ("SELECT 1 /* plain */", "SELECT 1 /* plain */"),
    ],
)  # fmt: skip
def test_tidb_clauses_leave_a_statement_behind(sql: str, wanted: str) -> None:
    assert without_tidb_clauses(sql) == wanted
