#!/usr/bin/env bash
# Install the missing ones of: uv java mariadb kafka registry kafka-connect grpc-java delta s3a h2spec promtool chromium systemd.
# The script prints what it installs, asks no questions, and fails with one clear sentence.
#   scripts/need.sh uv java mariadb
# uv is installed in .tools/ of this checkout. Debian packages are installed if we are root or sudo needs no password.
# Jars are downloaded from Maven Central to ~/.cache/tidb-binlog. h2spec is built there if Go is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
  else return 126
  fi
}

debian() { # debian PACKAGE WHAT: install one Debian package, or print what to install by hand
  command -v apt-get >/dev/null || die "$2 is missing and this is not a Debian: install the equivalent of $1"
  say "installing $1 (for $2)"
  as_root true || die "$2 is missing: run 'apt-get install $1' as root (no root or password-less sudo here)"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null 2>&1 || true
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>"$here/.need.log" \
    || die "apt-get install $1 failed: $(tail -n 3 "$here/.need.log")"
  rm -f "$here/.need.log"
}

need_python() {
  command -v python3 >/dev/null || die "python3 is missing: Python 3.11 or later is the one thing to bring along"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || die "python3 is $(python3 -V 2>&1 | cut -d' ' -f2): Python 3.11 or later is needed"
}

need_uv() {
  need_python
  if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then return; fi
  [ ! -x "$here/.tools/bin/uv" ] || return 0
  say "installing uv into .tools/"
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    debian "python3-venv" "the Python module venv"
  fi
  rm -rf "$here/.tools"
  python3 -m venv "$here/.tools" && "$here/.tools/bin/python" -m pip install -q --disable-pip-version-check uv \
    || die "could not install uv with pip: is the Python package index reachable?"
}

java_fits() { # whether there is a Java 17 or later with the module that Spark requires
  local java=${JAVA_HOME:+$JAVA_HOME/bin/java}
  [ -x "${java:-/nonexistent}" ] || java=$(command -v java || true)
  [ -n "$java" ] && "$java" --list-modules 2>/dev/null | grep -q '^jdk.incubator.vector'
}

need_java() {
  java_fits && return
  debian openjdk-17-jre-headless "Java 17"
  java_fits || die "a Java without jdk.incubator.vector comes first: unset JAVA_HOME or put Java 17 first on PATH"
}

need_mariadb() {
  PATH=$PATH:/usr/sbin:/usr/local/sbin
  if command -v mariadbd >/dev/null || command -v mysqld >/dev/null; then return; fi
  debian mariadb-server "a real MariaDB for the tests"
}

jars() { # jars NAME WHAT: install the files of the list NAME-<version>.txt; the script prints what went wrong
  need_python
  need_java
  python3 "$here/scripts/maven_files.py" "$here/scripts/jars/$1"-[0-9]*.txt >/dev/null || die "$2 could not be installed"
}

need_kafka() { jars kafka "the Kafka broker for the tests"; }

need_registry() { jars apicurio-registry "the schema registry for the tests"; }

need_kafka_connect() { jars kafka-connect "Kafka Connect with Debezium's JDBC sink, a reader for the tests,"; }

need_grpc_java() { jars grpc-java "gRPC for Java, a client for the tests,"; }

need_delta() { jars delta "Delta Lake, tables for the tests,"; }

need_s3a() { jars s3a "Hadoop's S3 file system, for the tests,"; }

need_h2spec() { # optional, because it needs Go: its test is skipped without it
  local folder=$HOME/.cache/tidb-binlog/h2spec-2.2.1
  if command -v h2spec >/dev/null || [ -x "$folder/h2spec" ] || ! command -v go >/dev/null; then return; fi
  say "building h2spec with Go into $folder"
  GOBIN=$folder timeout 300 go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible >/dev/null 2>&1 \
    || say "h2spec could not be built: its test will be skipped"
}

need_promtool() { # only the program, unpacked from Debian's package, so that no Prometheus service is installed
  local folder=$HOME/.cache/tidb-binlog/promtool
  if command -v promtool >/dev/null || [ -x "$folder/promtool" ]; then return; fi
  command -v apt-get >/dev/null || die "promtool is missing and this is not a Debian: install Prometheus' promtool"
  say "downloading promtool (for the tests of the alarms)"
  local made; made=$(mktemp -d)
  chmod 0755 "$made"
  (
    cd "$made"
    apt-get download -qq prometheus >/dev/null 2>&1 \
      || { as_root apt-get update -qq >/dev/null 2>&1; apt-get download -qq prometheus >/dev/null 2>&1; } \
      && dpkg-deb -x prometheus*.deb x && mkdir -p "$folder" && mv x/usr/bin/promtool "$folder/"
  ) || die "promtool could not be installed: apt-get download prometheus failed"
  rm -rf "$made"
}

need_chromium() {
  command -v chromium >/dev/null || debian chromium "a real browser for the tests of the pages"
  # Playwright's driver is a Node.js that is linked with it; no Debian package depends on it here.
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q 'libatomic\.so\.1' || debian libatomic1 "Playwright's driver"
}

need_systemd() { # only its programs that check units; systemd need not run
  command -v systemd-analyze >/dev/null || debian systemd "the tests of the systemd units"
}

[ $# -gt 0 ] || die "usage: $0 uv|java|mariadb|kafka|registry|kafka-connect|grpc-java|delta|s3a|h2spec|promtool|chromium|systemd ..."
for what in "$@"; do
  case $what in
    uv) need_uv ;;
    java) need_java ;;
    mariadb) need_mariadb ;;
    kafka) need_kafka ;;
    registry) need_registry ;;
    kafka-connect) need_kafka_connect ;;
    grpc-java) need_grpc_java ;;
    delta) need_delta ;;
    s3a) need_s3a ;;
    h2spec) need_h2spec ;;
    promtool) need_promtool ;;
    chromium) need_chromium ;;
    systemd) need_systemd ;;
    *) die "unknown: $what (uv, java, mariadb, kafka, registry, kafka-connect, grpc-java, delta, s3a, h2spec, promtool, chromium, systemd)" ;;
  esac
done
