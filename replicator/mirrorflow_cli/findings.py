"""What `mirrorflow check` has found: facts and notes at once, problems at the end."""

from collections.abc import Sequence

SHOWN_MAX = 20  # of one kind; the rest is a number


class Findings:
    """What was found: problems decide the exit status, facts and notes do not."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def problem(self, sentence: str) -> None:
        """Something that `run` would stumble over."""
        self.problems.append(sentence)

    @staticmethod
    def fact(sentence: str) -> None:
        """Printed as it is found, because the next question may take seconds."""
        print(f"ok    {sentence}", flush=True)

    @staticmethod
    def note(sentence: str) -> None:
        """Worth knowing, and no reason not to run."""
        print(f"note  {sentence}", flush=True)


def show_some(what: str, names: Sequence[str]) -> None:
    """Print the first of *names*, each as *what*."""
    for name in names[:SHOWN_MAX]:
        print(f"      {what}: {name}")
    if len(names) > SHOWN_MAX:
        print(f"      {what}: {len(names) - SHOWN_MAX} more")
