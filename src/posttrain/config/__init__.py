"""What the user asked for, and where each value came from. The only package that uses pydantic; imports no torch."""

from posttrain.config.errors import ConfigError
from posttrain.config.fingerprint import recipe_fingerprint
from posttrain.config.load import LoadedRecipe, load_recipe
from posttrain.config.origins import Origin
from posttrain.config.recipe import (
    AdapterSection,
    DiagnosisSection,
    DomainSection,
    EvaluationSection,
    GateSection,
    MixtureSection,
    ModelSection,
    Recipe,
    RewardsSection,
    RlSection,
    RunSection,
    SandboxSection,
    SftSection,
)

__all__ = [
    "AdapterSection",
    "ConfigError",
    "DiagnosisSection",
    "DomainSection",
    "EvaluationSection",
    "GateSection",
    "LoadedRecipe",
    "MixtureSection",
    "ModelSection",
    "Origin",
    "Recipe",
    "RewardsSection",
    "RlSection",
    "RunSection",
    "SandboxSection",
    "SftSection",
    "load_recipe",
    "recipe_fingerprint",
]
