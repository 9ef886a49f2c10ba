"""The common subset of a Dockerfile means what it means elsewhere; all else is refused by name and line."""

import pytest

from coldframe.contract.dockerfile import PATH, parse_dockerfile
from coldframe.contract.errors import RecipeInvalid
from coldframe.contract.recipes import Draft, LocalFiles
from coldframe.contract.template import EnvStep, RunStep, StartCommand


def read(text: str, **more: object) -> Draft:
    return parse_dockerfile(text, name="app", **more)  # type: ignore[arg-type]


def runs(draft: Draft) -> list[RunStep]:
    return [one for one in draft.steps if isinstance(one, RunStep)]


def scripts(draft: Draft) -> list[str]:
    return [one.command[2] for one in runs(draft) if one.command[:2] == ("/bin/sh", "-c")]


@pytest.mark.req("T4.68")
def test_a_whole_dockerfile_becomes_steps_and_a_start_command() -> None:
    draft = read(
        "# syntax=docker/dockerfile:1\n"
        "ARG BASE=debian\n"
        "FROM ${BASE} AS build\n"
        "ENV A=1 B='two words' C=\"$A-${NONE:-none}\"\n"
        "ENV OLD all of it\n"
        "WORKDIR /srv\n"
        "WORKDIR app\n"
        "COPY --chown=user --chmod=640 a.py b.py lib/\n"
        "RUN pip install x && \\\n"
        "    # a comment between\n"
        "\n"
        "    echo $A\n"
        "USER user\n"
        'RUN ["echo", "$A"]\n'
        'ENTRYPOINT ["python3"]\n'
        'CMD ["a.py"]\n'
    )
    assert draft.fields["base"] == "debian"
    env = [one for one in draft.steps if isinstance(one, EnvStep)]
    assert env[0].variables == {"A": "1", "B": "two words", "C": "-none"}  # $A is that of before this instruction
    assert env[1].variables == {"OLD": "all of it"}
    files = next(one for one in draft.steps if isinstance(one, LocalFiles))
    assert (files.sources, files.to, files.mode, files.owner) == (("a.py", "b.py"), "/srv/app/lib/", 0o640, "user")
    first, second = runs(draft)
    assert first.command == ("/bin/sh", "-c", "pip install x &&     echo $A")
    assert (first.user, first.cwd) == ("root", "/srv/app")
    assert (second.command, second.user) == (("echo", "$A"), "user")
    assert draft.fields["start"] == StartCommand(command=("python3", "a.py"), user="user", cwd="/srv/app")


def test_arguments_hold_for_commands_and_give_way_to_variables() -> None:
    text = "FROM debian\nARG V=1\nARG W\nARG X=3\nENV X=4\nRUN echo\n"
    assert runs(read(text))[0].variables == {"V": "1"}
    assert runs(read(text, build_args={"V": "2", "W": "w"}))[0].variables == {"V": "2", "W": "w"}
    with pytest.raises(RecipeInvalid, match="no ARG `Z`"):
        read(text, build_args={"Z": "1"})


def test_an_argument_before_from_is_known_behind_it_only_when_asked_for() -> None:
    text = "ARG V=7\nFROM debian\nRUN one\nARG V\nRUN two\n"
    first, second = runs(read(text))
    assert (first.variables, second.variables) == ({}, {"V": "7"})


def test_the_path_of_the_template_goes_on() -> None:
    variables = [one for one in read("FROM debian\nENV PATH=/opt/bin:$PATH\n").steps if isinstance(one, EnvStep)]
    assert variables[0].variables["PATH"] == f"/opt/bin:{PATH}"
    draft = read("FROM debian\nENV PATH=/opt/bin:$PATH\n", base_env={"PATH": "/base"})
    assert [one.variables["PATH"] for one in draft.steps if isinstance(one, EnvStep)] == ["/opt/bin:/base"]


