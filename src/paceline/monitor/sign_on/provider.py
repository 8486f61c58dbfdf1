"""The OpenID provider: its addresses, and the user that a code belongs to.

Authorization code flow with PKCE: OpenID Connect Core 1.0 (3.1), OpenID Connect Discovery 1.0,
RFC 7636 (PKCE, S256), RFC 9207 (issuer in the response), RFC 9700 (security best practice).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from paceline.client import NoRedirect
from paceline.errors import MonitorError
from paceline.extras import pip_install
from paceline.monitor.log import without_secrets
from paceline.monitor.sign_on.settings import SignOn, claim, is_loopback

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

#: Timeout of each response of the provider, and its largest size.
TIMEOUT_S, MAX_BYTES = 10.0, 1 << 20
#: Cache time of the provider's documents; unknown keys are looked up at once.
FRESH_S = 3600.0
#: Largest difference between its clock and ours.
LEEWAY_S = 60.0
#: Signatures by the provider's private key: neither "none" nor a shared secret.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class SignOnRefused(MonitorError):  # noqa: N818 (an answer)
    """The provider's answer does not prove the user's identity."""


class ProviderAway(MonitorError):  # noqa: N818 (an answer)
    """The provider does not answer, or gives an invalid answer."""


class Provider:
    """An OpenID provider; its documents are read at the first login.

    Raises (constructor):
        MonitorError: ``joserfc`` is not installed.
    """

    def __init__(self, settings: SignOn, clock: Callable[[], float]) -> None:
        try:
            import joserfc  # noqa: F401
        except ImportError:
            raise MonitorError(f"sign_on needs more: {pip_install('oidc')}") from None
        self.settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._document: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, KeySet] | None = None

    def address(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """The URL where a browser logs in.

        Raises:
            ProviderAway: its documents cannot be read.
        """
        endpoint = str(self._discovered()["authorization_endpoint"])
        challenge = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def check_issuer(self, issuer: str | None) -> None:
        """Check the response's ``iss`` (RFC 9207), so that no other provider's code is accepted.

        Raises:
            SignOnRefused: ``iss`` is another provider's, or missing although the provider sends it.
        """
        sends = self._discovered().get("authorization_response_iss_parameter_supported") is True
        if (issuer is None and sends) or issuer not in (None, self.settings.issuer):
            raise SignOnRefused("the answer comes from another provider")

    def claims(self, code: str, redirect_uri: str, verifier: str, nonce: str) -> dict[str, Any]:
        """The verified claims of the user that a code was issued for.

        Args:
            code: authorization code from the browser.
            redirect_uri: redirect URI that received the code.
            verifier: PKCE code verifier.
            nonce: nonce of the login's start.

        Raises:
            SignOnRefused: the code or the ID token is invalid.
            ProviderAway: the provider does not answer, or gives an invalid answer.
        """
        answer = self._exchange(code, redirect_uri, verifier)
        id_token = answer.get("id_token")
        if not isinstance(id_token, str):
            raise SignOnRefused("the provider gives no ID token")
        claims = self._verified(id_token)
        self._check(claims, nonce)
        wanted = (self.settings.user_claim, self.settings.groups_claim)
        access = answer.get("access_token")
        if isinstance(access, str) and any(claim(claims, name) is None for name in wanted):
            claims = {**self._user_info(access, claims["sub"]), **claims}
        return claims

    def _exchange(self, code: str, redirect_uri: str, verifier: str) -> Mapping[str, Any]:
        document, settings = self._discovered(), self.settings
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        form["code_verifier"] = verifier
        headers = {}
        # RFC 6749, 2.3.1; Discovery's default is client_secret_basic.
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        if settings.client_secret and "client_secret_basic" in methods:
            pair = f"{quote(settings.client_id, '')}:{quote(settings.client_secret, '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = settings.client_id
            if settings.client_secret:
                form["client_secret"] = settings.client_secret
        return _json(str(document["token_endpoint"]), urlencode(form).encode(), headers)

    def _verified(self, id_token: str) -> dict[str, Any]:
        """The claims of a signed ID token; unknown keys are looked up once more."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        if id_token.count(".") != 2:
            raise SignOnRefused("the ID token is not signed")
        for is_last in (False, True):
            try:
                keys = self._key_set(anew=is_last)
                token = jwt.decode(id_token, keys, algorithms=list(ALGORITHMS))
                return dict(token.claims)
            except (JoseError, KeyError, TypeError, ValueError) as error:
                if is_last:
                    reason = " ".join(str(error).split())[:200]
                    raise SignOnRefused(f"the ID token is invalid: {reason}") from None
        raise AssertionError

    def _check(self, claims: Mapping[str, Any], nonce: str) -> None:
        """Check the claims: OpenID Connect Core 1.0, 3.1.3.7."""
        client, now = self.settings.client_id, self._clock()
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        several = len(audiences) > 1
        problems = (
            (claims.get("iss") != self.settings.issuer, "is of another issuer"),
            (client not in audiences, "is for another client"),
            (several and claims.get("azp") != client, "is for another client"),
            (claims.get("azp", client) != client, "is for another client"),
            (not _is_time(claims.get("exp")), "has no end"),
            (_is_time(claims.get("exp")) and claims["exp"] <= now - LEEWAY_S, "has expired"),
            (not _is_time(claims.get("iat")), "has no time"),
            (_is_time(claims.get("iat")) and claims["iat"] > now + LEEWAY_S, "is of the future"),
            (claims.get("nbf", 0) != 0 and not _is_before(claims["nbf"], now), "is of the future"),
            (not _is_same(claims.get("nonce"), nonce), "is of another login (nonce)"),
            (not isinstance(claims.get("sub"), str) or not claims["sub"], "names nobody"),
        )
        for is_wrong, text in problems:
            if is_wrong:
                raise SignOnRefused(f"the ID token {text}")

    def _user_info(self, access_token: str, subject: str) -> Mapping[str, Any]:
        """Claims of the userinfo endpoint, which may alone have the groups; empty without one."""
        endpoint = self._discovered().get("userinfo_endpoint")
        if not isinstance(endpoint, str):
            return {}
        headers = {"Authorization": f"Bearer {access_token}"}
        claims = _json(self._checked(endpoint), None, headers)
        if claims.get("sub") != subject:  # OpenID Connect Core 1.0, 5.3.2
            raise SignOnRefused("the provider's user info belongs to another user")
        return claims

    def _discovered(self) -> Mapping[str, Any]:
        with self._lock:
            if self._document is None or self._document[0] < self._clock() - FRESH_S:
                issuer = self.settings.issuer
                document = _json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
                if document.get("issuer") != issuer:
                    raise ProviderAway(
                        f"the provider calls itself {str(document.get('issuer'))[:200]!r}, not "
                        f"{issuer!r}; set issuer to that URL"
                    )
                for name in _ENDPOINTS:
                    self._checked(document.get(name))
                self._document = self._clock(), document
            return self._document[1]

    def _checked(self, url: object) -> str:
        allowed = ("https://", "http://") if is_loopback(self.settings.issuer) else ("https://",)
        if not isinstance(url, str) or not url.startswith(allowed):
            raise ProviderAway("the provider's document lacks an endpoint, or one has no HTTPS")
        return url

    def _key_set(self, *, anew: bool) -> KeySet:
        from joserfc.jwk import KeySet

        address = str(self._discovered()["jwks_uri"])
        with self._lock:
            if anew or self._keys is None or self._keys[0] < self._clock() - FRESH_S:
                self._keys = self._clock(), KeySet.import_key_set({"keys": _public(_json(address))})
            return self._keys[1]


