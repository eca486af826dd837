"""What the doctor says of who is let in: settings that make that weaker than it looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

from taketurns.assembly.keys import make_signing_keys
from taketurns.companies.errors import IdentityProviderUnavailable
from taketurns.engine.addresses import is_loopback
from taketurns.engine.errors import ConfigurationError
from taketurns.settings import Settings
from taketurns.storage.advice import Finding, Level


def examine(settings: Settings) -> Iterator[Finding]:
    """Look at the settings, and at the identity provider if one is set."""
    yield _authentication(settings)
    yield _peppers(settings)
    if settings.oidc_issuer is not None:
        yield asyncio.run(_identity_provider(settings, settings.oidc_issuer))
    if not is_loopback(settings.metrics_host):
        yield Finding(
            Level.ADVICE,
            "metrics of workers",
            f"served to whoever reaches {settings.metrics_host}:{settings.metrics_port}",
            "they ask for no key: let nobody but their collector reach that port",
        )


def _authentication(settings: Settings) -> Finding:
    if settings.authentication == "on":
        return Finding(Level.OK, "authentication", "on: the API asks for keys")
    if settings.authentication == "off" and not is_loopback(settings.host):
        found = f"off, and TAKETURNS_HOST is {settings.host}"
        return Finding(Level.PROBLEM, "authentication", found, "the API does not start so: switch it on")
    if settings.authentication == "off":
        found = "off: whoever is on this machine may do everything"
        return Finding(Level.ADVICE, "authentication", found, "a proxy here is on this machine too: switch it on then")
    found = f"off: whoever reaches {settings.host}:{settings.port} may do everything"
    return Finding(
        Level.ADVICE, "authentication", found, "switch it on, or see that something in front keeps strangers out"
    )


def _peppers(settings: Settings) -> Finding:
    peppers = [pepper.get_secret_value() for pepper in settings.key_peppers]
    if not peppers:
        return Finding(
            Level.ADVICE,
            "key peppers",
            "none: whoever can write to the database can plant a key",
            "set TAKETURNS_KEY_PEPPERS to a long random text, with a comma behind it while there are keys from before,"
            " for every API and for taketurns keys",
        )
    if "" in peppers:
        return Finding(
            Level.ADVICE,
            "key peppers",
            "keys that were made without one work: whoever can write to the database can plant a key",
            "take the empty place out of TAKETURNS_KEY_PEPPERS when each of them was used, or is revoked",
        )
    return Finding(Level.OK, "key peppers", str(len(peppers)))


async def _identity_provider(settings: Settings, issuer: str) -> Finding:
    subject = "identity provider"
    if settings.authentication != "on":
        found = "not asked: authentication is off"
        return Finding(Level.ADVICE, subject, found, "set TAKETURNS_AUTHENTICATION=on")
    try:
        async with aclosing(make_signing_keys(settings, issuer)) as signing_keys:
            keys = await signing_keys.read()
    except (ConfigurationError, IdentityProviderUnavailable) as error:
        return Finding(Level.PROBLEM, subject, str(error), "until then the API takes no tokens but keys")
    fitting = [one for one in keys.values() if any(one.fits(algorithm) for algorithm in settings.oidc_algorithms)]
    if not fitting:
        found = f"{issuer} has no key for {', '.join(settings.oidc_algorithms)}"
        return Finding(Level.PROBLEM, subject, found, "set TAKETURNS_OIDC_ALGORITHMS to what it signs with")
    return Finding(Level.OK, subject, f"{issuer}, {len(fitting)} keys")
