import errno
from pathlib import Path
from typing import BinaryIO

import pytest

from paceline.errors import OutputError
from paceline.files import check_targets, make_folder, write_files
from paceline.report.folder import check_folder


def write_new(file: BinaryIO) -> None:
    file.write(b"new")


def test_files_are_written_and_nothing_else_stays(tmp_path: Path) -> None:
    write_files({tmp_path / "a": write_new, tmp_path / "b": write_new})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"new",
        "b": b"new",
    }


def test_nothing_is_written_if_one_target_exists(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(OutputError, match=r"b exists already; .*--force"):
        write_files({tmp_path / "a": write_new, tmp_path / "b": write_new})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"old"}


def test_all_targets_that_exist_are_counted(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    with pytest.raises(OutputError, match=r"a exists already \(and 2 more\)"):
        check_targets([tmp_path / "a", tmp_path / "b", tmp_path / "c"])


def test_force_overwrites(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    write_files({tmp_path / "a": write_new}, force=True)
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_files({tmp_path / "link": write_new}, force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_failure_leaves_the_old_file_and_no_partial_one(tmp_path: Path) -> None:
    def fill_disk(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(OutputError, match="b cannot be written: No space left"):
        write_files({tmp_path / "a": write_new, tmp_path / "b": fill_disk}, force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"old"}


def test_an_interrupt_leaves_no_partial_file(tmp_path: Path) -> None:
    def interrupt(_: BinaryIO) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_files({tmp_path / "a": interrupt})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    def meanwhile(file: BinaryIO) -> None:
        (tmp_path / "a").write_bytes(b"other")
        file.write(b"new")

    with pytest.raises(OutputError, match="exists already"):
        write_files({tmp_path / "a": meanwhile})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"other"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "is a folder; give the name of a file"),
        ("absent/file", "absent does not exist"),
        ("file/below", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_places_that_take_no_file(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=message):
        write_files({tmp_path / name: write_new})


def test_devices_are_not_replaced() -> None:
    with pytest.raises(OutputError, match="/dev/null is no regular file"):
        write_files({Path("/dev/null"): write_new}, force=True)
    assert Path("/dev/null").is_char_device()


def test_folders_are_made_where_no_file_is_in_the_way(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    for name in ("file", "file/below"):
        with pytest.raises(OutputError, match="a file is in the way"):
            make_folder(tmp_path / name)


def test_results_of_an_earlier_analysis_are_seen_before_the_work(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / "by_worker.csv").touch()
    with pytest.raises(OutputError, match=r"by_worker\.csv exists already"):
        check_folder(tmp_path)
    check_folder(tmp_path, force=True)
    with pytest.raises(OutputError, match="is a file; --out takes a folder"):
        check_folder(tmp_path / "by_worker.csv", force=True)
