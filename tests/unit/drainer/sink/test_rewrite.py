"""What a DDL's text becomes on its way to another server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.ddl.lexer import pieces, tokens
from drainer.sink.mysql.comments import without_comments
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
        ("ALTER TABLE `t` ADD COLUMN `a` INT, /*T! AUTO_ID_CACHE = 1 */;", "ALTER TABLE `t` ADD COLUMN `a` INT;"),
        ("ALTER TABLE `t` /*T![ttl] REMOVE TTL */, ADD COLUMN `a` INT", "ALTER TABLE `t` ADD COLUMN `a` INT"),
        ("ALTER TABLE `t` ADD `a` INT, /*T! CLUSTERED */, ADD `b` INT", "ALTER TABLE `t` ADD `a` INT, ADD `b` INT"),
        ("ALTER TABLE `d`.`t` /*T![ttl] REMOVE TTL */, ADD `b` INT", "ALTER TABLE `d`.`t` ADD `b` INT"),
        ("ALTER TABLE `t` /*T![ttl] REMOVE TTL */", "ALTER TABLE `t`"),
        ("CREATE TABLE `t` (`a` INT /*T![a] B */ COMMENT '/*T!*/')", "CREATE TABLE `t` (`a` INT COMMENT '/*T!*/')"),
        ("CREATE TABLE `t` (PRIMARY KEY (`a`) /*T![c] CLUSTERED */)", "CREATE TABLE `t` (PRIMARY KEY (`a`))"),
        ("CREATE TABLE `t` (`a` BIGINT /*T![auto_rand] AUTO_RANDOM(5, 64) */)", "CREATE TABLE `t` (`a` BIGINT)"),
        (
            "CREATE TABLE `t` (`a` INT) /*T![ttl] TTL=`a` + INTERVAL 1 DAY, TTL_JOB_INTERVAL='*/' */ COMMENT 'x'",
            "CREATE TABLE `t` (`a` INT) COMMENT 'x'",
        ),
    ],
)  # fmt: skip
def test_tidb_clauses_leave_a_statement_behind(sql: str, wanted: str) -> None:
    assert without_comments(sql) == wanted


@pytest.mark.parametrize(
    ("code", "own"),
    [
        ("AUTO_RANDOM(5, 64)", True),
        ("AUTO_RANDOM(5), TTL_ENABLE = 'OFF'", True),
        ("REMOVE TTL", True),
        ("TTL = a + INTERVAL 1 DAY, REMOVE TTL", True),
        ("TTL = IF(a, b, c) + INTERVAL 1 DAY", True),
        ("REMOVE x", False),
        ("TTL = a, REMOVE x", False),
        ("TTL = a, x INT", False),
        ("x INT, TTL = a", False),
        ("AUTO_RANDOM(5), x INT", False),
        ("AUTO_RANDOM((5), (6)), x INT", False),
        ("SHARD_ROW_ID_BITS = 4 COMMENT 'x'", False),
        ("FORCE INDEX x", False),
        ("x", False),
    ],
)
def test_a_comment_of_tidbs_is_its_own_if_all_of_it_is(code: str, own: bool) -> None:
    """What is left out must concern TiDB's storage alone; anything else stands in the open."""
    assert without_comments(f"ALTER TABLE t /*T! {code} */") == ("ALTER TABLE t" if own else f"ALTER TABLE t {code}")


