"""Errors of Java's regular expressions.

    JavaPatternError
    ├── PatternSyntaxError   the text is not a Java regular expression, or uses an unsupported construct
    └── SlowPatternError     a match was aborted after its time limit

Each message is a clause without the pattern; the caller adds the setting or the field.
"""


class JavaPatternError(Exception):
    """The base class of all errors of Java's regular expressions."""


class PatternSyntaxError(JavaPatternError, ValueError):
    """The text is not a Java regular expression, or uses an unsupported construct."""


class SlowPatternError(JavaPatternError):
    """Matching *pattern* against *name* was aborted after its time limit."""

    action = "write it without a repetition inside a repetition: a+ instead of (a+)+, [ab]* instead of (a|b)*"

    def __init__(self, *, pattern: str, name: str, why: str) -> None:
        self.pattern, self.name, self.why = pattern, name, why
        super().__init__(f"{pattern!r} cannot be matched against {shortened(name)!r}: {why}")

    def again(self) -> "SlowPatternError":
        """Return an equal error to raise; an instance that is raised twice keeps the frames of both."""
        return SlowPatternError(pattern=self.pattern, name=self.name, why=self.why)


NAME_SHOWN_MAX = 60  # the beginning identifies a name; a topic's has up to 249 characters, a group's 32767


def shortened(name: str) -> str:
    """Return *name*, shortened for an error message."""
    return name if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]}..."
