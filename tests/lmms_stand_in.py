"""As much of lmms-eval 0.7.3 as a chat model meets: the same module names, fields, base class and call shapes.

Written from the interface, for machines where lmms-eval is not installed. It evaluates nothing.
"""

import abc
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import nn

METRICS: list[dict[str, Any]] = []  # what log_metrics was given


@dataclass
class TokenCounts:
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass
class GenerationResult:
    text: str
    token_counts: TokenCounts | None = None


@dataclass
class Instance:
    request_type: str
    arguments: tuple
    idx: int
    metadata: dict = field(default_factory=dict)
    resps: list = field(default_factory=list)
    token_counts: list = field(default_factory=list)
    task_name: str | None = None
    doc_id: Any = None
    repeats: Any = None
    doc: dict | None = None

    def __post_init__(self) -> None:
        self.task_name, self.doc_id = self.metadata["task"], self.metadata["doc_id"]
        self.repeats = self.metadata["repeats"]

    @property
    def args(self) -> tuple:
        return self.arguments if isinstance(self.arguments, tuple) else (self.arguments,)


class lmms(abc.ABC):
    is_simple = True

    def __init__(self) -> None:
        self._rank, self._world_size = 0, 1
        self.task_dict: dict = {}

    @abc.abstractmethod
    def loglikelihood(self, requests): ...

    @abc.abstractmethod
    def generate_until(self, requests): ...

    @abc.abstractmethod
    def generate_until_multi_round(self, requests): ...

    @classmethod
    def create_from_arg_string(cls, arg_string, additional_config=None):
        pairs = dict(part.split("=", 1) for part in arg_string.split(",") if part)
        more = {key: value for key, value in (additional_config or {}).items() if value is not None}
        return cls(**{key: as_argument(value) for key, value in pairs.items()}, **more)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    def clean(self) -> None:
        for name in [name for name, value in vars(self).items() if isinstance(value, nn.Module)]:
            delattr(self, name)


def as_argument(text: str) -> Any:
    """true, false and numbers are typed, everything else stays text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if text.isnumeric() else float(text)
    except ValueError:
        return text


@dataclass
class ChatMessages:
    messages: list

    def to_hf_messages(self) -> list[dict]:
        return [
            {"role": message["role"], "content": [self.part(part) for part in message["content"]]}
            for message in self.messages
        ]

    @staticmethod
    def part(part: dict) -> dict:
        kind = part["type"]
        return {"type": kind, kind: part["text" if kind == "text" else "url"]}


@dataclass(frozen=True)
class ModelManifest:
    model_id: str
    simple_class_path: str | None = None
    chat_class_path: str | None = None
    aliases: tuple[str, ...] = ()


def log_metrics(total_elapsed_time, total_gen_tokens, avg_speed, additional_metrics=None) -> None:
    METRICS.append(
        {"total_elapsed_time": total_elapsed_time, "total_gen_tokens": total_gen_tokens, "avg_speed": avg_speed}
        | (additional_metrics or {})
    )


def get_logged_metrics_history() -> list[dict[str, Any]]:
    return list(METRICS)


MODULES: dict[str, tuple[Any, ...]] = {
    "lmms_eval": (),
    "lmms_eval.api": (),
    "lmms_eval.api.instance": (Instance, GenerationResult, TokenCounts),
    "lmms_eval.api.model": (lmms,),
    "lmms_eval.models": (),
    "lmms_eval.models.registry_v2": (ModelManifest,),
    "lmms_eval.models.model_utils": (),
    "lmms_eval.models.model_utils.gen_metrics": (log_metrics, get_logged_metrics_history),
    "lmms_eval.protocol": (ChatMessages,),
}


def install() -> list[str]:
    """Puts the modules in place; returns their names, so that they can be taken away again."""
    for name, members in MODULES.items():
        module = ModuleType(name)
        for member in members:
            setattr(module, member.__name__, member)
        sys.modules[name] = module
    return list(MODULES)
