"""What a monitor says of its own health, and while its store fails."""

import requires

requires.installed("starlette")

import monitor_site
from monitor_web import eventually, monitor
from paceline.monitor.web import ops

site, lines = monitor_site.site, monitor_site.lines


def test_a_store_that_fails_is_503_and_an_error_says_nothing_of_itself(tmp_path, lines):
    with monitor(tmp_path) as site:
        token = site.token()
        engine, site.service.engine = site.service.engine, None
        answer = site.ask("GET", "/api/v1/alerts", token=token)
        assert answer.status == 500
        assert "NoneType" not in answer.text
        eventually(lambda: any("traceback" in line for line in lines))
        site.service.engine = engine
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE tokens RENAME TO hidden")
        answer = site.ask("GET", "/api/v1/alerts", token=token)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE hidden RENAME TO tokens")
        assert site.ask("GET", "/api/v1/alerts", token=token).status == 200


def test_health(site):
    assert site.ask("GET", "/healthz").json == {"status": "ok"}
    assert site.ask("GET", "/readyz").json == {"status": "ready"}


def test_not_ready_says_no_more_than_that(tmp_path, monkeypatch, lines):
    asked = []

    def problem(engine):
        asked.append(engine)
        return "connection to server at 10.0.0.3 failed"

    monkeypatch.setattr(ops, "problem_of", problem)
    with monitor(tmp_path) as site:
        for _ in range(5):
            answer = site.ask("GET", "/readyz")
            assert answer.status == 503
            assert answer.json == {"status": "not ready", "reason": "the store does not answer"}
    assert 1 <= len(asked) <= 4  # not for each request
    assert any("10.0.0.3" in line for line in lines)
