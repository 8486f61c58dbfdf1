"""Where traces and results lie: files, or a bucket."""

import pytest

import requires

requires.installed("starlette")

from paceline.errors import PacelineError
from paceline.monitor.bucket import open_blobs


class TestBlobs:
    @pytest.fixture(params=["files", "bucket"])
    def blobs(self, request, tmp_path):
        if request.param == "files":
            return open_blobs("", tmp_path)
        requires.installed("fsspec")
        return open_blobs(f"memory://{tmp_path.name}", tmp_path)

    def test_they_come_back(self, blobs, tmp_path):
        path = tmp_path / "one"
        path.write_bytes(b"content")
        blobs.take(path, "results/001/1/result.json")
        assert not path.exists()
        assert blobs.exists("results/001/1/result.json")
        assert blobs.size("results/001/1/result.json") == 7
        with blobs.open("results/001/1/result.json") as file:
            assert file.read() == b"content"
        with blobs.local("results/001/1/result.json") as found:
            assert found.read_bytes() == b"content"
        assert [(key, size) for key, size, _ in blobs.listed()] == [
            ("results/001/1/result.json", 7)
        ]
        blobs.delete("results/001/1/result.json")
        blobs.delete("results/001/1/result.json")
        assert blobs.size("results/001/1/result.json") == 0
        with pytest.raises(FileNotFoundError):
            blobs.open("results/001/1/result.json")

    def test_a_url_of_no_bucket_is_an_error(self, tmp_path):
        with pytest.raises(PacelineError, match="nosuch"):
            open_blobs("nosuch://x", tmp_path)
