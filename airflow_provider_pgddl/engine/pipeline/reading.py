"""Reading a pipeline file: `load_pipeline` is the one door.

Whatever is wrong with a file is a `PipelineFileError` that names the file, the line and the key; it never repeats the
value of a dsn, since that may hold a secret.
"""

from __future__ import annotations

import difflib
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ValidationError

from airflow_provider_pgddl.engine.errors import PipelineFileError
from airflow_provider_pgddl.engine.pipeline.contradictions import contradictions
from airflow_provider_pgddl.engine.pipeline.endpoint import Endpoint, literal_secrets, without_templates
from airflow_provider_pgddl.engine.pipeline.fields import Section
from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN, KeyPath, Origin, dotted, refused
from airflow_provider_pgddl.engine.pipeline.later import later_of
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.spark import is_literal_secret

if TYPE_CHECKING:
    import yaml


class _Problem(Exception):
    """A wrong file, found while YAML is read."""

    def __init__(self, line: int, path: KeyPath, what: str):
        self.line, self.path, self.what = line, path, what


def _walk(node: yaml.Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, yaml.Node, yaml.Node]]:
    """(path, key's or item's node, value's node) of all of a document, once a merge has been flattened."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield (*path, key.value), key, value
                yield from _walk(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield (*path, number), item, item
            yield from _walk(item, (*path, number))


def _read_yaml(text: str, name: str) -> tuple[Any, Origin]:
    import yaml  # a job file is JSON

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise PipelineFileError(f"{name}: the file is empty", todo="start with `pipeline: <name>`")
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            # They could make the walk endless, and a pattern such as *.* without quotes reads as one.
            if isinstance(token, yaml.AliasToken):
                line = token.start_mark.line + 1
                raise _Problem(line, (), f'*{token.value}: a YAML alias is not taken; quote a pattern ("*.*")')
        lines: dict[str, int] = {}
        for path, key, value in _walk(node):
            place = dotted(path)
            line = key.start_mark.line + 1
            if place in lines:
                raise _Problem(line, path, f"the key stands twice, first on line {lines[place]}")
            lines[place] = line
            if isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None:
                raise _Problem(line, path, "has no value; leave the key out to take its default")
        data = loader.construct_document(node)
        return data, Origin(name, lines, tuple(_given(data)))
    except _Problem as problem:
        key_path = f"{dotted(problem.path)}: " if problem.path else ""
        raise PipelineFileError(f"{name}, line {problem.line}: {key_path}{problem.what}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        hint = ' (quote a pattern: "*.*")' if error.context == "while scanning an alias" else ""
        raise PipelineFileError(f"{name}, line {line}: not valid YAML: {error.problem}{hint}") from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a scalar that looks like a date, such as 2026-13-01.
        raise PipelineFileError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _given(data: Any, path: str = "") -> Iterator[str]:
    """The dotted keys of a file."""
    for key, value in data.items() if isinstance(data, Mapping) else ():
        yield f"{path}{key}"
        yield from _given(value, f"{path}{key}.")


def _is_text(source: str) -> bool:
    return "\n" in source or source.lstrip().startswith("{") or ": " in source


def load_pipeline(source: str | os.PathLike[str] | Mapping[str, Any], *, base: Path | None = None) -> Pipeline:
    """The pipeline of a file (relative to `base`), of YAML text, or of a dict; all defaults filled in.

    Raises PipelineFileError, which lists everything wrong with it, each with its line.
    """
    data: Any
    if isinstance(source, Mapping):
        data = dict(source)
        travelled = data.pop(ORIGIN, None)
        origin = Origin.from_json(travelled) if travelled else Origin("pipeline", {}, tuple(_given(data)))
    elif isinstance(source, str) and _is_text(source):
        data, origin = _read_yaml(source, "pipeline")
    else:
        name = os.fspath(source)
        path = Path(base, name) if base is not None else Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PipelineFileError(
                f"{name}: cannot read the pipeline file: {reason}",
                todo="give the path of a pipeline file; a relative path counts from "
                + ("the DAG's folder" if base is not None else "the current folder"),
            ) from None
        data, origin = _read_yaml(text, name)
    if not isinstance(data, dict):
        raise PipelineFileError(f"{origin.name}: expected a mapping of keys, starting with `pipeline: <name>`")
    try:
        pipeline = Pipeline.model_validate(data)
    except ValidationError as error:
        raise refused(_problems(error), origin) from None
    found = list(contradictions(pipeline))
    if found:
        raise refused(found, origin)
    pipeline._origin = origin
    return pipeline


def refuse_literal_secrets(source: Any) -> None:
    """Of a dict or a YAML text, whose templates are not rendered yet: Airflow keeps it with its DAG, in its database
    and on its pages, long before a task reads it. What else is wrong with it is `load_pipeline`'s to say.
    """
    if isinstance(source, Mapping):
        data, origin = source, Origin("pipeline", {})
    elif isinstance(source, str) and _is_text(source):
        text = without_templates(source)
        try:
            data, origin = _read_yaml(text, "pipeline")
        except PipelineFileError:
            if text == source:
                raise
            return  # only what it is rendered to can be read
    else:
        return
    if not isinstance(data, Mapping):
        return
    found: list[tuple[tuple[str, ...], str]]
    found = [((side, key), what) for side in ("source", "target") for key, what in literal_secrets(data.get(side))]
    spark = data.get("spark")
    settings = spark.get("conf") if isinstance(spark, Mapping) else None
    for key, value in settings.items() if isinstance(settings, Mapping) else ():
        if is_literal_secret(str(key), without_templates(str(value))):
            found.append((("spark", "conf", str(key)), "a literal secret is refused; take it from the environment"))
    if found:
        raise refused(found, origin)


def model_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section that an annotation holds, and whether it stands in a dict by name."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        return model_of(args[1])[0], True
    if origin in (typing.Union, types.UnionType, Annotated):
        for argument in args:
            model, named = model_of(argument)
            if model is not None:
                return model, named
    return None, False


def _keys(model: type[Section]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _section_at(path: KeyPath) -> type[Section] | None:
    model: type[Section] | None = Pipeline
    named = False
    for step in path:
        if named:
            named = False
        elif model is None:
            return None
        else:
            model, named = model_of(_keys(model).get(str(step)))
    return model


def _all_keys(model: type[Section] = Pipeline, path: str = "") -> Iterator[tuple[str, str]]:
    for key, annotation in _keys(model).items():
        yield key, f"{path}{key}"
        inner, named = model_of(annotation)
        if inner is not None and not named and inner is not Endpoint:
            yield from _all_keys(inner, f"{path}{key}.")


def _unknown(path: KeyPath) -> str:
    key = str(path[-1])
    section = _section_at(path[:-1])
    known = list(_keys(section)) if section is not None else []
    if near := difflib.get_close_matches(key, known, n=1, cutoff=0.6):
        return f"unknown key; did you mean {near[0]}?"
    for other, place in _all_keys():
        if other == key:
            return f"unknown key here; it belongs at {place}"
    return f"unknown key; known here: {', '.join(known)}"


def _problems(error: ValidationError) -> Iterator[tuple[KeyPath, str]]:
    """Pydantic's errors as (path in the file, what a person reads)."""
    for detail in error.errors(include_url=False):
        kind, context = detail["type"], detail.get("ctx", {})
        path: KeyPath = tuple(step for step in detail["loc"] if step != "[key]")
        given = detail.get("input")
        # A union's loc ends with the name of the alternative that did not match.
        if path[:2] == ("ddl", "missing_role"):
            path = path[:2]
            if not isinstance(given, dict):
                yield path, "expected ignore, fail, or a mapping of roles such as {app: app_v2}"
                continue
        if kind == "extra_forbidden":
            yield path, _unknown(path)
        elif kind == "missing":
            yield path, "is missing"
        elif kind == "literal_error":
            yield path, _expected(given, str(context["expected"]))
        elif kind in ("model_type", "model_attributes_type", "dict_type", "dataclass_type"):
            section = _section_at(path)
            keys = f" with the keys {', '.join(_keys(section))}" if section is not None else ""
            yield path, f"expected a mapping{keys}"
        elif kind in ("tuple_type", "list_type"):
            yield path, "expected a list, such as [a, b]"
        elif kind == "string_type":
            yield path, "expected text" + (" (put it in quotes)" if isinstance(given, bool | int | float) else "")
        elif kind == "string_too_short":
            yield path, "is empty"
        elif kind == "bool_type":
            yield path, "expected true or false"
        elif kind == "int_type":
            yield path, "expected a whole number"
        elif kind == "string_pattern_mismatch" and path in (("pipeline",), ("swap", "way_back")):
            yield path, "expected a name of a-z, 0-9 and _, at most 40 characters, starting with a letter"
        elif kind == "invalid_key":
            yield (*path[:-1], str(path[-1])), "expected a key that is text (put it in quotes)"
        elif kind == "value_error":
            yield path, str(context["error"])
        else:
            # Only kinds whose message holds a bound and never the value, such as greater_than_equal.
            yield path, detail["msg"][:1].lower() + detail["msg"][1:]


