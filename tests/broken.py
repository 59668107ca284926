"""Checks what a data source says about a damaged file."""

from pathlib import Path

from inputs import complaint


def replace(file: Path, content) -> None:
    """Writes bytes, a text, or what a function makes of the old bytes; None removes the file."""
    old = file.read_bytes() if file.is_file() else b""
    file.unlink(missing_ok=True)
    content = content(old) if callable(content) else content
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def check(source, file: Path, *words: str, **settings) -> None:
    """Checks that the source's complaint begins with the path of the file and has these words."""
    message = complaint(source, **settings)
    assert message.startswith(str(file)) and all(word in message for word in words), message


def half(content: bytes) -> bytes:
    """A truncated file."""
    return content[: len(content) // 2]
