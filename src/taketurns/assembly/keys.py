"""How a service makes keys and knows keys and tokens again, as its settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taketurns.companies.keys import Stamp
from taketurns.engine.errors import ConfigurationError
from taketurns.engine.token import ClaimNames
from taketurns.settings import Settings
from taketurns.storage.database import Database

if TYPE_CHECKING:
    from taketurns.companies.signing_keys import SigningKeys
    from taketurns.companies.tokens import Tokens


def make_stamp(settings: Settings) -> Stamp:
    """What makes keys and knows them again: the same for all processes of a cell."""
    peppers = tuple(pepper.get_secret_value().encode() for pepper in settings.key_peppers)
    return Stamp(settings.key_environment, peppers or (b"",))


def make_tokens(settings: Settings, database: Database) -> Tokens | None:
    """What knows the identity provider's tokens, if one is set. Raises ConfigurationError."""
    if settings.oidc_issuer is None:
        return None
    signing_keys = make_signing_keys(settings, settings.oidc_issuer)
    from taketurns.companies.tokens import Tokens  # noqa: PLC0415  what it needs is there now

    return Tokens(
        database,
        signing_keys,
        audience=settings.oidc_audience or "",
        algorithms=settings.oidc_algorithms,
        names=ClaimNames(settings.oidc_company_claim, settings.oidc_scope_claim, settings.oidc_role_claim),
        leeway_seconds=settings.oidc_leeway_seconds,
    )


def make_signing_keys(settings: Settings, issuer: str) -> SigningKeys:
    """The keys of the identity provider. Raises ConfigurationError."""
    try:
        from taketurns.companies.signing_keys import SigningKeys  # noqa: PLC0415  comes with taketurns[oidc]
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"tokens cannot be checked without {error.name}: pip install 'taketurns[oidc]'"
        ) from None
    return SigningKeys(issuer, jwks_url=settings.oidc_jwks_url)
