"""What a setting must satisfy, said in one place."""


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless the condition holds; the message names option, value and remedy."""
    if not condition:
        raise ValueError(message)