def _expected(given: object, expected: str) -> str:
    words = re.findall(r"'([^']*)'", expected)
    words = [word for word in words if word != "inherit"]
    text = "expected one of: " + ", ".join(words)
    if isinstance(given, str) and (near := difflib.get_close_matches(given, words, n=1)):
        text += f"; did you mean {near[0]}?"
    return text


# --- a file that changes after setup


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A place in which two files differ, as JSON; None where one says nothing."""

    key: str
    before: Any
    after: Any

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "before": self.before, "after": self.after, "how": later_of(self.key).how}


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[KeyChange]:
    """All places in which two pipelines (`to_json`) differ, by their dotted keys."""

    def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
        try:
            # fills in defaults of keys that an older version did not know
            tree = load_pipeline(_with_former(tree)).to_json()
        except PipelineFileError:
            tree = dict(tree)
        leaves: dict[str, Any] = {}

        def collect(value: Any, path: str) -> None:
            if isinstance(value, Mapping) and value:
                for key, inner in value.items():
                    collect(inner, f"{path}.{key}" if path else str(key))
            else:
                leaves[path] = list(value) if isinstance(value, tuple) else value

        collect({key: value for key, value in tree.items() if key != ORIGIN}, "")
        # An empty mapping and an absent one say the same.
        return {path: value for path, value in leaves.items() if value not in ({}, None)}

    before, after = flat(recorded), flat(now)
    return [
        KeyChange(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def changed_keys(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two pipelines (`to_json`) differ, other than those that are free."""
    return [one.key for one in differences(recorded, now) if later_of(one.key).how != "free"]