def test_an_empty_comment_of_tidbs() -> None:
    assert without_comments("ALTER TABLE t /*T! */ ADD a INT") == "ALTER TABLE t ADD a INT"


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("ALTER TABLE t ADD a INT /*M! , DROP b */", "ALTER TABLE t ADD a INT"),
        ("ALTER TABLE t ADD a INT /*M!100100 , DROP b */;", "ALTER TABLE t ADD a INT;"),
        ("ALTER TABLE t ADD a INT/*!999999 , DROP b*/", "ALTER TABLE t ADD a INT, DROP b"),
        ("ALTER TABLE t ADD a INT/*! , DROP b*/", "ALTER TABLE t ADD a INT, DROP b"),
        ("ALTER TABLE t COMMENT /*!1234567*/", "ALTER TABLE t COMMENT 7"),
        ("ALTER TABLE t COMMENT /*!1234*/", "ALTER TABLE t COMMENT 1234"),
        ("ALTER TABLE t /*T! ADD COLUMN b INT */", "ALTER TABLE t ADD COLUMN b INT"),
        ("ALTER TABLE t /*T![ttl,placement] ADD COLUMN b INT */", "ALTER TABLE t ADD COLUMN b INT"),
        ("ALTER TABLE t ADD a INT/*T![ttl,x] , ADD COLUMN b INT */", "ALTER TABLE t ADD a INT"),
        ("ALTER TABLE t /*T! REMOVE PARTITIONING */", "ALTER TABLE t REMOVE PARTITIONING"),
        ("ALTER TABLE t /*!50100 ADD a INT /* not /*! this */, ADD b INT */", "ALTER TABLE t ADD a INT, ADD b INT"),
        ("ALTER TABLE t /*! ADD /*! a INT */, ADD b INT", "ALTER TABLE t ADD a INT, ADD b INT"),
        ("ALTER TABLE t /*! ADD a INT -- */ , ADD b INT\n, ADD c INT */", "ALTER TABLE t ADD a INT, ADD c INT"),
        ("CREATE VIEW v AS SELECT /*+ SET_VAR(sql_mode='') */ 1", "CREATE VIEW v AS SELECT 1"),
        ("ALTER TABLE t COMMENT '/*M! x */' # /*! , DROP a */", "ALTER TABLE t COMMENT '/*M! x */'"),
        ("ALTER TABLE `/*M!x*/` ADD a INT DEFAULT 1--1", "ALTER TABLE `/*M!x*/` ADD a INT DEFAULT 1--1"),
        ("ALTER TABLE t ADD a INT -- /*! , DROP b */\n;", "ALTER TABLE t ADD a INT;"),
        ("/* first */ ALTER TABLE t ADD a INT /* never closed", "ALTER TABLE t ADD a INT"),
    ],
)
def test_what_upstream_takes_as_a_comment_is_none_downstream(sql: str, wanted: str) -> None:
    """And what it runs stands in the open: servers differ in what they take as code."""
    assert without_comments(sql) == wanted
    assert without_comments(wanted) == wanted


def test_an_operators_text_keeps_its_comments() -> None:
    sql = "ALTER TABLE `t` /*M! ADD `a` INT */"
    assert rewrite(sql, Defaults(), MARIADB, operators=True).sql == sql
    assert rewrite(sql, Defaults(), TIDB).sql == sql


_MEANINGS = st.sampled_from(
    [
        *((text, True) for text in ("a", "`b``/*!`", "'c*/ ''#'", '"d\\"-- "', ",", "(", ")", "1", "-", "@x", "é€")),
        *((text, False) for text in ("/* x */", "/**/", "/*M! x */", "/*M!100 y*/", "/*+ z */", "/*T![no] w */", " ")),
        *((text, False) for text in ("-- x */ /*!\n", "#*/ '\n", "\n", "/*T![ttl,no] v '*/", "/*t! x */", "/* ' */")),
        ("/*/*!*/", False),
    ]
)  # fmt: skip


@given(st.lists(st.tuples(st.lists(_MEANINGS), st.sampled_from(["", "/*!", "/*!50100", "/*!123456", "/*T!"]))))
def test_any_comments_around_and_in_any_code(parts: list[tuple[list[tuple[str, bool]], str]]) -> None:
    """What is left are the tokens that were meant, and nothing that any server could take for a comment."""
    sql, meant = "", []
    for inner, opened in parts:
        sql += f"{opened} " + " ".join(text for text, _ in inner) + (" */ " if opened else " ")
        meant += [text for text, counts in inner if counts]
    left = without_comments(sql)
    found = list(pieces(left))
    assert {piece.kind for piece in found} <= {"space", "name", "text", "word", "mark"}
    wanted = [token.value for text in meant for token in tokens(text)]
    assert [token.value for token in tokens(left)] == wanted == [token.value for token in tokens(sql)]
