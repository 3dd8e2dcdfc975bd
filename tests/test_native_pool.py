"""Threads and instruction sets of the native engine: how they are chosen, and what forks, threads and exits do to them."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from headstart import _native as native

MODEL = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from native_models import Sizes, chain, forward, keep, make_model
model = make_model(Sizes(num_layers=4, hidden_size=256, inner_size=512, windows=(0,) * 4, rotary=(True,) * 4))
"""


def in_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from headstart import _native as n\n" + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def matrix(outputs: int = 320) -> native.Matrix:
    weights = np.random.default_rng(0).standard_normal((outputs, 64)).astype(np.float32)
    return native.Matrix(weights.view(np.uint8).reshape(-1), "float32", "float32", outputs, 64)


def test_every_available_instruction_set_can_be_forced() -> None:
    assert native.available_isas()[-1] == "portable"
    for isa in native.available_isas():
        assert in_new_process("print(n.isa())", HEADSTART_ISA=isa).stdout.strip() == isa


def test_an_unknown_instruction_set_is_an_error_that_lists_the_valid_ones() -> None:
    result = in_new_process("n.isa()", HEADSTART_ISA="mmx")
    assert result.returncode == 1
    assert "ValueError: HEADSTART_ISA names an instruction set that this machine cannot run: 'mmx'" in result.stderr
    assert ", ".join(native.available_isas()) in result.stderr


def test_threads_come_from_the_environment_or_the_usable_cores() -> None:
    assert in_new_process("print(n.num_threads())", HEADSTART_THREADS="3").stdout.strip() == "3"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert in_new_process("print(n.num_threads())", HEADSTART_THREADS="").stdout.strip() == str(cores)


@pytest.mark.parametrize("value", ["0", "-1", "two", "2x", "1025", "99999999999999999999", " 2"])
def test_a_bad_number_of_threads_is_refused(value: str) -> None:
    result = in_new_process("n.num_threads()", HEADSTART_THREADS=value)
    assert f"ValueError: HEADSTART_THREADS must be a whole number from 1 to 1024, not '{value}'" in result.stderr


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_a_bad_size_of_the_pool_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 1024"):
        native.set_num_threads(count)


def test_a_child_after_fork_computes_the_same() -> None:
    code = """
import os, numpy as np
w = np.random.default_rng(0).standard_normal((320, 64)).astype(np.float32)
m = n.Matrix(w.view(np.uint8).reshape(-1), 'float32', 'float32', 320, 64)
n.set_num_threads(3)
y = m.linear(w[:9])
pid = os.fork()
same = np.array_equal(m.linear(w[:9]), y) and n.num_threads() == 3
if pid == 0:
    os._exit(0 if same else 1)
print(same, os.waitpid(pid, 0)[1])
"""
    result = in_new_process(code)
    assert result.stdout.split() == ["True", "0"], result.stderr


def test_a_child_of_a_fork_during_another_threads_forward_computes_the_same() -> None:
    code = """
import os, signal, threading
import numpy as np
slot, busy = model.open(), model.open()
expected = forward(model, chain(slot, range(9))).logits.copy()
keep(model, slot, ())

def work():
    while True:
        forward(model, chain(busy, range(40), 39))
        keep(model, busy, ())

threading.Thread(target=work, daemon=True).start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # or a lock that nobody unlocks would keep the child for ever
        os._exit(0 if np.array_equal(forward(model, chain(slot, range(9))).logits, expected) else 1)
    assert os.waitpid(pid, 0)[1] == 0
os._exit(0)
"""
    result = in_new_process(MODEL + code)
    assert result.returncode == 0, result.stderr


def test_a_pool_whose_threads_are_refused_is_one_clear_error_and_works_when_made_smaller() -> None:
    code = """
import resource
from headstart.errors import ModelError
slot = model.open()
pages = int(open('/proc/self/statm').read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20),) * 2)  # no room for many stacks
n.set_num_threads(1000)
try:
    forward(model, chain(slot, range(9)))
except ModelError as error:
    print(error)
n.set_num_threads(1)
print(len(forward(model, chain(slot, range(9))).logits))
"""
    result = in_new_process(MODEL + code)
    assert result.returncode == 0, result.stderr
    message, rows = result.stdout.splitlines()
    expected = r"the system refuses thread (\d+) of 1000 of the native engine .+; set HEADSTART_THREADS to (\d+) or less, .*"
    found = re.fullmatch(expected, message)
    assert found and int(found[1]) == int(found[2]) + 1, message
    assert rows == "9"


def test_the_interpreter_leaves_while_a_daemon_thread_is_inside_a_forward() -> None:
    code = """
import threading, time
slot = model.open()

def work():
    while True:
        forward(model, chain(slot, [1] * 400, 399))
        keep(model, slot, ())

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
    slot = model.open()
time.sleep(0.2)
print('done')
"""
    for _ in range(5):
        result = in_new_process(MODEL + code)
        assert (result.returncode, result.stdout.strip()) == (0, "done"), result.stderr


def test_python_threads_take_turns() -> None:
    native.set_num_threads(2)
    shared, x = matrix(), np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    expected = shared.linear(x)
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(50) if not np.array_equal(shared.linear(x), expected))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_interpreter_leaves_with_workers_still_awake() -> None:
    code = """
import numpy as np
w = np.zeros((320, 64), np.float32)
m = n.Matrix(w.view(np.uint8).reshape(-1), 'float32', 'float32', 320, 64)
n.set_num_threads(4)
m.linear(w[:64])
print('done')
"""
    result = in_new_process(code)
    assert (result.returncode, result.stdout.strip()) == (0, "done"), result.stderr
