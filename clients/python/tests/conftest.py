"""Skips the tests of an adapter if its framework is not installed."""

import importlib.util

FRAMEWORKS = {
    "test_openai_agents.py": "agents",
    "test_langchain.py": "langchain_core",
    "test_langchain_agents.py": "langchain",
    "test_pydantic_ai.py": "pydantic_ai",
    "test_agent_framework.py": "agent_framework",
    "test_langgraph.py": "langgraph",
    "test_langgraph_window.py": "langgraph",
    "test_adk.py": "google.adk",
    "test_anthropic.py": "anthropic",
}

collect_ignore = [
    file for file, module in FRAMEWORKS.items() if not importlib.util.find_spec(module)
]
