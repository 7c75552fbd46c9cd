"""Pair lists are read the same way everywhere."""

import pytest

from ananet import InputError
from ananet.io.pairs import holds_pair, pair_of_line, read_pairs


def test_names_comments_and_byte_order_marks(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_bytes("\ufeffa.jpg b.jpg\r\n\n# c.jpg d.jpg\n  left 1.jpg\t right 1.jpg \n".encode())
    assert list(read_pairs(path)) == [
        (f"{path}, line 1", ("a.jpg", "b.jpg")),
        (f"{path}, line 4", ("left 1.jpg", "right 1.jpg")),
    ]
    path.write_bytes("\ufeff# comment\na b 0.5".encode())
    assert list(read_pairs(path, more_columns=True)) == [(f"{path}, line 2", ("a", "b"))]


@pytest.mark.parametrize("line", ["a.jpg", "a b c", "a\tb\tc", "a\t", "a\t\tb"])
def test_bad_lines_name_file_and_line(line, tmp_path):
    (tmp_path / "pairs.txt").write_text(f"a b\n{line}\n")
    with pytest.raises(InputError, match=r"pairs\.txt, line 2: expected two names, with a tab between them .*, got '"):
        list(read_pairs(tmp_path / "pairs.txt"))


def test_bad_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        list(read_pairs(tmp_path / "none.txt"))
    (tmp_path / "latin.txt").write_bytes(b"\xe4.jpg b.jpg")
    with pytest.raises(InputError, match="expected a text file in UTF-8"):
        list(read_pairs(tmp_path / "latin.txt"))


def test_lines_of_bytes():
    assert pair_of_line("\ufeffä b\n".encode()) == ("ä", "b")
    assert holds_pair(b"a b") and not holds_pair(b"\xef\xbb\xbf# a b\n") and not holds_pair(b" \r\n")
    with pytest.raises(InputError, match="expected text in UTF-8"):
        pair_of_line(b"\xe4 b")
