"""What is allowed: a YAML text that people write, or every mistake in it at once.

`policies/baseline.yaml` is shipped: no debugging, no migration, and the least versions that AMD's bulletins ask for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator
from typing_extensions import override

from contract.config import StrictConfig
from contract.files import read_bounded
from contract.yamltext import Document, as_text

MAX_POLICY_BYTES = 1_048_576

_SHIPPED = Path(__file__).with_name("policies") / "baseline.yaml"
_HEX = re.compile(r"([0-9a-f]{2}){1,64}")
_CPU = re.compile(r"([0-9A-F]{2})/([0-9A-F]{2})(?:-([0-9A-F]{2}))?/(any|[0-9A-F]{1,2})")


def _hex(text: str) -> str:
    lowered = text.lower()
    if not _HEX.fullmatch(lowered):
        raise ValueError(f"{text[:80]!r} where at most 64 bytes in hexadecimal belong")
    return lowered


def _cpu(text: str) -> str:
    if not _CPU.fullmatch(text):
        raise ValueError(f"{text[:80]!r} where family/models/stepping belong, like 19/00-0F/any")
    return text


def _day(text: str) -> str:
    date.fromisoformat(text)
    return text


Hex = Annotated[str, AfterValidator(_hex)]
Day = Annotated[str, AfterValidator(_day)]
Svn = Annotated[int, Field(ge=0, le=255)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """A processor, as CPUID numbers it. None: the evidence does not say."""

    family: int
    model: int | None = None
    stepping: int | None = None

    @override
    def __str__(self) -> str:
        return "/".join(
            "?" if part is None else f"{part:02X}" for part in (self.family, self.model, self.stepping)
        )


class MinimumTcb(StrictConfig):
    """The least versions of some processors' firmware."""

    cpu: Annotated[str, AfterValidator(_cpu)] = Field(
        description="family/models/stepping, hexadecimal or `any`."
    )
    product: str | None = Field(default=None, description="Its name, for reports that hold no CPUID.")
    bootloader: Svn | None = None
    tee: Svn | None = None
    snp: Svn | None = None
    microcode: Svn | None = None
    fmc: Svn | None = None
    effective_from: Day = Field(description="First day on which less is a violation.")
    critical_from: Day | None = Field(default=None, description="First day on which it is a critical one.")
    source: str = Field(description="Who asks for it: a bulletin.")

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if not self.parts:
            raise ValueError("no version; name at least one of bootloader, tee, snp, microcode, fmc")
        return self

    @cached_property
    def parts(self) -> dict[str, int]:
        """The versions that are asked for."""
        names = ("bootloader", "tee", "snp", "microcode", "fmc")
        return {name: least for name in names if (least := getattr(self, name)) is not None}

    @cached_property
    def _cpus(self) -> tuple[int, range, int | None]:
        """Family, models and, unless it is for all, the stepping."""
        family, first, last, stepping = _CPU.fullmatch(self.cpu).groups()  # type: ignore[union-attr]
        models = range(int(first, 16), int(last or first, 16) + 1)
        return int(family, 16), models, None if stepping == "any" else int(stepping, 16)

    def concerns(self, product: str, cpu: Cpu | None) -> bool:
        """Tell whether this is about a processor; without its CPUID only what is asked of all steppings is."""
        family, models, stepping = self._cpus
        if cpu is None or cpu.model is None:
            return stepping is None and self.product == product
        return cpu.family == family and cpu.model in models and stepping in (None, cpu.stepping)


class UvmPolicy(StrictConfig):
    """What the endorsement of a utility machine must say."""

    issuers: tuple[str, ...] = Field(description="Accepted `iss`, like did:x509:0:sha256:…")
    feeds: tuple[str, ...] = Field(description="Accepted `feed`.")
    minimum_svn: int = Field(default=0, ge=0, description="Least security version.")


class PolicyFile(StrictConfig):
    """The whole file. A list that is left out allows everything."""

    policy: str = Field(min_length=1, max_length=128, description="Its name.")
    debug: bool = Field(default=False, description="Whether debugging may be allowed.")
    migration_agent: bool = Field(default=False, description="Whether a migration agent may be.")
    require_alias_check: bool = Field(
        default=False, description="Whether the memory alias check must be done."
    )
    require_revocation_list: bool = Field(default=False, description="Whether a current one must be there.")
    vmpl: tuple[Annotated[int, Field(ge=0, le=3)], ...] | None = None
    measurements: tuple[Hex, ...] | None = None
    host_data: tuple[Hex, ...] | None = None
    id_keys: tuple[Hex, ...] | None = Field(default=None, description="Digests of identity keys.")
    author_keys: tuple[Hex, ...] | None = Field(default=None, description="Digests of author keys.")
    registers: dict[Annotated[int, Field(ge=0, le=31)], tuple[Hex, ...]] = Field(
        default_factory=dict, description="By number of a register (PCR), its accepted values."
    )
    minimum_guest_svn: int = Field(default=0, ge=0)
    minimum_tcb: tuple[MinimumTcb, ...] = ()
    distrust_products: tuple[str, ...] = Field(default=(), description="Products whose keys leaked.")
    max_age_seconds: int | None = Field(default=None, gt=0, description="Older evidence is stale.")
    nonce: Hex | None = Field(default=None, description="What the evidence must answer.")
    uvm: UvmPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy without mistakes."""

    name: str
    digest: str
    """SHA-256 of its text, hexadecimal."""
    rules: PolicyFile

    def minimum_tcb(self, product: str, cpu: Cpu | None) -> Iterator[MinimumTcb]:
        """Yield what is asked of a processor."""
        return (one for one in self.rules.minimum_tcb if one.concerns(product, cpu))


def read_policy(path: Path) -> Policy:
    """Read a policy; raise ConfigError that names every mistake as `file:line`."""
    return parse_policy(read_bounded(path, MAX_POLICY_BYTES), str(path))


def parse_policy(content: bytes, where: str) -> Policy:
    """Do the same with the bytes of a file; `where` is its name in messages."""
    document = Document(where, as_text)
    values = document.load(content)
    if not isinstance(values, dict):
        document.complain((), "empty; it begins with `policy: NAME`")
    document.stop_if_wrong()
    try:
        rules = PolicyFile.model_validate(values)
    except ValidationError as error:
        for problem in error.errors():
            words = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
            document.complain(problem["loc"], words.removeprefix("Value error, "))
        document.stop_if_wrong()
        raise
    return Policy(name=rules.policy, digest=hashlib.sha256(content).hexdigest(), rules=rules)


@cache
def baseline() -> Policy:
    """Return the policy that is shipped."""
    return parse_policy(_SHIPPED.read_bytes(), _SHIPPED.name)


def begins(day: str, at_us: int) -> bool:
    """Tell whether a day has begun at a time, in UTC."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).date() >= date.fromisoformat(day)
