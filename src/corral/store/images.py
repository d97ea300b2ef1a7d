"""SQL of repositories, images, tags and layers.

The bytes of a layer are stored like those of an S3 object: a row of the table `content` stands for a list of blobs, which are
files. The list of a layer has one blob.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from corral.core.database import Database, Row
from corral.model.image import Layer, Manifest, RegistryImage, Repository

REPOSITORY_COLUMNS = "id, region, name, created_at, about, tags, owner"
IMAGE_COLUMNS = (
    "number, repository, digest, media_type, artifact_type, size, subject, pushed_at, pulled_at, "
    "(SELECT json_group_array(tag) FROM (SELECT tag FROM image_tag WHERE image = number ORDER BY tag))"
)
IMAGE = f"SELECT {IMAGE_COLUMNS} FROM image"
HAS_TAG = "EXISTS (SELECT 1 FROM image_tag t WHERE t.image = number)"
TAGGED = {None: "", True: f" AND {HAS_TAG}", False: f" AND NOT {HAS_TAG}"}
# For a row of `repository_layer`: finds the images of the repository that use the layer.
HELD = "SELECT 1 FROM image_part p WHERE p.repository = repository_layer.repository AND p.digest = repository_layer.digest"


class ImageName(NamedTuple):
    number: int  # the number of the image
    digest: str
    tag: str  # empty for an image without tags


class RegistryImages:
    def __init__(self, database: Database) -> None:
        self._database = database

    # Repositories

    def repository(self, region: str, name: str) -> Repository | None:
        sql = f"SELECT {REPOSITORY_COLUMNS} FROM repository WHERE region = ? AND name = ?"
        row = self._database.execute(sql, (region, name)).fetchone()
        return _repository(row) if row else None

    def repositories(self, region: str, after: str, limit: int) -> list[Repository]:
        """Repositories with names greater than `after`, sorted by name."""
        sql = f"SELECT {REPOSITORY_COLUMNS} FROM repository WHERE region = ? AND name > ? ORDER BY name LIMIT ?"
        return [_repository(row) for row in self._database.execute(sql, (region, after, limit))]

    def add_repository(
        self, region: str, name: str, now_s: float, about: dict[str, Any], tags: dict[str, str], owner: str
    ) -> Repository:
        sql = "INSERT INTO repository (region, name, created_at, about, tags, owner) VALUES (?, ?, ?, ?, ?, ?) RETURNING id"
        (number,) = self._database.execute(sql, (region, name, now_s, _dumps(about), _dumps(tags), owner)).fetchone()
        return Repository(number, region, name, now_s, about, tags, owner)

    def set_repository(self, repository: Repository) -> None:
        sql = "UPDATE repository SET about = ?, tags = ? WHERE id = ?"
        self._database.execute(sql, (_dumps(repository.about), _dumps(repository.tags), repository.id))

    def mark_repository_deleted(self, repository_id: int) -> None:
        """Replace the name of a repository, so that no request finds it. `clear_deleted_repository` deletes the rows later."""
        self._database.execute("UPDATE repository SET region = '', name = '#' || id WHERE id = ?", (repository_id,))

    def clear_deleted_repository(self, limit: int) -> tuple[list[int], bool]:
        """Delete up to `limit` images and layers of a deleted repository.

        Returns the ids of the `content` rows that no layer uses any more, and whether there may be more to delete. The caller must
        remove one reference from each of these rows.
        """
        row = self._database.execute("SELECT id FROM repository WHERE region = '' LIMIT 1").fetchone()
        if row is None:
            return [], False
        images = self._database.execute("SELECT number FROM image WHERE repository = ? LIMIT ?", (*row, limit)).fetchall()
        self._database.executemany("DELETE FROM image_tag WHERE image = ?", images)
        self._database.executemany("DELETE FROM image WHERE number = ?", images)
        sql = "SELECT repository, digest FROM repository_layer WHERE repository = ? LIMIT ?"
        layers = self._database.execute(sql, (*row, limit - len(images))).fetchall()
        self._database.executemany("DELETE FROM repository_layer WHERE repository = ? AND digest = ?", layers)
        if len(images) + len(layers) < limit:
            self._database.execute("DELETE FROM repository WHERE id = ?", row)
        return self._drop_layers(digest for _, digest in layers), True

    # Images

    def image(self, repository_id: int, *, digest: str | None = None, tag: str | None = None) -> RegistryImage | None:
        """Find an image by digest, by tag, or by both. With both, the image must match both."""
        where, values = ["repository = ?"], [repository_id]
        if digest is not None:
            where.append("digest = ?")
            values.append(digest)  # type: ignore[arg-type]
        if tag is not None:
            where.append("number = (SELECT image FROM image_tag t WHERE t.repository = image.repository AND t.tag = ?)")
            values.append(tag)  # type: ignore[arg-type]
        row = self._database.execute(f"{IMAGE} WHERE {' AND '.join(where)}", values).fetchone()
        return _image(row) if row else None

    def images(self, repository_id: int, after: int, limit: int, tagged: bool | None = None) -> list[RegistryImage]:
        """Images with numbers greater than `after`, in the order of their push. `tagged` selects images with or without tags."""
        sql = f"{IMAGE} WHERE repository = ? AND number > ?{TAGGED[tagged]} ORDER BY number LIMIT ?"
        return [_image(row) for row in self._database.execute(sql, (repository_id, after, limit))]

    def names(self, repository_id: int, after: tuple[int, str], limit: int, tagged: bool | None = None) -> list[ImageName]:
        """One entry per tag of each image, and one entry for an image without tags. The entries follow (number, tag) `after`."""
        sql = (
            "SELECT number, image.digest, ifnull(tag, '') AS name FROM image LEFT JOIN image_tag ON image = number "
            f"WHERE image.repository = ? AND number >= ? AND (number, name) > (?, ?){TAGGED[tagged]} ORDER BY number, name LIMIT ?"
        )
        return [ImageName(*row) for row in self._database.execute(sql, (repository_id, after[0], *after, limit))]

    def tags(self, repository_id: int, after: str, limit: int) -> list[str]:
        """Tags greater than `after`, sorted."""
        sql = "SELECT tag FROM image_tag WHERE repository = ? AND tag > ? ORDER BY tag LIMIT ?"
        return [tag for (tag,) in self._database.execute(sql, (repository_id, after, limit))]

    def referrers(self, repository_id: int, digest: str) -> list[RegistryImage]:
        """The images that refer to this digest as their subject."""
        sql = f"{IMAGE} WHERE repository = ? AND subject = ? ORDER BY number"
        return [_image(row) for row in self._database.execute(sql, (repository_id, digest))]

    def manifest(self, image: RegistryImage) -> bytes:
        """The bytes of the manifest, unchanged since the push."""
        return bytes(self._database.execute("SELECT manifest FROM image WHERE number = ?", (image.number,)).fetchone()[0])

    def indexes_with(self, repository_id: int, digest: str) -> list[str]:
        """The digests of the image indexes that contain this image."""
        sql = "SELECT i.digest FROM image_part p JOIN image i ON i.number = p.image WHERE p.repository = ? AND p.digest = ?"
        return [found for (found,) in self._database.execute(sql, (repository_id, digest))]

    def add_image(self, repository_id: int, digest: str, manifest: Manifest, body: bytes, now_s: float) -> None:
        """Add an image. The repository must already have the layers of the image or, for an image index, the images in it."""
        (number,) = self._database.execute(
            "INSERT INTO image (repository, digest, media_type, artifact_type, size, subject, pushed_at, manifest) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING number",
            (repository_id, digest, manifest.media_type, manifest.artifact_type, manifest.size, manifest.subject, now_s, body),
        ).fetchone()
        parts = dict.fromkeys((*manifest.layers, *manifest.images))
        sql = "INSERT INTO image_part (image, digest, repository) VALUES (?, ?, ?)"
        self._database.executemany(sql, [(number, part, repository_id) for part in parts])
        sql = "UPDATE repository_layer SET unused_since = NULL WHERE repository = ? AND digest = ?"
        self._database.executemany(sql, [(repository_id, layer) for layer in manifest.layers])

    def set_tag(self, image: RegistryImage, tag: str, writer: str | None) -> None:
        """Create a tag for this image. If the tag exists, move it to this image. `writer` is the caller's `Caller.writer`."""
        sql = (
            "INSERT INTO image_tag (repository, tag, image, writer) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (repository, tag) DO UPDATE SET image = excluded.image, writer = excluded.writer"
        )
        self._database.execute(sql, (image.repository_id, tag, image.number, writer))

    def tag_writer(self, repository_id: int, tag: str) -> str | None:
        """The program in a container that set the tag. None if no container set it, or if there is no such tag."""
        sql = "SELECT writer FROM image_tag WHERE repository = ? AND tag = ?"
        row = self._database.execute(sql, (repository_id, tag)).fetchone()
        return row[0] if row else None

    def drop_tag(self, repository_id: int, tag: str) -> None:
        self._database.execute("DELETE FROM image_tag WHERE repository = ? AND tag = ?", (repository_id, tag))

    def set_pulled(self, image: RegistryImage, now_s: float) -> None:
        self._database.execute("UPDATE image SET pulled_at = ? WHERE number = ?", (now_s, image.number))

    def drop_image(self, image: RegistryImage, now_s: float) -> None:
        """Delete an image and its tags. `drop_unused_layers` deletes its layers later, because a new push may use them again."""
        layers = [(image.repository_id, digest) for (digest,) in self._database.execute(
            "SELECT digest FROM image_part WHERE image = ?", (image.number,)
        )]  # fmt: skip
        self._database.execute("DELETE FROM image_tag WHERE image = ?", (image.number,))
        self._database.execute("DELETE FROM image WHERE number = ?", (image.number,))
        sql = f"UPDATE repository_layer SET unused_since = ? WHERE repository = ? AND digest = ? AND NOT EXISTS ({HELD})"
        self._database.executemany(sql, [(now_s, *layer) for layer in layers])

    # Layers

    def layer(self, repository_id: int, digest: str) -> Layer | None:
        """A layer of this repository; None if the repository does not have it."""
        sql = "SELECT digest, content, size FROM layer JOIN repository_layer USING (digest) WHERE repository = ? AND digest = ?"
        row = self._database.execute(sql, (repository_id, digest)).fetchone()
        return Layer(*row) if row else None

    def any_layer(self, digest: str) -> Layer | None:
        row = self._database.execute("SELECT digest, content, size FROM layer WHERE digest = ?", (digest,)).fetchone()
        return Layer(*row) if row else None

    def add_layer(self, layer: Layer) -> None:
        """Add a layer that no repository has yet. The caller has already added a reference to its content."""
        self._database.execute("INSERT INTO layer VALUES (?, ?, ?)", (layer.digest, layer.content, layer.size))

    def hold_layer(self, repository_id: int, digest: str, now_s: float) -> None:
        """Add a layer to a repository. The layer counts as unused until an image uses it."""
        self._database.execute(
            "INSERT INTO repository_layer VALUES (?, ?, ?) ON CONFLICT (repository, digest) "
            "DO UPDATE SET unused_since = excluded.unused_since WHERE unused_since IS NOT NULL",
            (repository_id, digest, now_s),
        )

    def is_unused(self, repository_id: int, digest: str) -> bool:
        """Whether the repository has the layer but none of its images uses the layer."""
        sql = "SELECT 1 FROM repository_layer WHERE repository = ? AND digest = ? AND unused_since IS NOT NULL"
        return self._database.execute(sql, (repository_id, digest)).fetchone() is not None

    def drop_layer(self, repository_id: int, digest: str) -> list[int]:
        """Remove a layer that no image of this repository uses. Return ids of `content` rows, see `clear_deleted_repository`."""
        sql = "DELETE FROM repository_layer WHERE repository = ? AND digest = ? AND unused_since IS NOT NULL"
        self._database.execute(sql, (repository_id, digest))
        return self._drop_layers([digest])

    def first_unused_s(self) -> float | None:
        """The time when the first of the unused layers became unused; None if no layer is unused."""
        sql = "SELECT min(unused_since) FROM repository_layer WHERE unused_since IS NOT NULL"
        found: float | None = self._database.execute(sql).fetchone()[0]
        return found

    def drop_unused_layers(self, before_s: float, limit: int) -> list[int]:
        """Remove up to `limit` layers that became unused before `before_s`.

        Return ids of `content` rows, see `clear_deleted_repository`.
        """
        rows = self._database.execute(
            "SELECT repository, digest FROM repository_layer WHERE unused_since <= ? ORDER BY unused_since LIMIT ?",
            (before_s, limit),
        ).fetchall()
        self._database.executemany("DELETE FROM repository_layer WHERE repository = ? AND digest = ?", rows)
        return self._drop_layers(digest for _, digest in rows)

    def _drop_layers(self, digests: Iterable[str]) -> list[int]:
        """Delete those of the layers that no repository has any more. Return the ids of their `content` rows."""
        sql = (
            "DELETE FROM layer WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM repository_layer r WHERE r.digest = layer.digest) "
            "RETURNING content"
        )
        found = (self._database.execute(sql, (digest,)).fetchone() for digest in dict.fromkeys(digests))
        return [row[0] for row in found if row is not None]


def _repository(row: Row) -> Repository:
    number, region, name, created_at_s, about, tags, owner = row
    return Repository(number, region, name, created_at_s, orjson.loads(about), orjson.loads(tags), owner)


def _image(row: Row) -> RegistryImage:
    number, repository_id, digest, media_type, artifact_type, size, subject, pushed_at_s, pulled_at_s, tags = row
    names = tuple(orjson.loads(tags))
    return RegistryImage(number, repository_id, digest, media_type, artifact_type, size, subject, pushed_at_s, pulled_at_s, names)


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
