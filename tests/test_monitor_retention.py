"""What is too old, too much or nobody's goes."""

import os
import time

import requires

requires.installed("starlette")

import monitor_uploads
from monitor_uploads import begin, put
from paceline.monitor.config import Config
from paceline.monitor.retention import Retention
from paceline.monitor.store import jobs, sessions

site, trace = monitor_uploads.site, monitor_uploads.trace


class TestRetention:
    def fill(self, site, n):
        for number in range(n):
            upload = site.service.uploads
            path = upload.folder.parent / f"{number}.parquet"
            path.write_bytes(b"PAR1" + bytes([number]) * 1000)
            job = jobs.register(site.service.engine, "default", "job", 1.0)
            session = upload.adopt(job.id, path, "x", {}, 1000.0 + number)
            values = {"status": "done", "slowdown": 1.0 + number, "finished_at": 1.0, "facts": None}
            values.pop("facts")
            sessions.finish(site.service.engine, session, values)

    def settings(self, site, **changes):
        service = site.service
        config = Config(**{**vars(service.config), **changes})
        return Retention(
            config, service.engine, service.blobs, service.steps, service.uploads, service.spans
        )

    def test_what_is_too_old_goes_and_the_job_follows(self, site):
        self.fill(site, 4)
        removed = self.settings(site, keep_days=1.0).run(86_400.0 + 1002.0)
        assert removed.sessions == 2
        assert removed.freed_bytes == 2 * 1004
        row = site.ask("GET", "/api/v1/jobs/job", token=site.token()).json
        assert (row["n_sessions"], row["slowdown"]) == (2, 4.0)

    def test_what_is_too_much_goes_the_oldest_first_and_the_numbers_stay(self, site):
        self.fill(site, 4)
        removed = self.settings(site, keep_days=0.0, keep_gib=2100 / (1 << 30)).run(2000.0)
        assert (removed.sessions, removed.emptied) == (0, 2)
        assert len(list(site.service.blobs.listed())) == 2
        row = site.ask("GET", "/api/v1/jobs/job", token=site.token()).json
        assert row["n_sessions"] == 4

    def test_strays_and_abandoned_uploads_are_collected(self, site, trace):
        upload = begin(site, trace).json["upload"]
        put(site, upload, 0, trace[:10])
        stray = site.service.blobs.folder / "traces" / "ab" / ("ab" + "0" * 62)
        stray.parent.mkdir(parents=True)
        stray.write_bytes(b"x")
        os.utime(stray, (1, 1))
        retention = self.settings(site, keep_days=0.0)
        assert retention.run(time.time()).uploads == 0
        removed = retention.collect(time.time() + 90_000)
        assert (removed.uploads, removed.strays) == (1, 1)
        assert not stray.exists()
        assert list(site.service.uploads.folder.iterdir()) == []
