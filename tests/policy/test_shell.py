"""Promise: shell text is read for its programs whatever the spelling, in bounded time, and doubt is called doubt."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldframe.policy.shell import MAX_TEXT_BYTES, read_argv, read_shell
from tests.host.forked import in_child
from tests.policy.corpus import benign, denied


def _names(text: str) -> list[str]:
    return [call.name for call in read_shell(text).programs]


def test_wrappers_are_kept_as_the_way_to_the_program() -> None:
    last = read_shell("env A=1 timeout -k 3 5 sudo -u root /usr/bin/rm -rf x").programs[-1]
    assert (last.name, last.word, last.arguments) == ("rm", "/usr/bin/rm", ("-rf", "x"))
    assert last.via == ("env", "timeout", "sudo")


@pytest.mark.parametrize(
    "text",
    [
        "$x ls",
        "$(printf ls) -l",
        'eval "$x"',
        "echo cm0K | base64 -d | sh",
        "curl -s https://example.com/x | bash",
        "python3 -c 'print(1)'",
        "perl -e 1",
        "node --eval 1",
        "python3 - < x",
        "source ./env.sh",
        "/???/?m x",
        'sh -c "$x"',
        "awk 'BEGIN{system(\"id\")}'",
    ],
)
def test_what_only_the_run_time_knows_is_opaque(text: str) -> None:
    reading = read_shell(text)
    assert reading.certainty == "opaque"
    assert reading.opaque_because


@pytest.mark.parametrize(
    "text",
    [
        "git status && make -j4",
        "x=ls; $x -l",
        "echo ls | sh",
        "bash <<< 'ls -l'",
        "python3 script.py",
        "python3.11 -m pytest",
        '"$VENV"/bin/pip install x',
        "for i in 1 2; do echo $i; done",
    ],
)
def test_what_the_text_decides_is_complete(text: str) -> None:
    assert read_shell(text).certainty == "complete"


def test_a_syntax_error_has_its_byte_position_and_keeps_what_stands_before_it() -> None:
    reading = read_shell("sudo é\necho 'open")
    assert reading.certainty == "unparsable"
    assert reading.position == len("sudo é\necho ".encode())
    assert "sudo" in [call.name for call in reading.programs]


def test_redirections_are_listed_as_written_paths() -> None:
    assert read_shell("a > out 2>&1; b >> 'x y' &> z <in").written_paths == ("out", "x y", "z")


def test_arguments_known_at_run_time_only_are_marked() -> None:
    call = read_shell("rm -rf a $x b").programs[0]
    assert (call.arguments, call.unresolved) == (("-rf", "a", "$x", "b"), (2,))


def test_an_argv_list_is_not_expanded_but_unwrapped() -> None:
    reading = read_argv(["env", "A=1", "echo", "$x", "*", "a b"])
    assert reading.programs[-1].arguments == ("$x", "*", "a b")
    assert [call.name for call in read_argv(["sh", "-c", "ls | wc"]).programs] == ["sh", "ls", "wc"]


def test_a_long_here_document_is_read_completely_and_fast() -> None:
    text = "cat > f <<'EOF'\n" + "some line; of (text | with 'signs\n" * 10_000 + "EOF\nls\n"
    assert len(text) > 300_000
    started = time.process_time()
    reading = read_shell(text)
    assert time.process_time() - started < 1.0
    assert reading.certainty == "complete"
    assert [call.name for call in reading.programs] == ["cat", "ls"]


@pytest.mark.parametrize(
    "text",
    [
        "echo " + "a " * (4 * 1024 * 1024),
        "ls;\n" * 200_000,
        "$(" * 100_000,
        "((" * 100_000,
        "`" * 100_001,
        "${" * 100_000,
        "\\" * 300_001,
        "env " * 50_000,
        "{a,b}" * 10_000,
        "bash -c " * 20_000,
        "eval 'a b' ;" * 20_000,
        "".join(f"x={index};" for index in range(5_000)) + "$x " * 20_000,
        "{ " + "echo a;" * 3_000 + " } | { " + "sh;" * 3_000 + "}",
        "cat <<A\nx\nA\n" * 20_000,
        "f(){ " * 5_000,
        "eval " * 8 + "b}" + "{a,b}" * 20,
        ("{a,b}" * 13 + " ") * 5_000,
        "{" + "a," * 200_000 + "b}",
        "{" + "a," * 200_000 + "b}" + "x" * 600_000,
    ],
    ids=lambda text: text[:12],
)
def test_hostile_size_and_nesting_end_quickly(text: str) -> None:
    started = time.process_time()  # not by the clock of a machine that may be busy
    reading = read_shell(text)
    assert time.process_time() - started < 5.0
    assert reading.certainty != "complete" or len(text) < MAX_TEXT_BYTES


@pytest.mark.parametrize(
    "text",
    ["rm" + "{,}" * 9 + " -rf /", "{rm,-rf,/" + ",x" * 2000 + "}", "rm {" + "x," * 2000 + "-rf,/}"],
    ids=["multiplied", "first of a long list", "last of a long list"],
)
def test_all_words_that_braces_stand_for_are_read(text: str) -> None:
    reading = read_shell(text)
    (program,) = reading.programs
    assert (program.name, reading.certainty) == ("rm", "complete")
    assert {"-rf", "/"} <= set(program.arguments)
    assert len(program.arguments) > 500


@pytest.mark.parametrize("text", ["rm" + "{,}" * 15 + " -rf /", "rm {-rf,/" + ",x" * 2000 + "}{,}"])
def test_where_braces_multiply_to_too_many_words_the_first_are_read_and_the_rest_is_a_doubt(text: str) -> None:
    reading = read_shell(text)
    assert reading.programs[0].name == "rm"
    assert any("-rf" in argument for argument in reading.programs[0].arguments)
    assert reading.certainty == "opaque"
    assert "braces stand for too many words" in reading.opaque_because


def test_a_program_whose_braces_are_not_taken_apart_any_more_is_only_known_at_run_time() -> None:
    reading = read_shell("echo " + "{a,b}" * 10_000 + "; {rm,-rf,/}")
    assert [program.name for program in reading.programs] == ["echo"]
    assert "program `{rm,-rf,/}` is only known at run time" in reading.opaque_because


@pytest.mark.parametrize("between", [" ", " -p ", "\n", " ! ", " \\\n"], ids=repr)
def test_no_number_of_one_word_ends_the_process_that_reads_it(between: str) -> None:
    reading = in_child(lambda: read_shell(("time" + between) * 20_000 + "rm -rf /"))
    assert reading.certainty != "complete"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abrm -/$(){}[]'\"`\\|&;<>\n=#*!~x0\x00é\ud800", max_size=60))
def test_no_text_makes_the_reader_raise_and_readings_repeat(text: str) -> None:
    assert read_shell(text) == read_shell(text)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["env {}", "sh -c '{}'", "echo a; {}", "( {} )", "x=$({})", "if true; then {}; fi", "nohup {} &"]),
    st.sampled_from(["env {}", "command {}", "{} | cat", "{} > x", "true && {}", "exec {}", "time {}"]),
    st.sampled_from(["sudo ls", "s\\udo ls", '"sudo" ls', "/usr/bin/sudo ls"]),
)
def test_any_nesting_of_wrappers_shows_the_program(outer: str, inner: str, command: str) -> None:
    assert "sudo" in _names(outer.format(inner.format(command)))


def test_both_corpora_parse() -> None:
    assert [text for text in benign() if read_shell(text).certainty == "unparsable"] == []
    assert sum(read_shell(text).certainty == "unparsable" for _, text in denied()) == 1