def test_heredocs_are_scripts_files_and_input() -> None:
    draft = read(
        "FROM debian\n"
        "ENV NAME=world\n"
        "RUN <<EOF\n"
        "echo one\n"
        "# RUN stays what it is\n"
        "EOF\n"
        "RUN cat <<-'END' > /file && echo done\n"
        "\tFROM nothing\n"
        "\tEND\n"
        "COPY <<EOF /etc/hello\n"
        'say "$NAME" \\$NAME\n'
        "EOF\n"
        'COPY <<"EOF" /etc/plain\n'
        "$NAME\n"
        "EOF\n"
        "RUN echo 'no <<EOF here'\n"
        "RUN last <<< word\n"
    )
    assert scripts(draft) == [
        "echo one\n# RUN stays what it is\n",
        "cat <<-'END' > /file && echo done\nFROM nothing\nEND\n",
        "echo 'no <<EOF here'",
        "last <<< word",
    ]
    copied = [one for one in draft.steps if isinstance(one, LocalFiles)]
    assert [(one.to, one.content) for one in copied] == [
        ("/etc/hello", b'say "world" $NAME\n'),
        ("/etc/plain", b"$NAME\n"),
    ]


def test_entrypoint_and_cmd_go_together_as_in_docker() -> None:
    for lines, command in (
        ("CMD sleep 5", "sleep 5"),
        ('CMD ["sleep", "5"]', ("sleep", "5")),
        ('ENTRYPOINT ["a"]', ("a",)),
        ('ENTRYPOINT ["a"]\nCMD b c', ("a", "/bin/sh", "-c", "b c")),
        ('ENTRYPOINT a\nCMD ["b"]', "a"),
        ('CMD ["b"]\nENTRYPOINT ["a"]', ("a",)),
    ):
        start = read(f"FROM debian\n{lines}\n").fields["start"]
        assert start.command == command, lines


@pytest.mark.parametrize(
    ("text", "line", "instruction"),
    [
        ("FROM debian\nHEALTHCHECK CMD x\n", 2, "HEALTHCHECK"),
        ("FROM debian\n\n# x\nEXPOSE 80\n", 4, "EXPOSE"),
        ("FROM debian\nVOLUME /x\n", 2, "VOLUME"),
        ('FROM debian\nSHELL ["bash"]\n', 2, "SHELL"),
        ("FROM debian\nONBUILD RUN x\n", 2, "ONBUILD"),
        ("FROM debian\nFROM debian\n", 2, "FROM"),
        ("FROM --platform=x debian\n", 1, "FROM"),
        ("FROM registry.example/a/b\n", 1, "FROM"),
        ("FROM scratch\n", 1, "FROM"),
        ("RUN x\n", 1, "RUN"),
        ("FROM debian\nRUN a \\\n  b\nRUN --mount=type=cache,target=/x y\n", 4, "RUN"),
        ("FROM debian\nCOPY --from=build /a /b\n", 2, "COPY"),
        ("FROM debian\nCOPY a\n", 2, "COPY"),
        ("FROM debian\nCOPY a ../../../b\n", 2, "COPY"),
        ("FROM debian\nADD https://example.org/x /x\n", 2, "ADD"),
        ("FROM debian\nADD x.tar.gz /x\n", 2, "ADD"),
        ("FROM debian\nUSER www-data\n", 2, "USER"),
        ("FROM debian\nENV A\n", 2, "ENV"),
        ('FROM debian\nENV A="x\n', 2, "ENV"),
        ("FROM debian\nENV A=${B?gone}\n", 2, "ENV"),
        ("FROM debian\nRUN <<EOF\nx\n", 2, "RUN"),
        ("FROM debian\nRUN <<EOF\n#!/usr/bin/perl\nEOF\n", 2, "RUN"),
        ("FROM debian\nRUN\n", 2, "RUN"),
        ("# escape=`\nFROM debian\n", 1, "escape"),
    ],
)
@pytest.mark.req("T4.68")
def test_what_is_not_supported_is_refused_by_name_and_line(text: str, line: int, instruction: str) -> None:
    with pytest.raises(RecipeInvalid) as refused:
        read(text)
    assert refused.value.facts["line"] == line, refused.value.message
    assert refused.value.facts["instruction"] == instruction
    assert f"line {line}" in refused.value.message


def test_no_from_and_a_check_without_a_command_are_refused() -> None:
    from coldframe.contract.template import ReadyCheck

    with pytest.raises(RecipeInvalid, match="no FROM"):
        read("# nothing\n")
    with pytest.raises(RecipeInvalid, match="neither CMD nor ENTRYPOINT"):
        read("FROM debian\n", ready=ReadyCheck(port=80))


def test_lines_of_windows_are_read_as_others() -> None:
    assert scripts(read("FROM debian\r\nRUN a \\\r\n  b\r\n")) == ["a   b"]
