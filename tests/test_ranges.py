"""Checks ranges: the values drawn from them, their text, and those that methods declare."""

import own_parts
import pytest
from inputs import complaint

from fedjax_lab import ranges
from fedjax_lab.experiment import registry
from fedjax_lab.ranges import choice, log_uniform, uniform


def test_values_are_uniform_in_the_scale_of_the_range():
    rates = [ranges.at(log_uniform(1e-3, 10.0), s) for s in (0, 0.25, 0.5, 0.75)]
    assert rates == [0.001, 0.01, 0.1, 1.0]
    assert [ranges.at(uniform(-1, 3), s) for s in (0, 0.5, 0.99999)] == [-1.0, 1.0, 3.0]
    assert [ranges.at(choice(1, 2, 5), s) for s in (0, 0.34, 0.67, 0.999)] == [1, 2, 5, 5]
    assert ranges.at(log_uniform(1e-3, 1.0), 0.123456) == 0.00235  # rounded to three digits
    for text in ("log:0.001,1.0", "uniform:-1.0,3.0", "choice:a,b"):
        assert str(ranges.parse(text)) == text
    assert ranges.parse("choice:1, 2") == choice("1", "2")


@pytest.mark.parametrize(
    "text, message",
    [
        ("0.1,1", "is not a range; for example log:"),
        ("lug:1,2", "no range 'lug'; did you mean 'log'?"),
        ("log:0,1", "must begin above 0"),
        ("log:1,x", "must be a number, got 'x'"),
        ("uniform:1,1", "to a larger one, got 1.0 to 1.0"),
        ("log:1," + "(" * 5000, "must be a number"),
    ],
)
def test_an_invalid_range_is_an_error(text, message):
    error = complaint(ranges.parse, text)
    assert message in error and len(error) < 300


@pytest.mark.parametrize("name", registry.METHODS)
def test_methods_declare_ranges_of_settings_that_they_have(name):
    function = registry.look_up("method", name)
    defaults = registry.keyword_defaults(function)
    for key, declared in ranges.declared(function).items():
        values = [ranges.at(declared, share) for share in (0.0, 0.5, 0.999)]
        assert {type(value) for value in values} == {type(defaults[key])}, key
        assert defaults[key] == 0 or within(defaults[key], declared), key  # 0: without the term


def within(value, declared):
    low, *_, high = declared.values
    return value in declared.values or declared.kind != "choice" and low < value < high


def test_a_user_defined_method_declares_its_ranges_in_its_file(tmp_path):
    file = own_parts.write(tmp_path)
    head = "from fedjax_lab.ranges import uniform\n\nRANGES = {'pull': uniform(0, 2)}\n"
    file.write_text(head + file.read_text())
    assert ranges.declared(registry.look_up("method", f"{file}:near")) == {"pull": uniform(0, 2)}
    for wrong, message in (("[1]", "must be a dict"), ("{'pull': (0, 2)}", "must be made by")):
        file.write_text(file.read_text() + f"RANGES = {wrong}\n")
        registry.references.refresh()
        near = registry.look_up("method", f"{file}:near")
        assert message in complaint(ranges.declared, near)


def test_settings_are_checked_once():
    function = registry.look_up("method", "fedprox")
    assert ranges.checked("method")(function) is function
