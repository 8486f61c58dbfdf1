"""The sign-on settings: the provider, and the rights of users and groups."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from paceline.errors import MonitorError
from paceline.marked_yaml import Section, read_marked
from paceline.monitor.file_texts import text_of, texts_of
from paceline.monitor.store.tokens import PROJECT

#: Scopes of users, the weakest first; ``push`` is only for programs.
ROLES = ("read", "operate", "admin")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FIELDS = (
    "issuer",
    "client_id",
    "client_secret",
    "name",
    "scopes",
    "user_claim",
    "groups_claim",
    "hours",
    "grants",
)


@dataclass(frozen=True)
class Grant:
    """Rights of some users and groups in a project.

    Attributes:
        project: name of the project; "*" = all.
        scope: one of :data:`ROLES`.
        groups, users: patterns; one match is enough.
    """

    project: str
    scope: str
    groups: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class SignOn:
    """The sign-on settings of a file.

    Attributes:
        issuer: URL of the provider, as in its documents.
        client_id, client_secret: the service's registration at the provider; secret "" = a public
            client.
        name: the provider's name on the login button.
        scopes: requested OpenID scopes.
        user_claim: claim with the user's name.
        groups_claim: claim with the user's groups; ``a.b`` = b within a.
        hours: lifetime of a login.
        grants: rights of users and groups.
    """

    issuer: str
    client_id: str
    grants: tuple[Grant, ...]
    client_secret: str = ""
    name: str = "single sign-on"
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    user_claim: str = "email"
    groups_claim: str = "groups"
    hours: float = 12.0

    def counting(self, groups: Iterable[str]) -> tuple[str, ...]:
        """The user's groups that a grant names; the others are not kept."""
        return tuple(
            sorted(
                group
                for group in set(groups)
                if any(_fits(group, grant.groups) for grant in self.grants)
            )
        )

    def rights(self, user: str, groups: Iterable[str]) -> dict[str, str]:
        """Project -> the strongest scope that the grants give a user; empty without any."""
        groups = tuple(groups)
        rights: dict[str, str] = {}
        for grant in self.grants:
            mine = _fits(user, grant.users) or any(_fits(group, grant.groups) for group in groups)
            if mine and ROLES.index(grant.scope) >= ROLES.index(rights.get(grant.project, "read")):
                rights[grant.project] = grant.scope
        return rights


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine, so that nobody can eavesdrop."""
    return urlsplit(url).hostname in _LOOPBACK


def load_sign_on(path: str, url: str) -> SignOn | None:
    """The settings of a file; None without a file.

    Args:
        path: path of the file; "" = none.
        url: URL at which users reach the service.

    Raises:
        MonitorError: the file has an error; the message names file and line.
    """
    if not path:
        return None
    section = read_marked(Path(path), MonitorError)
    section.allow(_FIELDS)
    issuer = text_of(section, "issuer")
    if not _is_safe(issuer):
        section.fail("issuer", "must be like https://login.example.org (http: this machine only)")
    if not _is_safe(url):
        raise MonitorError(f"sign_on needs HTTPS: set base_url to https://..., not {url}")
    usual = SignOn(issuer, text_of(section, "client_id"), _grants(section))
    scopes = texts_of(section, "scopes") or usual.scopes
    if "openid" not in scopes:
        section.fail("scopes", "must have openid")
    return SignOn(
        usual.issuer,
        usual.client_id,
        usual.grants,
        client_secret=text_of(section, "client_secret", ""),
        name=text_of(section, "name", usual.name),
        scopes=scopes,
        user_claim=text_of(section, "user_claim", usual.user_claim),
        groups_claim=text_of(section, "groups_claim", usual.groups_claim),
        hours=_hours(section, usual.hours),
    )


def claim(claims: Mapping[str, object], name: str) -> object:
    """The claim of that name, or at the path ``a.b``; None if it is missing."""
    if name in claims:  # names may be URLs with dots
        return claims[name]
    value: object = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if not parts.hostname or parts.query or parts.fragment or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))


def _hours(section: Section, usual: float) -> float:
    value = section.plain("hours") if "hours" in section else usual
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 168:
        section.fail("hours", "must be a number from 0 to 168")
    return float(value)


def _grants(section: Section) -> tuple[Grant, ...]:
    """``grants``: project -> role -> groups and users."""
    projects = section.section("grants")
    grants = []
    for project in projects.nodes:
        if not PROJECT.fullmatch(project):
            projects.fail(project, "is no project; use letters, digits and . _ -, or * for all")
        roles = projects.section(project)
        roles.allow(ROLES)
        for role in roles.nodes:
            who = roles.section(role)
            who.allow(("groups", "users"))
            groups, users = texts_of(who, "groups"), texts_of(who, "users")
            if not groups and not users:
                roles.fail(role, "names no users; give groups or users")
            grants.append(Grant(project, role, groups, users))
    if not grants:
        section.fail("grants", "grants no rights, so that nobody could sign on")
    return tuple(grants)


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
