"""A monitor with sign-on, and a browser without a screen that goes where it is sent."""

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from html import unescape
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from joserfc import jwk, jwt

from monitor_web import Monitor, monitor

FILE = """\
issuer: {issuer}
client_id: paceline
client_secret: hush & rush
name: Example
scopes: [openid, email, groups]
grants:
  llm:
    admin: {{users: [lead@example.org]}}
    operate: {{groups: ["llm-*"]}}
  vision:
    read: {{groups: vision, users: [lead@example.org]}}
  "*":
    admin: {{groups: platform}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextlib.contextmanager
def signing_monitor(folder, issuer, text=FILE, port=None, **settings):
    path = folder / "sign-on.yaml"
    path.write_text(text.format(issuer=issuer))
    port = port or free_port()
    options = {"bind": f"127.0.0.1:{port}", "base_url": f"http://127.0.0.1:{port}"}
    with monitor(folder / "data", sign_on=str(path), **options, **settings) as found:
        yield found


@dataclass
class Page:
    status: int
    headers: list
    text: str
    url: str

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    def cookies(self):
        return [value for key, value in self.headers if key.lower() == "set-cookie"]


@dataclass
class Browser:
    """Keeps cookies by host and port; follows redirects while ``follow`` says so."""

    jar: dict = field(default_factory=dict)

    def ask(self, url, form=None, **headers):
        parts = urlsplit(url)
        jar = self.jar.setdefault(parts.netloc, {})
        sent = {"Accept": "text/html", **headers}
        cookies = "; ".join(
            f"{name}={value}" for name, (value, path) in jar.items() if parts.path.startswith(path)
        )
        if cookies:
            sent["Cookie"] = cookies
        body = None
        if form is not None:
            body = urlencode(form)
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        try:
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            connection.request("GET" if form is None else "POST", target, body, sent)
            answer = connection.getresponse()
            page = Page(answer.status, answer.getheaders(), answer.read().decode(), url)
        finally:
            connection.close()
        for text in page.cookies():
            for name, morsel in SimpleCookie(text).items():
                if morsel["max-age"] == "0" or "1970" in morsel["expires"]:
                    jar.pop(name, None)
                else:
                    jar[name] = (morsel.value, morsel["path"] or "/")
        return page

    def follow(self, page, until=lambda url: False, most=12):
        """Go where redirects lead, until an address that ``until`` knows; that page or address."""
        while page.status in (301, 302, 303, 307):
            url = urljoin(page.url, page.header("location"))
            if until(url):
                return url
            most -= 1
            assert most, url
            page = self.ask(url)
        return page


def form_of(page):
    """(address, hidden fields) of the first form of a page."""
    html = re.search(r"<form.*?</form>", page.text, re.S)[0]
    action = unescape(re.search(r'action="([^"]*)"', html)[1])
    fields = {}
    for tag in re.findall(r"<input[^>]*>", html):
        name = re.search(r'name="([^"]*)"', tag)
        value = re.search(r'value="([^"]*)"', tag)
        if name:
            fields[name[1]] = unescape(value[1]) if value else ""
    return urljoin(page.url, action), fields


class WrongProvider:
    """A provider of these tests that signs what it is told to, to see what is refused.

    Attributes:
        claims: changes to the ID token's claims; None removes one.
        header: changes to its header.
        key: that signs.
        published: keys that it shows.
        token: the whole token instead, if any.
        extra: of the query that leads back.
    """

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = jwk.RSAKey.generate_key(2048, {"kid": "one"}, private=True)
        self.reset()
        self._socket = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def reset(self):
        self.claims, self.header, self.token, self.extra = {}, {}, None, {}
        self.algorithm, self.published, self.asked = "RS256", [self.key], []
        self.document, self.userinfo, self.hangs = {}, {}, False
        self.signing, self.by_code = self.key, {}

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection, connection.makefile("rb") as file:
            method, target, _ = file.readline().decode().split()
            headers = http.client.parse_headers(file)
            body = file.read(int(headers.get("Content-Length", 0))).decode()
            parts = urlsplit(target)
            self.asked.append((method, parts.path, dict(parse_qsl(body)), headers))
            if self.hangs:
                time.sleep(60)
            status, extra, content = self._content(parts, dict(parse_qsl(body)))
            data = json.dumps(content).encode()
            head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n"
            connection.sendall((head + extra + "\r\n").encode() + data)

    def _content(self, parts, form):
        if parts.path.endswith("openid-configuration"):
            paths = {"authorization_endpoint": "/auth", "token_endpoint": "/token"}
            paths |= {"jwks_uri": "/keys", "userinfo_endpoint": "/me"}
            urls = {name: self.url + path for name, path in paths.items()}
            return 200, "", {"issuer": self.url, **urls, **self.document}
        if parts.path == "/keys":
            return 200, "", {"keys": [key.as_dict(private=False) for key in self.published]}
        if parts.path == "/auth":
            query = dict(parse_qsl(parts.query))
            self.by_code["abc"] = query
            back = {"code": "abc", "state": query["state"], **self.extra}
            back = {name: value for name, value in back.items() if value is not None}
            return 302, f"Location: {query['redirect_uri']}?{urlencode(back)}\r\n", {}
        if parts.path == "/me":
            return 200, "", self.userinfo
        return 200, "", {"id_token": self.token or self._token(), "access_token": "at"}

    def _token(self):
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": "paceline", "sub": "42", "iat": now, "exp": now + 300,
            "nonce": self.by_code["abc"]["nonce"], "email": "lead@example.org",
            "email_verified": True, "groups": [],
        }  # fmt: skip
        claims = {k: v for k, v in {**claims, **self.claims}.items() if v is not None}
        header = {"alg": self.algorithm, "kid": self.signing.kid, **self.header}
        return jwt.encode(header, claims, self.signing, algorithms=[self.algorithm])

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def url_of(site: Monitor):
    return site.service.config.url


def log_in(site, browser, to="/"):
    """Through the provider, which asks nothing; the last page."""
    page = browser.ask(f"{url_of(site)}/login/oidc?{urlencode({'next': to})}")
    return browser.follow(page)
