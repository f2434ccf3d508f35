"""Files are written whole or not at all, locks end with their process, and damage and full disks are reported."""

import errno
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from reversal.common import files, jobs
from reversal.common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
LOCK_HOLDER = """
    import time
    from reversal.common import files
    assert files.lock("held")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(RuntimeError), files.atomic(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_changed_bit_in_a_file_or_a_folder_is_an_error(tmp_path):
    table, folder = tmp_path / "results/table.csv", tmp_path / "results/traces"
    folder.mkdir(parents=True)
    table.write_text("a,b\n1,2\n")
    (folder / "one.safetensors").write_bytes(bytes(100))
    made = ["results/table.csv", "results/traces"]
    files.record_hashes(made)
    (folder / ".snakemake_timestamp").touch()
    files.verify_hashes(made)
    flip_bit(table)
    with pytest.raises(UserError, match="results/table.csv changed since it was made; delete results/table.csv"):
        files.verify_hashes(made)
    flip_bit(table)
    flip_bit(folder / "one.safetensors")
    with pytest.raises(UserError, match="results/traces/one.safetensors changed since it was made"):
        files.verify_hashes(made)
    (folder / "one.safetensors").unlink()
    with pytest.raises(UserError, match="one.safetensors is missing since it was made"):
        files.verify_hashes(made)


def test_a_model_without_its_checksums_is_an_error(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net/model.safetensors").write_bytes(bytes(100))
    (tmp_path / "net/checksums.json").write_text("{}")
    files.record_hashes(["net"])
    files.verify_hashes(["net"])
    (tmp_path / "net/checksums.json").unlink()
    with pytest.raises(UserError, match="net/checksums.json is missing since it was made"):
        files.verify_hashes(["net"])


def test_a_damaged_record_of_hashes_is_named(tmp_path):
    (tmp_path / "table.csv").write_text("a\n")
    files.record_hashes(["table.csv"])
    record = files.HASHES / "table.csv.json"
    record.write_bytes(record.read_bytes()[:-9])
    with pytest.raises(UserError, match="hashes/table.csv.json is damaged; delete it and table.csv"):
        files.verify_hashes(["table.csv"])


def test_a_table_edited_by_hand_is_used_with_a_warning(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    files.record_hashes(["table.csv"])
    table.write_text("a,b\n1,3\n")
    later = time.time() + 100
    os.utime(table, (later, later))
    warnings = []
    files.verify_hashes(["table.csv"], warn=warnings.append)
    assert warnings == ["table.csv was changed after it was made; it is used as it is"]


def test_files_that_no_job_made_are_not_verified(tmp_path):
    (tmp_path / "mine.csv").write_text("a\n")
    files.verify_hashes(["mine.csv", "absent.csv"])


def test_a_job_rejects_an_input_that_changed(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    files.record_hashes(["table.csv"])
    flip_bit(tmp_path / "table.csv")
    job = SimpleNamespace(log=["log"], threads=1, input=["table.csv"], output=["out.csv"])
    with pytest.raises(SystemExit, match="table.csv changed since it was made"), jobs.job(job):
        pytest.fail("the body must not run")


def python_options(code):
    """The options of `subprocess.run` that run `code` with the library importable."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return {"args": command, "text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}}


def run_python(code):
    return subprocess.run(**python_options(code), capture_output=True, check=False, timeout=120)


def test_a_lock_ends_with_its_process_and_not_before(tmp_path):
    holder = subprocess.Popen(**python_options(LOCK_HOLDER), stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "ready\n"
        assert not files.lock("held")
    finally:
        holder.kill()
        holder.communicate()
    warnings = []
    assert files.lock("held", waiting=lambda: warnings.append("waiting"))
    assert not warnings


SMALL_DISK = """
    import resource, sys
    from types import SimpleNamespace
    from reversal.common import files, jobs
    job = SimpleNamespace(log=[], threads=1, input=[], output=[{output!r}])
    {prepare}
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    with jobs.job(job):
        {write}
"""


def test_a_table_that_does_not_fit_on_the_disk_gives_one_line_and_the_old_one_stays(tmp_path):
    table = tmp_path / "table.csv"
    pd.DataFrame({"a": [1]}).to_csv(table, index=False)
    before = table.read_bytes()
    write = f"files.write_table(pd.DataFrame({{'a': range(10_000)}}), {str(table)!r})"
    done = run_python(SMALL_DISK.format(output=str(table), prepare="import pandas as pd", write=write))
    assert done.returncode == 1
    assert done.stderr.strip() == f"error: the file is too large: {table} was not written"
    assert table.read_bytes() == before and list(tmp_path.iterdir()) == [table]


def test_a_model_that_does_not_fit_on_the_disk_gives_one_line_and_the_old_one_stays(tmp_path):
    folder = tmp_path / "model"
    prepare = (
        "from reversal.models import network; "
        "net = network.new(causal=True, vocab=500, width=32, layers=1, heads=2, mlp=64, eos=0, seed=0); "
        f"network.save(net, None, {str(folder)!r})"
    )
    done = run_python(
        SMALL_DISK.format(output=str(folder), prepare=prepare, write=f"network.save(net, None, {str(folder)!r})")
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == f"error: the file is too large: {folder} was not written"
    assert "Traceback" not in done.stderr
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        ["checksums.json", "config.json", "generation_config.json", "model.safetensors"]
    )
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("I/O error: No space left (os error 28)")]
)
def test_a_full_disk_is_recognised(error):
    assert files.describe_full_disk(error) == "the disk is full"
    assert files.describe_full_disk(ValueError("something else")) is None


def test_floats_in_tables_are_rounded_and_other_columns_are_unchanged(tmp_path):
    table = pd.DataFrame({"step": [1, 2], "effect": [0.3 - 0.2 - 0.1, 0.1 + 0.2], "kind": ["state", "mlp"]})
    files.write_table(table, tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == "step,effect,kind\n1,0.0,state\n2,0.3,mlp\n"
