"""Lists of Java's regular expressions as MM2 reads them: joined by `|`, matched against whole names."""

from mirrorflow_core.java.errors import PatternSyntaxError, SlowPatternError
from mirrorflow_core.java.patterns import Found, JavaPattern

BLAMED_MAX = 10  # items tried alone to find the slow one, each up to the limit of a match


class PatternList:
    """The expressions *patterns* joined to one, as in `MirrorUtils.compilePatternList`.

    Raises PatternSyntaxError.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self.joined = JavaPattern("|".join(patterns))
        self._blamed: SlowPatternError | None = None  # for the last name that took too long

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatternList) and self.patterns == other.patterns

    def __hash__(self) -> int:
        return hash(self.patterns)

    def matches(self, name: str) -> bool:
        """Return whether the whole of *name* matches. Raises SlowPatternError that names the slow item."""
        try:
            return self.joined.matches(name)
        except SlowPatternError as error:
            raise self._of_one_item(error).again() from None

    def find(self, name: str) -> Found | None:
        """Return the first match in *name*; None if there is none.

        Raises SlowPatternError that names the slow item.
        """
        try:
            return self.joined.find(name)
        except SlowPatternError as error:
            raise self._of_one_item(error).again() from None

    def _of_one_item(self, error: SlowPatternError) -> SlowPatternError:
        if len(self.patterns) == 1:
            return error
        if self._blamed is None or self._blamed.name != error.name:
            self._blamed = self._tried_alone(error)
        return self._blamed

    def _tried_alone(self, error: SlowPatternError) -> SlowPatternError:
        for pattern in self.patterns[:BLAMED_MAX]:
            try:
                JavaPattern(pattern).matches(error.name)
            except PatternSyntaxError:
                continue  # an item may be part of a group that another item closes
            except SlowPatternError as own:
                return own
        return error


def syntax_problem(patterns: tuple[str, ...]) -> tuple[str, PatternSyntaxError] | None:
    """Return the first invalid item of *patterns* and its error; None if all are valid.

    Returns the joined list instead where only the whole is invalid.
    """
    for pattern in (*patterns, "|".join(patterns)):
        try:
            JavaPattern(pattern)
        except PatternSyntaxError as error:
            return pattern, error
    return None
