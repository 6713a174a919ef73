"""`clover run` and the command around it, as processes: stdout, stderr and exit codes apart."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clover_local.cli import COMMANDS, main
from clover_local.commands.progress import bar
from clover_local.names import DEMO_FILE

QUESTION = "Mia has 145 stamps and buys 38 more stamps. She gives 17 stamps to a friend. How many stamps now?"
RAW = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


def clover(*args: str | Path, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "clover_local", *map(str, args)],
        input=stdin,
        capture_output=True,
        env=os.environ | {"COLUMNS": "100"} | env,
        timeout=120,
        check=False,
    )


def run(model: Path, *args: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return clover("run", "-m", model, "-t", "1", "-c", "512", "--device", "cpu", *args, stdin=stdin)


def refused(done: subprocess.CompletedProcess[bytes], code: int, *says: str) -> None:
    """The command ended with one error line that holds these words, and nothing on stdout."""
    stderr = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b""), stderr
    first = next(line for line in stderr.splitlines() if not line.startswith("note:"))
    assert first.startswith("error: ") and "Traceback" not in stderr
    for words in says:
        assert words in stderr


# --- answers -----------------------------------------------------------------------------------------------


def test_stdout_carries_the_answer_only_and_stderr_the_figures(trained_f32: Path) -> None:
    texts = []
    for mode in ("plain", "self"):
        done = run(trained_f32, "--raw", RAW, "--mode", mode)
        assert done.returncode == 0
        lines = done.stderr.decode().splitlines()
        assert lines[0].startswith("prompt: ") and "tok/s, first token after" in lines[0]
        assert lines[1].startswith("answer: ") and "tokens/pass" in lines[1]
        assert len(lines) == 2
        texts.append(done.stdout.decode())
    assert texts[0] == texts[1] and texts[0].startswith("Step 1: ") and "Answer: " in texts[0]
    assert texts[0].endswith("\n") and "<|" not in texts[0]


def test_prompt_from_argument_file_and_stdin_is_the_same(trained_int4: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(RAW, encoding="utf-8")
    answers = {
        run(trained_int4, "--raw", *how, stdin=stdin).stdout
        for how, stdin in (([RAW], b""), (["-f", file], b""), (["-"], RAW.encode()), ([], RAW.encode()))
    }
    assert len(answers) == 1 and answers.pop().strip()


def test_the_template_the_system_prompt_and_thinking_reach_the_model(trained_int4: Path) -> None:
    seen = []
    for more in ((), ("--no-think",), ("-sys", "Be brief.")):
        done = run(trained_int4, QUESTION, "--json", "-n", "4", *more)
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout)["prompt_tokens"])
    plain, no_think, system = seen
    assert plain != no_think and system > plain


def test_json_holds_text_ending_and_figures(trained_int4: Path) -> None:
    done = run(trained_int4, "--raw", RAW, "--json", "-n", "10", "--mode", "denoise", "--ignore-eos")
    facts = json.loads(done.stdout)
    assert facts["tokens"] == 10 and facts["reason"] == "length" and facts["mode"] == "denoise"
    assert facts["text"].startswith("Step 1") and facts["passes"]["denoise"] >= 1
    assert facts["tokens_per_second"] == pytest.approx(10 / facts["seconds"])
    assert b"stopped after the 10 tokens" in done.stderr


def test_a_seed_repeats_a_drawn_answer(trained_int4: Path) -> None:
    draws = [
        run(trained_int4, "--raw", RAW, "--temp", "1.5", "-s", seed, "-n", "30", "--mode", "plain").stdout
        for seed in ("1", "1", "2")
    ]
    assert draws[0] == draws[1] != draws[2]


def test_a_broken_character_is_never_printed(trained_int4: Path) -> None:
    """Whatever the model writes when pushed off its path, stdout stays valid UTF-8."""
    done = run(
        trained_int4, "--raw", "水は百度で沸く。🙂", "--temp", "5", "-s", "3", "-n", "80", "--ignore-eos"
    )
    assert done.returncode == 0
    done.stdout.decode("utf-8")


def test_a_file_without_preview_keys_runs_plain_and_says_so(trained_f32: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "trunk.gguf"
    data = trained_f32.read_bytes()
    assert data.count(b"clover.preview.") == 4
    stripped.write_bytes(data.replace(b"clover.preview.", b"clover.removed."))
    done = run(stripped, "--raw", RAW, "--no-perf")
    assert done.returncode == 0
    assert done.stderr.decode() == f"note: {stripped} holds no preview weights: one token at a time\n"
    assert done.stdout == run(trained_f32, "--raw", RAW, "--mode", "plain").stdout


def test_without_a_model_the_demo_answers_and_is_named() -> None:
    done = clover("run", "-t", "1", "--device", "cpu", QUESTION)
    stderr = done.stderr.decode()
    assert stderr.startswith("note: this is the built-in demo model; --model names another\n")
    if DEMO_FILE.is_file():
        assert done.returncode == 0 and done.stdout.strip()
    else:
        assert done.returncode == 1 and "holds no demo model" in stderr


# --- being stopped -----------------------------------------------------------------------------------------


def start(model: Path, *args: str, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "clover_local", "run", "-m", str(model), "-t", "1", "--device", "cpu"]
    return subprocess.Popen([*command, *args], stderr=subprocess.PIPE, **more)  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", ["plain", "self", "denoise"])
def test_ctrl_c_keeps_what_was_written_and_exits_130(trained_f32: Path, mode: str) -> None:
    process = start(
        trained_f32, "--raw", RAW, "--mode", mode, "--ignore-eos", "-n", "-1", stdout=subprocess.PIPE
    )
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first.startswith(b"Step 1") and (first + rest).endswith(b"\n")
    assert b"stopped by Ctrl-C" in stderr and b"Traceback" not in stderr


def test_ctrl_c_while_loading_exits_130_quietly(trained_f32: Path) -> None:
    process = start(trained_f32, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    time.sleep(1.0)  # it waits for a prompt on stdin
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, b"") and b"Traceback" not in stderr


def test_a_reader_that_leaves_is_no_traceback(trained_f32: Path) -> None:
    read, write = os.pipe()
    process = start(trained_f32, "--raw", RAW, "--ignore-eos", "-n", "300", stdout=write)
    os.close(write)
    os.read(read, 10)
    os.close(read)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and b"Traceback" not in stderr and b"error" not in stderr


# --- bad input ---------------------------------------------------------------------------------------------


def test_empty_prompts_are_refused(trained_int4: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    for how in (["  \n"], ["-f", empty], []):
        refused(run(trained_int4, *how), 2, "the prompt is empty")


def test_a_prompt_that_is_not_utf8_names_its_byte(trained_int4: Path, tmp_path: Path) -> None:
    refused(run(trained_int4, stdin=b"caf\xe9!"), 2, "stdin is not UTF-8: byte 0xe9 at position 3")
    file = tmp_path / "latin.txt"
    file.write_bytes(b"\xff")
    refused(run(trained_int4, "-f", file), 2, f"{file} is not UTF-8: byte 0xff at position 0")


def test_a_prompt_longer_than_the_context_names_both(trained_int4: Path) -> None:
    refused(
        run(trained_int4, "--raw", "one " * 900), 1, "and the context holds 512", "hint: shorten the prompt"
    )


def test_a_prompt_given_twice_or_from_nowhere(trained_int4: Path, tmp_path: Path) -> None:
    refused(run(trained_int4, "hello", "-f", "x"), 2, "given twice")
    refused(
        run(trained_int4, "-f", tmp_path / "none"), 2, f"{tmp_path / 'none'} cannot be read: No such file"
    )
    refused(run(trained_int4, "--raw", "hello", "-sys", "x"), 2, "--system-prompt needs the chat template")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--temp", "-1"], "--temp must be 0 or more"),
        (["-n", "0"], "--predict must be at least 1"),
        (["--draft-max", "40"], "--draft-max must be from 2 to 32"),
        (["--mode", "fast"], "argument --mode: invalid choice"),
        (["--tools", "missing.json"], "--tools: missing.json cannot be read"),
        (["--chat-template-kwargs", "{"], "--chat-template-kwargs is not JSON"),
        (["--chat-template-kwargs", "[]"], "--chat-template-kwargs must be a JSON object"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_bad_options_are_named(trained_int4: Path, args: list[str], says: str) -> None:
    refused(run(trained_int4, "hello", *args), 2, says)


def test_models_that_cannot_be_opened(trained_int4: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    refused(run(text, "hi"), 1, f"{text} is not a GGUF file")
    whole = trained_int4.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (3, 20, 5_000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        refused(run(cut, "hi"), 1, str(cut))
    other = tmp_path / "other.gguf"
    at = whole.index(b"qwen35moe")
    other.write_bytes(whole[:at] + b"qwen99moe" + whole[at + 9 :])
    refused(run(other, "hi"), 1, f"{other} holds the architecture 'qwen99moe'")
    refused(run(tmp_path / "none.gguf", "hi"), 1, "there is no file", "hint: a model is a path")
    refused(
        run(tmp_path, "hi"), 1, "is a folder", f"hint: if it is a checkpoint, run: clover convert {tmp_path}"
    )
    refused(run(Path("nobody/nothing"), "hi", "--offline"), 1, "nobody/nothing is not in the cache")


def test_a_device_or_context_that_is_not_there(trained_int4: Path) -> None:
    refused(
        run(trained_int4, "hi", "--device", "tpu"), 1, "there is no device 'tpu'", "hint: devices found: "
    )
    refused(run(trained_int4, "hi", "-c", "9999999"), 1, "a context of 9999999 tokens is not possible")


# --- the command itself ------------------------------------------------------------------------------------


def test_every_command_has_a_module_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[1] / "clover_local/commands"
    shared = {"__init__", "options", "progress"}
    assert {path.stem for path in folder.glob("*.py")} - shared == set(COMMANDS)
    for name, does in COMMANDS.items():
        with pytest.raises(SystemExit) as stop:
            main([name, "--help"])
        assert stop.value.code == 0
        assert does.lower()[:20] in capsys.readouterr().out.lower()


def test_no_command_and_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ([], ["fly"], ["--nothing"]):
        assert main(line) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and "hint: run: clover --help" in err


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = clover("run", "-m", tmp_path / "x.gguf", "hi", "--debug")
    assert done.returncode == 1 and b"Traceback" in done.stderr and b"ModelError" in done.stderr


def terminal(*args: str, **env: str) -> bytes:
    """What Python writes to stderr when that is a terminal."""
    main_end, other_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm"} | env
    command = [sys.executable, *args]
    subprocess.run(command, stdin=other_end, stderr=other_end, env=environment, check=False, timeout=60)
    os.write(other_end, b"|")  # reading a terminal that nothing was written to would wait
    os.close(other_end)
    out = os.read(main_end, 65536).removesuffix(b"|")
    os.close(main_end)
    return out


def test_errors_are_red_on_a_terminal_unless_no_color() -> None:
    assert b"\033[1;31merror:" in terminal("-m", "clover_local", "fly", NO_COLOR="")
    plain = terminal("-m", "clover_local", "fly", NO_COLOR="1")
    assert b"error:" in plain and b"\033" not in plain
    assert b"there is no prompt" in terminal("-m", "clover_local", "run", NO_COLOR="1"), (
        "nothing waits for a prompt on a terminal"
    )


def test_a_bar_shows_on_a_terminal_once_it_takes_long_and_is_gone_after() -> None:
    with bar("loading", "bytes") as tell:
        assert tell is None, "stderr is no terminal here"
    code = (
        "from clover_local.commands import progress\n"
        "import sys, time\n"
        "progress.PATIENCE = float(sys.argv[1])\n"
        "with progress.bar('loading', 'bytes') as tell:\n"
        "    for i in range(3): tell(i, 3); time.sleep(0.15)\n"
    )
    quick, slow = terminal("-c", code, "60"), terminal("-c", code, "0")
    assert quick == b"" and b"loading" in slow
    assert slow.endswith(b"\x1b[2K"), "the line is erased"


# --- doctor ------------------------------------------------------------------------------------------------


def test_doctor_reports_what_is_here(trained_int4: Path, isolated_home: Path) -> None:
    done = clover("doctor", trained_int4, "--json")
    findings = {(f["room"], f["name"]): f for f in json.loads(done.stdout)}
    room = f"model {trained_int4}"
    assert findings["llama-cpp-python", "binding"]["value"].startswith("0.3.36, ggml ")
    assert "GB free" in findings["devices", "CPU"]["value"]
    assert str(isolated_home) in findings["folders", "model cache"]["value"]
    assert findings[room, "tokenizer"]["value"] == "1,536 tokens"
    problems = [f for f in findings.values() if f["kind"] == "problem"]
    assert done.returncode == bool(problems)
    assert all(problem["remedy"] for problem in problems)
    assert all(problem["room"] != room for problem in problems)


def test_doctor_names_what_is_wrong_with_a_model(trained_int4: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(trained_int4.read_bytes()[:100_000])
    done = clover("doctor", cut)
    assert done.returncode == 1
    assert "✗ error" in done.stdout.decode() and "not a complete GGUF file" in done.stdout.decode()
    assert "→ download or convert the model again" in done.stdout.decode()


def test_doctor_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    done = clover("doctor", HF_HUB_CACHE=str(blocked / "hub"))
    assert done.returncode == 1
    assert f"{blocked / 'hub'} cannot be written" in done.stdout.decode()
