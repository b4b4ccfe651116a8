"""What is looked at before any work starts: domains and their files, enough tasks of each kind, prompts that fit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.config import DomainSection, LoadedRecipe, Recipe
from posttrain.inference.renderer import PromptError
from posttrain.loop.policy import Policy
from posttrain.records import EnvironmentSpec, Split, Task
from posttrain.rewards import resolve_verifier
from posttrain.tasks import Domain, DomainError, get_domain

GENERATED_TASKS = 8  # of a generator there is no end; a few show whether it makes training tasks at all


class ContextTooSmall(ValueError):
    """A domain's prompts do not fit into the context."""


def own_files(loaded: LoadedRecipe, domains: dict[str, Domain]) -> dict[str, Any]:
    """What besides the recipe decides the result: hashes of task and verifier files, versions of the domains. A run
    whose verifier changed half-way would compare two different measures."""
    files = {}
    for section in loaded.recipe.domain:
        for path in (section.tasks, section.verifier.partition(":")[0] if ":" in section.verifier else ""):
            if path:
                files[path] = hashlib.sha256((loaded.base_folder / path).read_bytes()).hexdigest()
    return {"files": files, "domain_versions": {name: domain.version for name, domain in domains.items()}}


def check_tasks(recipe: Recipe, domains: dict[str, Domain]) -> None:
    """Raises DomainError where a domain has too few held-out tasks, or none to train on."""
    for domain in domains.values():
        domain.draw(recipe.evaluation.items_per_domain, Split(recipe.evaluation.split), 0)
    train_tasks(domains, recipe)


def train_tasks(domains: dict[str, Domain], recipe: Recipe) -> list[Task]:
    """The training tasks of files, and some of each generator."""
    tasks: list[Task] = []
    for name in recipe.mixture.domains:
        domain = domains[name]
        held = domain.card().splits[Split.TRAIN]["tasks"]
        tasks += domain.draw(1, Split.TRAIN, 0) if held == 0 else []  # says what is missing
        tasks += domain.tasks(Split.TRAIN) if held is not None else domain.draw(GENERATED_TASKS, Split.TRAIN, 0)
    return tasks


def load_domains(loaded: LoadedRecipe) -> dict[str, Domain]:
    """Built-in domains and the recipe's own. Raises DomainError before any work starts."""
    own = {section.name: section for section in loaded.recipe.domain}
    names = [*loaded.recipe.mixture.domains, *loaded.recipe.mixture.retention]
    if not loaded.recipe.mixture.domains:
        raise DomainError(
            "the recipe trains no domain: name at least one in [mixture] domains (see `posttrain domains list`)"
        )
    return {name: own_domain(own[name], loaded.base_folder) if name in own else get_domain(name) for name in names}


def own_domain(section: DomainSection, base_folder: Path) -> Domain:
    """The domain that a `[[domain]]` table describes; its files are relative to the recipe."""
    verifier = resolve_verifier(section.verifier, base_folder) if ":" in section.verifier else section.verifier
    if isinstance(verifier, str):
        resolve_verifier(verifier)  # an unknown name is an error now, not at the first verdict
    environment = EnvironmentSpec(max_new_tokens=section.max_new_tokens, stop=tuple(section.stop))
    return Domain(
        section.name,
        tasks=base_folder / section.tasks,
        prompt=section.prompt,
        answer=section.answer,
        demonstrations=section.demonstration or None,
        verifier=verifier,
        environment=environment,
        render=section.render,
    )


def check_prompts(policy: Policy, tasks: Sequence[Task]) -> None:
    """Raises `ContextTooSmall` for the first task whose prompt and answer do not fit."""
    for task in tasks:
        try:
            ids = policy.renderer.render(task)
        except PromptError as error:
            raise ContextTooSmall(f"domain {task.domain}: {error}") from None
        need = len(ids) + task.environment.max_new_tokens
        if need > policy.max_context_tokens:
            raise ContextTooSmall(
                f"domain {task.domain}: a prompt of {len(ids)} tokens and {task.environment.max_new_tokens} new ones "
                f"need {need}, the context has {policy.max_context_tokens}: shorten the prompt, or raise "
                "model.max_context_tokens"
            )
