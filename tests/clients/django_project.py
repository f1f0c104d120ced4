"""A Django project with all contrib apps that have tables, and Wagtail: its manage.py and its settings, in a process of
its own. CLIENT_DSN, in the environment, is its database.

    python django_project.py half          the first half of all migrations, and users by the models of that time
    python django_project.py steps         as many more as each line of its input says; prints how many are left
    python django_project.py edit NUMBER   what editors do in a day, by the ORM
    python django_project.py read          what a site shows
    python django_project.py <anything that manage.py takes>
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

_DSN = conninfo_to_dict(os.environ["CLIENT_DSN"])

settings.configure(
    INSTALLED_APPS=[
        "wagtail.contrib.forms", "wagtail.contrib.redirects", "wagtail.contrib.search_promotions",
        "wagtail.contrib.simple_translation", "wagtail.embeds", "wagtail.sites", "wagtail.users", "wagtail.snippets",
        "wagtail.documents", "wagtail.images", "wagtail.search", "wagtail.admin", "wagtail",
        "modelcluster", "taggit",
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
        "django.contrib.messages", "django.contrib.sites", "django.contrib.flatpages", "django.contrib.redirects",
        "django.contrib.postgres", "django.contrib.staticfiles", "django.contrib.sitemaps", "django_tasks",
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql", "HOST": _DSN["host"], "PORT": _DSN["port"],
            "NAME": _DSN["dbname"], "USER": _DSN["user"], "PASSWORD": _DSN["password"],
        }
    },
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    SECRET_KEY="of a test", DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", ROOT_URLCONF=__name__, USE_TZ=True,
    SITE_ID=1, STATIC_URL="/static/", MEDIA_ROOT=tempfile.gettempdir(), WAGTAIL_SITE_NAME="a test",
    WAGTAILADMIN_BASE_URL="http://localhost", WAGTAIL_I18N_ENABLED=True,
    LANGUAGES=[("en", "English"), ("de", "Deutsch")], WAGTAIL_CONTENT_LANGUAGES=[("en", "English"), ("de", "Deutsch")],
    WAGTAILSEARCH_BACKENDS={"default": {"BACKEND": "wagtail.search.backends.database"}},
)  # fmt: skip
urlpatterns: list[Any] = []


def half() -> None:
    executor, plan = _to_do()
    models = executor.migrate([], plan[: len(plan) // 2]).apps
    user = models.get_model("auth", "User")
    groups = [models.get_model("auth", "Group").objects.create(name=f"group {i}") for i in range(20)]
    users = user.objects.bulk_create([user(username=f"user {i}", email=f"{i}@example.org") for i in range(300)])
    for number, each in enumerate(users):
        each.groups.add(groups[number % 20])


def steps() -> None:
    while size := int(sys.stdin.readline() or 0):
        executor, plan = _to_do()
        executor.migrate([], plan[:size])
        print(len(plan[size:]), flush=True)


def _to_do() -> tuple[Any, list[Any]]:
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    return executor, executor.migration_plan(executor.loader.graph.leaf_nodes())


def edit(number: str) -> None:
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.auth.models import Group, Permission, User
    from django.contrib.contenttypes.models import ContentType
    from django.contrib.flatpages.models import FlatPage
    from django.contrib.sessions.backends.db import SessionStore
    from django.core.management import call_command
    from django.db import transaction
    from taggit.models import Tag, TaggedItem
    from wagtail.contrib.redirects.models import Redirect
    from wagtail.models import Collection, Comment, Locale, Page, PageLogEntry

    home = Page.objects.filter(depth=2).first() or Page.get_first_root_node().add_child(title="Home", slug="home")
    Locale.objects.get_or_create(language_code="de")
    editors = [User.objects.create_user(f"editor {number}.{i}", password=f"{i}") for i in range(5)]
    group = Group.objects.create(name=f"editors {number}")
    group.permissions.set(Permission.objects.all()[:30])
    group.user_set.set(editors)
    collection = Collection.get_first_root_node().add_child(name=f"Bilder {number} „ü“")
    pages = []
    for i in range(15):
        with transaction.atomic():
            page = Page(title=f"Page {number}.{i} 'ß' \\N", slug=f"p-{number}-{i}", owner=editors[i % 5])
            (pages[i // 3] if i else home).add_child(instance=page)
            page.title += " again"
            page.save_revision(user=editors[i % 5]).publish()
        pages.append(page)
    pages[5].move(pages[1], pos="first-child")
    pages[9].refresh_from_db()
    pages[9].delete()
    pages[2].refresh_from_db()
    pages[2].copy(recursive=True, update_attrs={"slug": f"copy-{number}", "title": "Copy"}, to=home)
    Comment.objects.create(page=pages[1], user=editors[0], text="", contentpath="title", position="[]")
    Redirect.objects.create(old_path=f"/old/{number}", redirect_page=pages[0])
    flat = FlatPage.objects.create(url=f"/flat/{number}/", title="Flat", content="x" * 5000)
    flat.sites.set([1])
    of_pages = ContentType.objects.get_for_model(Page)
    for i in range(5):
        tag, _ = Tag.objects.get_or_create(name=f"tag {i}", slug=f"tag-{i}")
        TaggedItem.objects.create(tag=tag, content_type=of_pages, object_id=pages[i].pk)
    session = SessionStore()
    session["cart"] = [1, None, {"a": "\u2603"}]
    session.create()
    LogEntry.objects.log_actions(editors[0].pk, Page.objects.filter(pk=pages[0].pk), CHANGE, "[]", single_object=True)
    User.objects.filter(pk__lte=100, pk__gt=int(number) * 10).update(last_name=number)
    User.objects.filter(username__startswith="user ", pk__in=[int(number) * 7 + 1, int(number) * 7 + 2]).delete()
    call_command("update_index", verbosity=0)
    print(collection.pk, PageLogEntry.objects.count())


def read() -> None:
    from django.contrib.auth.models import User
    from wagtail.models import Page

    titles = "\n".join(f"{p.url_path} {p.title} {p.latest_revision_id}" for p in Page.objects.live().order_by("path"))
    users = User.objects.filter(groups__name__startswith="group").distinct().count()
    found = len(Page.objects.live().search("again"))
    print(Page.objects.count(), users, found, Page.find_problems(), zlib.crc32(titles.encode()))


if __name__ == "__main__":
    django.setup()
    mine: Mapping[str, Callable[..., None]] = {"half": half, "steps": steps, "edit": edit, "read": read}
    if (command := sys.argv[1]) in mine:
        mine[command](*sys.argv[2:])
    else:
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
