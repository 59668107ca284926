"""How the launch scripts write a choice with its settings: `top_k:share=0.1`."""


def point(section: str, choice: str) -> dict[str, str]:
    """The overrides of a config: `section.name`, and `section.KEY` for each `KEY=VALUE`.

    The name may be MODULE:FUNCTION, as everywhere in a config.
    """
    parts = choice.split(":")
    name = ":".join(part for part in parts if "=" not in part)
    settings = dict(part.split("=", 1) for part in parts if "=" in part)
    return {f"{section}.name": name, **{f"{section}.{key}": v for key, v in settings.items()}}


def folder(choice: str) -> str:
    """The choice as the name of a folder."""
    return choice.replace("/", "_")
