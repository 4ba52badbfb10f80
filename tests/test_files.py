"""The strict readers: whatever a file holds, it is read by the rules or refused in one line."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.files import MAX_NUMBER, Table, parse_number, read_rows

COLUMNS = ("name", "size")


@pytest.fixture
def toml(tmp_path):
    """A function that reads TOML text as a file."""

    def read(text):
        path = tmp_path / "some.toml"
        path.write_text(text, encoding="utf-8")
        return Table.read(path)

    return read


@pytest.fixture
def rows(tmp_path):
    """A function that reads CSV bytes as a file with the columns name and size."""

    def read(data):
        path = tmp_path / "some.csv"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return read_rows(path, COLUMNS)

    return read


# Numbers


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("-0.5", "is -0.5, must not be negative"),
        (math.nan, "is nan, must be finite"),
        ("nan", "is nan, must be finite"),
        ("1e999", "is 1e999, must be finite"),
        (10**400, "is larger than 1e+18, the largest number allowed"),
        ("9 MB", "is '9 MB', must be a number"),
        (True, "is True, must be a number"),
    ],
)
def test_a_number_is_finite_and_not_negative(value, problem):
    with pytest.raises(InputError) as error:
        parse_number("a.csv:2", "size", value)
    assert str(error.value) == f"a.csv:2: size {problem}"


@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.binary()))
def test_any_value_is_a_good_number_or_refused(value):
    try:
        number = parse_number("a.toml", "key", value)
    except InputError as error:
        assert str(error).startswith("a.toml: key is ")
    else:
        assert 0 <= number <= MAX_NUMBER


# TOML


def test_a_table_is_read_key_by_key(toml):
    table = toml('name = "x"\nsize = 2\nrate = 0.5\non = true\nof = ["a", "b"]\n[inner]\nsize = 3')
    assert (table.text("name"), table.integer("size"), table.number("rate")) == ("x", 2, 0.5)
    assert (table.flag("on"), table.texts("of")) == (True, ("a", "b"))
    assert table.table("inner").integer("size") == 3
    assert table.number("left_out", 7.0) == 7.0
    table.finish()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a =", "is not valid TOML: invalid value (at end of document)"),
        ("a = " + "[" * 5000, "is not valid TOML: nested too deeply"),
    ],
)
def test_what_is_not_toml_is_refused(toml, text, problem):
    with pytest.raises(InputError) as error:
        toml(text)
    assert str(error.value).endswith(problem)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "read", "problem"),
    [
        ("", lambda t: t.text("a"), "a is missing"),
        ("a = 1", lambda t: t.text("a"), "a is 1, must be a string"),
        ('a = " "', lambda t: t.text("a"), "a is ' ', must not be empty"),
        ('a = "x"', lambda t: t.choice("a", ["y", "z"]), "a is 'x', must be one of y, z"),
        ("a = 0", lambda t: t.positive("a"), "a is 0, must be positive"),
        ("a = 1e-300", lambda t: t.positive("a"), "a is 1e-300, must be at least 1e-09"),
        ("a = 1.0", lambda t: t.integer("a"), "a is 1.0, must be an integer"),
        ("a = [1]", lambda t: t.texts("a"), "a is [1], must be a list of strings"),
        ("a = [1]", lambda t: list(t.tables("a")), "a is [1], must be an array of tables"),
        ("[[a]]\n[[a]]\nb = -1", lambda t: [x.number("b", 0.0) for x in t.tables("a")], "a[1].b is -1, must"),
        ("a = {0 = 1.0}", lambda t: t.curve("a"), "a key is 0, must be at least 1"),
    ],
)
def test_a_broken_rule_is_named_with_file_key_and_value(toml, text, read, problem):
    with pytest.raises(InputError) as error:
        read(toml(text))
    assert "some.toml: " in str(error.value)
    assert problem in str(error.value)


def test_a_key_that_nobody_asked_for_is_refused_with_the_known_ones(toml):
    table = toml("a = 1\nb = 2\nx = 3")
    table.integer("a"), table.integer("b")
    with pytest.raises(InputError, match=r"some\.toml: unknown key x; known here: a, b$"):
        table.finish()


def test_a_curve_is_a_number_or_a_table_by_size(toml):
    table = toml("a = 0.8\nb = {8 = 0.5, 2 = 0.9}")
    assert table.curve("a") == ((1.0, 0.8),)
    assert table.curve("b") == ((2.0, 0.9), (8.0, 0.5))
    assert table.curve("c", 1.0) == ((1.0, 1.0),)


# CSV


def test_rows_know_the_line_they_stand_on(rows):
    first, second = rows("name,size\na,1\nb,x\n")
    assert (first.text("name"), first.integer("size")) == ("a", 1)
    with pytest.raises(InputError, match=r"some\.csv:3: size is 'x', must be a number$"):
        second.number("size")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "some.csv:1: column name is missing"),
        ("name,size,more\n", "some.csv:1: unknown column 'more'; known here: name, size"),
        ("name,size,name\n", "some.csv:1: unknown column 'name'; "),
        ("name,size\na\n", "some.csv:2: the row has 1 cells, must have 2"),
        ('name,size\n"a,1\n', "some.csv:2: is not valid CSV: unexpected end of data"),
        ("name,size\n" + "a" * 200_000 + ",1", "some.csv:2: is not valid CSV: field larger than field limit"),
        (b"name,size\n\xe9,1", "some.csv: byte 10 is not UTF-8, must be a text file"),
    ],
)
def test_a_file_that_is_not_such_a_table_is_refused(rows, data, problem):
    with pytest.raises(InputError) as error:
        rows(data)
    assert problem in str(error.value)


@pytest.mark.parametrize("read", [Table.read, lambda path: read_rows(path, COLUMNS)])
def test_any_bytes_are_read_or_refused(tmp_path_factory, read):
    path = tmp_path_factory.mktemp("bytes") / "some"

    @given(st.one_of(st.binary(), st.text(alphabet="a=[]{}\"'\n.,1-:T#\\u0").map(str.encode)))
    def check(data):
        path.write_bytes(data)
        try:
            read(path)
        except InputError as error:
            assert str(error).startswith(str(path))

    check()


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "marked.csv"
    path.write_bytes("\ufeffname,size\nx,1\n".encode())
    (row,) = read_rows(path, ("name", "size"))
    assert (row.text("name"), row.number("size")) == ("x", 1.0)
