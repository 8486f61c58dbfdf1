"""``paceline plan --serve``: the search's page with sliders, for this machine alone."""

import asyncio
import re

import pytest

import requires
from paceline.cli.main import run
from paceline.cli.plan_page import PlanPage, create_app
from paceline.model.cluster_presets import cluster_preset
from paceline.model.llm_presets import llm_preset
from paceline.plan.search import search

requires.installed("starlette")


OPTIONS = {"max_vpp": 1, "micro_batches": (1,), "zeros": (1, 3)}


@pytest.fixture(scope="module")
def ask():
    """Asks the application itself: (query, host) -> status and text."""
    page = PlanPage(llm_preset("llama3-8b"), cluster_preset("h100"), 16, 64, OPTIONS, 5)
    app = create_app(page)

    def one(query="", host="127.0.0.1"):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "GET", "path": "/", "root_path": "", "scheme": "http",
            "query_string": query.encode(), "headers": [(b"host", host.encode())],
        }  # fmt: skip
        asyncio.run(app(scope, receive, send))
        body = b"".join(message.get("body", b"") for message in sent)
        return sent[0]["status"], body.decode()

    return one


def test_the_page_is_that_of_the_search_with_sliders(ask):
    text = ask()[1]
    best = search(llm_preset("llama3-8b"), cluster_preset("h100"), 16, 64, **OPTIONS)
    assert f"<b>{best.plan(0).describe()}</b> on 16 GPUs" in text
    sliders = re.findall(r'<input type="range" id="(\w+)".*?value="([^"]+)"', text)
    assert [name for name, _ in sliders] == ["gpus", "seq_len", "global_batch", "price"]
    assert [value for _, value in sliders][:3] == ["0", "0", "0"]
    assert "form-action &#x27;self&#x27;" in text or "form-action &#39;self&#39;" in text


def test_a_slider_beyond_the_models_own_positions_is_a_warning(ask):
    words = "a sample of 16,384 tokens is longer than llama3-8b allows"
    assert words in ask("seq_len=1")[1]
    assert "longer than" not in ask()[1]


def test_sliders_double_and_halve(ask):
    text = ask("gpus=1&seq_len=-1&global_batch=1&price=3")[1]
    for words in ("32 GPUs", "4,096 tokens of a sample", "128 samples", "$3.00 per GPU"):
        assert words in text


def test_a_price_that_is_not_moved_keeps_its_source(ask):
    price = cluster_preset("h100").price_per_gpu_hour
    for query in ("", f"gpus=0&price={price:g}"):
        text = ask(query)[1]
        assert "the slider" not in text
        assert f'min="0" max="20" step="0.01" value="{price:g}"' in text
    assert "the slider" in ask("price=3")[1]


def test_the_slider_that_was_moved_has_the_focus_again(ask):
    text = ask("gpus=1&moved=gpus")[1]
    assert re.findall(r'id="(\w+)"[^>]* autofocus', text) == ["gpus"]
    assert "autofocus" not in ask("moved=%22onload")[1]


@pytest.mark.parametrize("query", ["gpus=9999", "gpus=x&price=nan", "price=-1", "seq_len=1e99"])
def test_values_out_of_bounds_are_brought_back(ask, query):
    status, text = ask(query)
    assert status == 200
    assert "GPUs" in text


def test_where_nothing_fits_the_reason_and_the_sliders_remain(ask):
    text = ask("gpus=-4&seq_len=4")[1]
    assert "No plan" in text
    assert 'id="gpus"' in text


def test_another_host_is_refused(ask):
    assert ask(host="evil.example")[0] == 400


def test_a_wrong_port(capsys):
    argv = ["plan", "--model", "gpt2-355m", "--gpu", "a100", "--gpus", "8", "--global-batch", "8"]
    assert run([*argv, "--serve", "99999"]) == 2
    assert "a port is a number" in capsys.readouterr().err
