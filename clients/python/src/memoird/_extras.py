"""Checks that the packages of an adapter are installed."""

from __future__ import annotations

from importlib.util import find_spec

_PACKAGES = {
    "openai-agents": ("agents",),
    "langchain": ("langchain_core",),
    "langchain-agents": ("langchain", "langgraph"),
    "pydantic-ai": ("pydantic_ai",),
    "agent-framework": ("agent_framework",),
    "langgraph": ("langgraph", "langgraph.checkpoint.base"),
    "adk": ("google.adk",),
    "anthropic": ("anthropic",),
}


def needs(extra: str) -> None:
    """Raises ModuleNotFoundError with the extra's name unless its packages are installed."""
    for package in _PACKAGES[extra]:
        try:
            is_installed = find_spec(package) is not None
        except ModuleNotFoundError:
            # A parent package is missing.
            is_installed = False
        if not is_installed:
            raise ModuleNotFoundError(
                f"this adapter needs {package}: pip install 'memoird[{extra}]'", name=package
            )