# What held before there was such a key: what was recorded without it was set up so.
FORMER_DEFAULTS = {("ddl", "tags"): "pgl_ddl_deploy"}


def _with_former(recorded: Mapping[str, Any]) -> dict[str, Any]:
    tree = dict(recorded)
    for (section, key), value in FORMER_DEFAULTS.items():
        if section in tree:
            tree[section] = {key: value, **tree[section]}
    return tree


def as_recorded(recorded: Mapping[str, Any]) -> Pipeline:
    """The pipeline as setup has recorded it."""
    return load_pipeline(_with_former(recorded))


def as_set_up(pipeline: Pipeline, recorded: Mapping[str, Any]) -> Pipeline:
    """The pipeline with the defaults by which its run was set up, for keys that neither file gives: a default that has
    changed since is for new runs."""
    tree, before = pipeline.to_json(), _with_former(recorded)
    then = Origin.from_json(before[ORIGIN]) if ORIGIN in before else Origin("pipeline", {})
    for _, path in _all_keys():
        *sections, key = path.split(".")
        here, there = tree, before
        for section in sections:
            here, there = here[section], there.get(section, {})
        if (
            key in there
            and not isinstance(there[key], Mapping)
            and not (pipeline.origin.gives(path) or then.gives(path))
        ):
            here[key] = there[key]
    return load_pipeline(tree)
