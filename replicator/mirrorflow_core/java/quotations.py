r"""Replaces `\Q..\E` quotations of Java's regular expressions by a backslash before each character.

As `Pattern.RemoveQEQuoting` of Java 17: quoted text becomes single characters, so in `\Qab\E+` the `+`
repeats only `b`. A quotation without an end extends to the end of the expression.
"""


def unquoted(pattern: str) -> str:
    r"""Return *pattern* without `\Q` and `\E`."""
    out: list[str] = []
    at, quoted, begins = 0, False, False
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if quoted:
            if pair == "\\E":
                at, quoted = at + 2, False
                continue
            out.append(_as_character(pattern[at], after_escape=begins))
            at, begins = at + 1, False
        elif pair == "\\Q":
            at, quoted, begins = at + 2, True, True
        else:
            # Keep a backslash and the character it escapes together: `\\Q` is no quotation.
            step = 2 if pair[0] == "\\" else 1
            out.append(pair[:step])
            at += step
    return "".join(out)


def _as_character(letter: str, *, after_escape: bool) -> str:
    if letter.isascii() and letter.isdigit() and after_escape:
        return f"\\x3{letter}"  # a plain digit would extend an escape before the quotation
    if letter.isascii() and not letter.isalnum():
        return "\\" + letter
    return letter
