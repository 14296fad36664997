"""What a sweep runs: configurations times a grid of values for their keys. A TOML file; knows no models.

A plan names `configs`, and in `[grid]` dotted keys of a configuration with the values to try:

    configs = ["hyco", "specedge-eps"]
    reference = "hyco"
    [grid]
    "slm.keep_set" = [512, 1024, 2048]

A key that a configuration has no section for is left out there: the head's bits are none of the SLM's business.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibration.prompts import read_prompt_file
from export.sources import DEFAULT_KEEP_SIZE, keep_set_size
from hyco_npu.decode.acceptance import rule_of
from hyco_npu.decode.config import DecodeConfig, config_names, parse_config, read_toml
from hyco_npu.decode.drafters.registry import DRAFTERS
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.session import GenerationOptions
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from calibration.prompts import PromptFile
    from export.sources import Vocabulary

_DRAFTERS = ("mtp", "slm", "ngram")
_SECTIONS = (*_DRAFTERS, "tree", "acceptance", "scores")


class Plan(BaseModel):
    """A plan file. `prompts` and configurations that are files lie relative to it; `limit` takes the first prompts.

    With `reference`, a configuration as its own file has it, every row is compared with that one's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    configs: list[str] = Field(min_length=1)
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    reference: str | None = None
    prompts: str | None = None
    limit: int | None = Field(default=None, ge=1)
    max_new_tokens: int = Field(default=96, ge=1)
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = Field(default=0, ge=0)

    @property
    def options(self) -> GenerationOptions:
        """The same as decoding takes it. Raises UsageError for sampling that means nothing."""
        return GenerationOptions(self.max_new_tokens, Sampling(self.temperature, self.top_k, self.top_p), self.seed)


@dataclass(frozen=True, eq=False)
class Setting:
    """A row of the sweep: a configuration by the plan's name for it, and the grid's values that it was given."""

    origin: str
    varied: Mapping[str, Any]
    config: DecodeConfig

    @property
    def name(self) -> str:
        """For people: "hyco mtp.bits=4 slm.window=256"."""
        return _label(self.origin, self.varied)

    @property
    def values(self) -> dict[str, Any]:
        """What decides how it decodes: all values but the configuration's name and summary."""
        return self.config.model_dump(exclude={"name", "summary"})

    @property
    def identity(self) -> str:
        """SHA-256 of the values; equal for settings that are the same under two names."""
        return digest(self.values)


def read_plan(path: Path) -> Plan:
    """Read and check a plan file. Raises UsageError naming the keys that are wrong."""
    try:
        values = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UsageError(f"plan {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"plan {path} is not TOML: {error}") from error
    try:
        plan = Plan.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        unquoted = any(isinstance(value, dict) for value in values.get("grid", {}).values())
        hint = '; write the grid\'s keys in quotes, as "mtp.bits" = [4, 8]' if unquoted else ""
        raise UsageError(f"plan {path}: {problems}{hint}") from error
    _ = plan.options
    return plan


def plan_settings(plan: Plan, folder: Path) -> list[Setting]:
    """All settings in the plan's order, each once; `folder` is the plan file's.

    Raises UsageError for keys and values that no configuration takes.
    """
    configs = {name: _read_config(name, folder) for name in dict.fromkeys(plan.configs)}
    _check_keys(plan, [parse_config(values, name) for name, values in configs.items()])
    found: dict[tuple[str, str], Setting] = {}
    for name, values in configs.items():
        for setting in _grid_settings(name, values, plan):
            found.setdefault((name, setting.identity), setting)
    return list(found.values())


def reference_setting(plan: Plan, folder: Path) -> Setting | None:
    """The configuration that all others are compared with, as its file has it."""
    if plan.reference is None:
        return None
    return _setting(plan.reference, _read_config(plan.reference, folder), {}, plan.options.sampling)


def plan_prompts(plan: Plan, folder: Path, default: Path) -> PromptFile:
    """The prompts to answer: those of the plan's file or of `default`, at most `limit` of them."""
    file = read_prompt_file(default if plan.prompts is None else folder / plan.prompts)
    return type(file)(file.name, file.sha256, file.prompts[: plan.limit])


def check_keep_sets(settings: list[Setting], vocabulary: Vocabulary) -> None:
    """Raises UsageError, naming the setting, for a keep set that the vocabulary cannot have."""
    for setting in settings:
        for section in (setting.config.mtp, setting.config.slm):
            if section is not None and section.keep_set not in (None, DEFAULT_KEEP_SIZE):
                try:
                    keep_set_size(str(section.keep_set), vocabulary)
                except UsageError as error:
                    raise UsageError(f"setting {setting.name}: {error}") from error


def digest(values: object) -> str:
    """SHA-256 of what JSON makes of `values`, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _read_config(name: str, folder: Path) -> dict[str, Any]:
    return read_toml(name if name in config_names() else str(folder / name))


def _check_keys(plan: Plan, configs: list[DecodeConfig]) -> None:
    unknown = [key for key in plan.grid if key.split(".")[0] not in _SECTIONS or "." not in key]
    if unknown:
        raise UsageError(
            f"[grid] of the plan: {', '.join(unknown)}: no such key; a key names a section ({', '.join(_SECTIONS)}) "
            "and what is in it, as in mtp.bits"
        )
    unused = [key for key in plan.grid if not any(_has_section(config, key) for config in configs)]
    if unused:
        raise UsageError(f"[grid] of the plan: {', '.join(unused)}: none of {', '.join(plan.configs)} has that section")


def _has_section(config: DecodeConfig, key: str) -> bool:
    """Whether the configuration reads this key; drafting nothing reads none."""
    section, rest = key.split(".", 1)
    owner = rest.split(".")[0] if section == "scores" else section
    if config.drafter == "none":
        return False
    return owner not in _DRAFTERS or getattr(config, owner) is not None


def _grid_settings(name: str, values: dict[str, Any], plan: Plan) -> Iterator[Setting]:
    config = parse_config(values, name)
    keys = [key for key in plan.grid if _has_section(config, key)]
    for combination in product(*(plan.grid[key] for key in keys)):
        yield _setting(name, values, dict(zip(keys, combination, strict=True)), plan.options.sampling)


def _setting(origin: str, values: dict[str, Any], varied: dict[str, Any], sampling: Sampling) -> Setting:
    for key, value in varied.items():
        values = _merged(values, _nested(key.split("."), value))
    config = parse_config(values, _label(origin, varied))
    if config.drafter not in DRAFTERS:
        raise UsageError(f"{origin}: no drafter {config.drafter!r}; there are {', '.join(sorted(DRAFTERS))}")
    rule_of(config.acceptance, sampling)
    return Setting(origin, varied, config)


def _label(origin: str, varied: Mapping[str, Any]) -> str:
    return " ".join((origin, *(f"{key}={value}" for key, value in varied.items())))


def _nested(keys: list[str], value: object) -> dict[str, Any]:
    return {keys[0]: _nested(keys[1:], value) if keys[1:] else value}


def _merged(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """`others` over `values`, table by table."""
    merged = dict(values)
    for key, value in others.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