def _public(document: Mapping[str, Any]) -> list[Any]:
    """The provider's public keys; published symmetric keys are ignored, as all can read them."""
    keys = document.get("keys")
    return [
        key
        for key in (keys if isinstance(keys, list) else [])
        if isinstance(key, dict) and key.get("kty") != "oct"
    ]


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_before(value: object, now: float) -> bool:
    return isinstance(value, int | float) and value <= now + LEEWAY_S


def _is_same(value: object, wanted: str) -> bool:
    return isinstance(value, str) and hmac.compare_digest(value.encode(), wanted.encode())


def _json(url: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> dict[str, Any]:
    """Fetch a JSON object from the provider.

    Raises:
        SignOnRefused: the provider rejects the posted data (4xx).
        ProviderAway: no usable answer.
    """
    named = {"Accept": "application/json", "User-Agent": "paceline", **headers}
    request = urllib.request.Request(url, data=body, headers=named)
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
            content = answer.read(MAX_BYTES + 1)
        value = json.loads(content) if len(content) <= MAX_BYTES else None
    except urllib.error.HTTPError as error:
        with error:
            text = " ".join(error.read(300).decode("utf-8", "replace").split())
        kind = SignOnRefused if body is not None and 400 <= error.code < 500 else ProviderAway
        raise kind(f"the provider answers {error.code}: {without_secrets(text)}") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ProviderAway(f"the provider does not answer: {str(reason)[:200]}") from None
    if not isinstance(value, dict):
        raise ProviderAway("the provider's answer is no JSON object")
    return value
