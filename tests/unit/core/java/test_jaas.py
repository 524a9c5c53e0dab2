"""sasl.jaas.config is parsed as by Kafka's JaasConfig, and no error shows any part of it."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.jaas import escape_option, format_jaas, parse_jaas, resolve_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="a" password="b";', {"username": "a", "password": "b"}),
        (f"{PLAIN} required\n  username='a'\n  password=b;\n", {"username": "a", "password": "b"}),
        (f'{PLAIN} REQUIRED username = "a b" password="";', {"username": "a b", "password": ""}),
        (f'{PLAIN} sufficient password="q\\"b\\\\n\\t\\101\\7x\\q;";', {"password": 'q"b\\n\tA\x07xq;'}),
        (f'{PLAIN} required password="\\4001";', {"password": " 01"}),
        (f'// note\n{PLAIN} /* one\ntwo */ required a="//x" b="/*y*/"; // end', {"a": "//x", "b": "/*y*/"}),
        (
            f'{PLAIN} optional user-name=a_$-9.b extension_x="ü€";',
            {"user-name": "a_$-9.b", "extension_x": "ü€"},
        ),
        (f"{PLAIN} requisite;", {}),
        (f'{PLAIN} required a="1" a="2";', {"a": "2"}),
    ],
)
def test_a_config_is_parsed_as_in_java(text: str, options: dict[str, str]):
    """Quotes, escapes, comments and blanks follow StreamTokenizer."""
    module = parse_jaas(text)

    assert (PLAIN, options) == (module.class_name, dict(module.options))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no login module"),
        ("// only a comment", "no login module"),
        ("hunter2", "control flag"),
        (f"{PLAIN} hunter2 username=a;", "control flag"),
        (f'{PLAIN} required username="a" password="hunter2"', "semicolon"),
        (f"{PLAIN} required password=123hunter2;", "option password"),
        (f"{PLAIN} required password=-5;", "option password"),
        (f"{PLAIN} required username=a password=/hunter2;", "option password"),
        (f"{PLAIN} required username=a password=x hunter2;", "option 3"),
        (f'{PLAIN} required username=a "hunter2" ;', "option 2"),
        (f'{PLAIN} required password="x\nhunter2";', "option 2"),
        (f"{PLAIN} required password=hunter2!y;", "option 2"),
        (f"{PLAIN} required password;", "option password"),
        (f"{PLAIN} required password=", "option password"),
        (f"{PLAIN} required; {PLAIN} required password=hunter2;", "one login module"),
        (f"{PLAIN} required " + "".join(f"a{number}=x " for number in range(101)) + ";", "100 options"),
    ],
)
def test_a_config_that_java_refuses_is_refused_without_showing_it(text: str, expected: str):
    """If a quote is missing, any word may be part of a password."""
    with pytest.raises(InvalidSettingError) as raised:
        parse_jaas(text)

    assert expected in str(raised.value)
    assert "hunter2" not in str(raised.value) + repr(raised.value)


def test_the_repr_of_a_module_does_not_show_its_options():
    """A logged module shows only its class."""
    assert "hunter2" not in repr(parse_jaas(f"{PLAIN} required password=hunter2;"))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")))
def test_every_quoted_value_is_parsed_unchanged(value: str):
    """Any password is parsed unchanged if its backslashes and quotes are escaped."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')

    assert parse_jaas(f'{PLAIN} required password="{quoted}";').options == {"password": value}


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str):
    """No text causes an error other than InvalidSettingError."""
    with suppress(InvalidSettingError):
        parse_jaas(text)


@pytest.mark.parametrize(
    "template",
    [
        '{module} required username="mirror" password="${{env:PASSWORD}}";',
        "{module} required username='mirror' password='${{env:PASSWORD}}';",
        "{module} required username=mirror password=${{env:PASSWORD}};",
        '{module} required // the "password"\n username=mirror /* and = */ password = ${{env:PASSWORD}} ;',
    ],
)
@given(password=st.text(st.characters(exclude_categories=["Cs"])))
@example(password='p" evil="1')
@example(password="\\")
@example(password="".join(map(chr, range(32, 127))))
@example(password="two\nlines\r\n")
def test_a_reference_is_replaced_by_any_text(template: str, password: str):
    text = resolve_jaas(template.format(module=PLAIN), lambda _: password)

    assert {"username": "mirror", "password": password} == parse_jaas(text).options


def test_a_reference_may_be_part_of_a_value():
    text = resolve_jaas(
        f'{PLAIN} required username="east-${{env:A}}\\"${{env:B}}";', lambda reference: reference.key + '"'
    )

    assert {"username": 'east-A""B"'} == parse_jaas(text).options


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("${file:/secret:jaas}", {"jaas": f'{PLAIN} required username="a";'}),
        ("${env:MODULE} required ${env:OPTIONS};", {"MODULE": PLAIN, "OPTIONS": 'username="a"'}),
    ],
)
def test_a_reference_outside_of_a_value_is_replaced_unescaped(text: str, values: dict[str, str]):
    module = parse_jaas(resolve_jaas(text, lambda reference: values[reference.key]))

    assert (module.class_name, module.options) == (PLAIN, {"username": "a"})


@given(st.dictionaries(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.text(), max_size=4))
def test_formatted_options_are_parsed_back(options: dict[str, str]):
    """This holds for any characters."""
    text = format_jaas(PLAIN, {name: escape_option(value) for name, value in options.items()})

    assert options == parse_jaas(text).options
