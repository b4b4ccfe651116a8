"""What there is to learn, in which domains. Imports without torch."""

from posttrain.tasks.card import BaseRate, Card
from posttrain.tasks.catalogue import RETENTION, TRAINING, get_domain, list_domains
from posttrain.tasks.domain import Domain, Verifier
from posttrain.tasks.errors import DomainError
from posttrain.tasks.items import Item

__all__ = [
    "RETENTION",
    "TRAINING",
    "BaseRate",
    "Card",
    "Domain",
    "DomainError",
    "Item",
    "Verifier",
    "get_domain",
    "list_domains",
]
