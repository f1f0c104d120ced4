"""The commands of the shell, by the parser's own table."""

from __future__ import annotations

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.engine.schema import flags

_POLICY = {names for names, _ in flags.OPTIONS}


def commands() -> str:
    """Markdown: a heading, its help and its options for each command."""
    lines = []
    for words, command in cli.each_command():
        arguments = [_argument(option) for option in command.options if option.flags not in _POLICY]
        lines += [f"### {' '.join(words)}", "", f"{_sentence(command.help)}", ""]
        lines += ["```text", " ".join(["pgddl", *words, *filter(None, arguments)]), "```", ""]
        lines += [f"- {_option(option)}" for option in command.options if option.flags not in _POLICY]
        if any(option.flags in _POLICY for option in command.options):
            lines.append("- [flags of the schema policy](#flags-of-the-schema-policy)")
        lines.append("")
    return "\n".join(lines)


def policy_flags() -> str:
    """Markdown: the flags that several commands share."""
    return "\n".join(f"- {_option(cli.Option(names, settings))}" for names, settings in flags.OPTIONS)


def _argument(option: cli.Option) -> str:
    name, settings = option.flags[-1], option.settings
    if not name.startswith("-"):
        shown = str(settings.get("metavar", name))
        return {"*": f"[{shown} …]", "?": f"[{shown}]"}.get(str(settings.get("nargs")), shown)
    shown = option.flags[0] if settings.get("required") else name
    value = "" if settings.get("action") == "store_true" else f" {settings.get('metavar') or 'VALUE'}"
    more = " …" if settings.get("nargs") == "+" else ""
    return f"{shown}{value}{more}" if settings.get("required") else f"[{shown}{value}{more}]"


def _option(option: cli.Option) -> str:
    named = ", ".join(f"`{name}`" for name in option.flags) if option.flags[0].startswith("-") else (
        f"`{option.settings.get('metavar', option.flags[0])}`"
    )  # fmt: skip
    return f"{named}: {option.settings.get('help', '')}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
