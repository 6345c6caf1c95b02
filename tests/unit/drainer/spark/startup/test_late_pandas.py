"""pyspark asks for pandas at every start; it is loaded when somebody uses it. Each case in a new interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

BEGIN = "import sys\nfrom drainer.spark.startup.worker_imports import defer_pandas\ndefer_pandas()\n"
ARRAY = "import pyarrow as pa\npa.array([1, 2])\n"
LOADED = "print('loaded' if 'pandas._libs' in sys.modules else 'not loaded')"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_pyspark_finds_pandas_without_loading_it() -> None:
    """Its check, its module for tests, which a list for the JVM imports, and the function that mapInArrow wraps."""
    asks = (
        "from pyspark.sql.pandas.utils import require_minimum_pandas_version\nrequire_minimum_pandas_version()\n"
        "import pyspark.testing.utils\nassert pyspark.testing.utils.have_pandas\n"
        "import pyspark.sql.pandas.functions\n"
    )
    assert run(BEGIN + asks + LOADED) == "not loaded"


def test_pyspark_without_late_import_loads_pandas() -> None:
    """Else this module is not needed any more."""
    assert run(f"import sys, pyspark.testing.utils\n{LOADED}") == "loaded"


def test_use_of_late_pandas_loads_real_module() -> None:
    for use in (
        "import pandas\nassert pandas.DataFrame({'a': [1]}).shape == (1, 1)\n",
        "from pandas import Series\nassert Series([1, 2]).sum() == 3\n",
        "import pandas\npandas.DataFrame\nimport pandas.core.frame as f\nassert f.DataFrame is pandas.DataFrame\n",
    ):
        assert run(f"{BEGIN}{use}import pandas\nassert type(pandas).__name__ == 'module'\n{LOADED}") == "loaded"


def test_conversion_of_rows_to_columns_does_not_load_pandas() -> None:
    """The first batch would take a second longer."""
    assert run(f"{BEGIN}{ARRAY}{LOADED}") == "not loaded"


def test_the_modules_of_the_driver_and_of_tasks_do_not_load_it() -> None:
    """The driver installs the placeholder after most imports: an array of Python values in a module would load it."""
    imports = (
        "import drainer.service.daemon, drainer.spark.query, drainer.spark.source.planner\n"
        "import drainer.spark.source.executor, drainer.spark.startup.session\n"
        "from drainer.sink.registry import KINDS, import_writers, sink\nimport_writers()\n"
        "from importlib import import_module\n"
        "for kind in KINDS.values():\n    import_module(kind.make.partition(':')[0])\n"
    )
    assert run(f"import sys\n{imports}{LOADED}") == "not loaded"
    assert run(f"import sys\nfrom drainer.spark.startup import worker_imports\nworker_imports.load()\n{LOADED}") == (
        "not loaded"
    )


def test_conversion_of_rows_without_late_import_loads_pandas() -> None:
    """Else pyarrow need not be told."""
    assert run(f"import sys\n{ARRAY}{LOADED}") == "loaded"


def test_pandas_imported_before_late_import_is_kept() -> None:
    assert run(f"import pandas as before\n{BEGIN}import pandas\nassert pandas is before\nprint('same')") == "same"


def test_late_import_without_pandas_installed_adds_no_module() -> None:
    hidden = (
        "from importlib import metadata\ndef absent(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = absent\n"
    )
    assert run(f"{hidden}{BEGIN}print('pandas' in sys.modules)") == "False"
