"""Java's named character classes (`java.util.regex.Pattern`) as ranges.

Names in Kafka are ASCII, so Unicode categories need no more than their ASCII part.
"""

CLASSES = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": "\\x00-\\x7f",
    "Alpha": "A-Za-z",
    "Digit": "0-9",
    "Alnum": "A-Za-z0-9",
    "Punct": "!-/:-@\\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": " \\t",
    "Cntrl": "\\x00-\\x1f\\x7f",
    "XDigit": "0-9A-Fa-f",
    "Space": " \\t\\n\\x0b\\f\\r",
}
CLASSES |= {
    "L": CLASSES["Alpha"],
    "Lu": CLASSES["Upper"],
    "Ll": CLASSES["Lower"],
    "N": CLASSES["Digit"],
    "Nd": CLASSES["Digit"],
    "IsAlphabetic": CLASSES["Alpha"],
    "IsLetter": CLASSES["Alpha"],
    "IsDigit": CLASSES["Digit"],
    "IsUppercase": CLASSES["Upper"],
    "IsLowercase": CLASSES["Lower"],
    "IsLatin": CLASSES["Alpha"],
}
