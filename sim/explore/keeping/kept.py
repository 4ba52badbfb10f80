"""Kept answers: what a store holds of an answer as JSON; read back, whatever no sweep writes is an error.

Errors are those of Python: the store that knows where it stands words them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isnan
from typing import Any

from profiles.errors import InfeasibleError
from sim.explore.answers import Answer, Bounds
from sim.explore.points import Asked
from sim.outcomes.measures import Measures
from sim.outcomes.results import Result
from sim.outcomes.runs import result_of
from strategies.strategy import AnyScenario


def written(answer: Bounds | InfeasibleError | Answer) -> dict[str, Any]:
    """An answer as JSON; of a result only what does not follow from what was asked."""
    if isinstance(answer, InfeasibleError):
        return {"reason": str(answer), "reason_kind": answer.kind}
    if isinstance(answer, Bounds):
        return {key: value for key, value in asdict(answer).items() if value is not False}
    known = {"known_s": answer.known_s}
    if isinstance(answer.end, Result):
        result = answer.end
        stages = [dict(stage) for stage in result.stages]
        times, phases = dict(result.times), dict(result.phases)
        return {
            **known,
            "times": times,
            "expected": asdict(result.expected),
            "stages": stages,
            "phases": phases,
        }
    return known if answer.end is None else known | written(answer.end)


def bounds_from(kept: Mapping[str, Any]) -> Bounds | InfeasibleError:
    """The bounds that were kept, or the reason for none."""
    if "reason" in kept:
        return _reason(kept)
    return Bounds(_number(kept["bound_s"]), _number(kept["least_memory_bytes"]), kept.get("rough") is True)


def answer_from(kept: Mapping[str, Any], point: Asked, scenario: AnyScenario) -> Answer:
    """The answer that was kept of a point of a scenario."""
    end: Result | InfeasibleError | None = None
    if "reason" in kept:
        end = _reason(kept)
    elif "times" in kept:
        end = result_of(
            point.strategy,
            point.at(scenario),
            times=_numbers(kept["times"]),
            expected=measures_from(kept),
            stages=[_stage(stage) for stage in kept["stages"]],
            phases=_numbers(kept.get("phases", {})),
        )
    return Answer(tuple(map(_number, kept["known_s"])), end)


def measures_from(kept: Mapping[str, Any]) -> Measures:
    """The measures of a result that was kept."""
    return Measures(**_numbers(kept["expected"]))


def _reason(kept: Mapping[str, Any]) -> InfeasibleError:
    return InfeasibleError(text_in(kept["reason"]), text_in(kept["reason_kind"]))


def _stage(kept: object) -> dict[str, Any]:
    stage = mapping_in(kept)
    numbers = {key: value for key, value in stage.items() if key != "devices" and not isinstance(value, str)}
    return {**stage, **_numbers(numbers), "devices": tuple(map(_number, stage["devices"]))}


def _numbers(kept: object) -> dict[str, float]:
    return {key: _number(value) for key, value in mapping_in(kept).items()}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value) or value < 0:
        raise ValueError(f"{value!r} is no number of at least 0")
    return value


def mapping_of(text: str) -> dict[str, Any]:
    """The mapping that a text is in JSON."""
    return mapping_in(json.loads(text))


def texts_in(text: str) -> dict[str, str]:
    """The mapping of texts that a text is in JSON."""
    return {key: text_in(value) for key, value in mapping_of(text).items()}


def mapping_in(value: object) -> dict[str, Any]:
    """A value that is a mapping."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no mapping")
    return value


def text_in(value: object) -> str:
    """A value that is a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
