"""Sweeps over GPUs, batch sizes and learning-rate rules.

`run_sweep` runs a sweep from a program or a notebook, `plan_sweep` lists what it would run, and `load_results` reads
the results of a sweep. Importing this package has no side effects and is fast.
"""

# Not from `typing`: a file of that name in the user's folder would end the program before it could name that file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.library import ConfigError, SweepResults, load_results, plan_sweep, run_sweep

__all__ = ["ConfigError", "SweepResults", "load_results", "plan_sweep", "run_sweep"]


def __getattr__(name: str) -> object:
    """Import the library on first use: imports delay the moment from which the command line handles Ctrl-C."""
    if name == "__version__":
        from importlib.metadata import version

        return version("sweep-orchestrator")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator import library

    return getattr(library, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
