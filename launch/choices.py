"""Parsing of a choice with its settings, as the launch scripts write it: `top_k:share=0.1`."""


def point(section: str, choice: str) -> dict[str, str]:
    """The config overrides of a choice: `section.name`, and `section.KEY` for each `KEY=VALUE`.

    The name may also be MODULE:FUNCTION or FILE.py:FUNCTION, as everywhere in a config.
    """
    parts = choice.split(":")
    name = ":".join(part for part in parts if "=" not in part)
    settings = dict(part.split("=", 1) for part in parts if "=" in part)
    return {f"{section}.name": name, **{f"{section}.{key}": v for key, v in settings.items()}}


def folder(choice: str) -> str:
    """A folder name for the choice: its text with `/` replaced by `_`."""
    return choice.replace("/", "_")
