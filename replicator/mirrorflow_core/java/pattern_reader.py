r"""Reads the characters, character escapes (`\x41`, `\u0041`) and numbers of a Java regular expression."""

import unicodedata

from mirrorflow_core.java.errors import PatternSyntaxError

REPEAT_MAX = 2**31 - 1  # maximum of Java's int
_SIMPLE_ESCAPES = {"a": 7, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9}


class PatternReader:
    """A pattern's text and a read index; with the flag x, blanks and comments are skipped."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()

    def _peek(self) -> str:
        """Return the next character, "" at the end; with the flag x, skip blanks and comments before it."""
        while "x" in self._flags and self._at < len(self._text):
            letter = self._text[self._at]
            if letter == "#":
                while self._at < len(self._text) and self._text[self._at] not in "\n\r\x85\u2028\u2029":
                    self._at += 1
            elif letter in " \t\n\x0b\f\r":
                self._at += 1
            else:
                break
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        """Return the next character, whatever it is, and advance. Raises PatternSyntaxError at the end."""
        if self._at >= len(self._text):
            raise PatternSyntaxError("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _skip(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _number(self) -> int:
        begin = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        digits = self._text[begin : self._at]
        if not 0 < len(digits) <= len(str(REPEAT_MAX)):
            raise PatternSyntaxError("a { is no repetition {n,m}; write \\{ for the character")
        return int(digits)

    def _point(self, letter: str) -> int:
        """Return the code point of an escape. Raises PatternSyntaxError."""
        match letter:
            case "0":
                return self._octal()
            case "x":
                return self._hexadecimal()
            case "u":
                return self._unicode()
            case "c":
                return ord(self._take()) ^ 64
            case "N":
                return self._unicode_name()
        if letter in _SIMPLE_ESCAPES:
            return _SIMPLE_ESCAPES[letter]
        if letter.isascii() and letter.isalpha():
            raise PatternSyntaxError(f"\\{letter} has no meaning")
        return ord(letter)

    def _octal(self) -> int:
        digits = ""
        while len(digits) < 3 and self._text[self._at : self._at + 1] in set("01234567"):
            if len(digits) == 2 and digits[0] > "3":
                break
            digits += self._take()
        if not digits:
            raise PatternSyntaxError("\\0 is not followed by an octal number")
        return int(digits, 8)

    def _hexadecimal(self) -> int:
        digits = self._until("}") if self._skip("{") else self._take() + self._take()
        return _from_hexadecimal(digits)

    def _unicode(self) -> int:
        high = _from_hexadecimal("".join(self._take() for _ in range(4)))
        if 0xD800 <= high < 0xDC00 and self._text.startswith("\\u", self._at):
            low = _from_hexadecimal(self._text[self._at + 2 : self._at + 6])
            if 0xDC00 <= low < 0xE000:
                self._at += 6
                return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
        return high

    def _unicode_name(self) -> int:
        if not self._skip("{"):
            raise PatternSyntaxError("\\N is not followed by the name of a character in { }")
        name = self._until("}")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            raise PatternSyntaxError(f"no character is named {name!r}") from None

    def _until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found <= self._at:
            raise PatternSyntaxError(f"a {{ after a backslash is empty or not closed by {end}")
        text, self._at = self._text[self._at : found], found + 1
        return text


def _from_hexadecimal(digits: str) -> int:
    if not digits or not set(digits) <= set("0123456789abcdefABCDEF") or int(digits, 16) > 0x10FFFF:
        raise PatternSyntaxError(f"{digits!r} is not a hexadecimal number of a character")
    return int(digits, 16)
