"""Stored-only resources: all operations follow from the declarations of the service and the resource type."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.errors import ApiError, api_error
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.operations.pagination import Pagination
from corral.operations.stored_resources import ResourceType, ServiceStyle, Update, handlers
from corral.operations.tags import TagRules
from corral.store import Store

Taken = api_error("Taken")
Gone = api_error("Gone")
Wrong = api_error("Wrong")
InUse = api_error("InUse")
Reused = api_error("Reused")


LIBRARY = ServiceStyle(
    "library",
    exists=lambda type_, name: Taken(f"{type_} {name}"),
    missing=lambda type_, name: Gone(f"{type_} {name}"),
    pages=Pagination(Wrong, limit="MaxResults", token="NextToken", next_token="NextToken"),
    tags=TagRules(Wrong, max=2),
    token_reused=lambda: Reused("another request had this token"),
)


def not_in_use(tx: Tx[Store], caller: Caller, document: dict[str, Any]) -> None:
    if document["_in_use"]:
        raise InUse(document["ShelfId"])


SHELF = ResourceType(
    LIBRARY,
    "shelf",
    id="ShelfId",
    one="Shelf",
    many="Shelves",
    new=lambda tx, params, caller: {"ShelfId": params.get("Name") or tx.ids.hex32(), "Owner": caller.account},
    members=("Colour",),
    defaults={"Colour": "white", "_in_use": False},
    unlisted=("Owner",),
    check_delete=not_in_use,
    selects=lambda tx, caller, params: lambda document: document["Colour"] == params.get("Colour", document["Colour"]),
    token="Token",
    create="CreateShelf",
    get="GetShelf",
    list="ListShelves",
    delete="DeleteShelf",
    update={"PaintShelf": Update({"NewColour": "Colour"}, returns_resource=True), "UseShelf": Update({"InUse": "_in_use"})},
    tag="TagShelf",
    untag="UntagShelf",
    list_tags="ListShelfTags",
)


class Library:
    def __init__(self) -> None:
        self.store = Store(None)
        self.clock, self.ids = VirtualClock(), SeededIds(Random(0))
        self.operations = handlers(SHELF)

    def __call__(self, operation: str, region: str = "r", **params: Any) -> dict[str, Any]:
        tx = Tx(self.store, self.clock.now_s(), self.ids, Settings())
        return self.operations[operation](tx, params, Caller("account", region, root_user("account")))


@pytest.fixture
def library() -> Library:
    return Library()


def refused(library: Library, operation: str, **params: Any) -> str:
    with pytest.raises(ApiError) as error:
        library(operation, **params)
    return error.value.code


def test_the_life_of_a_resource(library):
    assert library("CreateShelf", Name="a") == {"Shelf": {"ShelfId": "a", "Colour": "white", "Owner": "account"}}
    assert refused(library, "CreateShelf", Name="a") == "Taken"
    assert library("PaintShelf", ShelfId="a", NewColour="red")["Shelf"]["Colour"] == "red"
    assert library("GetShelf", ShelfId="a")["Shelf"] == {"ShelfId": "a", "Colour": "red", "Owner": "account"}
    library("UseShelf", ShelfId="a", InUse=True)
    assert refused(library, "DeleteShelf", ShelfId="a") == "InUse"
    library("UseShelf", ShelfId="a", InUse=False)
    library("DeleteShelf", ShelfId="a")
    for operation in ("GetShelf", "DeleteShelf", "PaintShelf", "TagShelf", "ListShelfTags"):
        assert refused(library, operation, ShelfId="a", Tags=[], NewColour="") == "Gone"


def test_generated_names_and_separate_regions(library):
    made = library("CreateShelf")["Shelf"]["ShelfId"]
    assert len(made) == 32
    assert refused(library, "GetShelf", region="elsewhere", ShelfId=made) == "Gone"


def test_a_repeated_request_with_the_same_token(library):
    first = library("CreateShelf", Token="once", Colour="red")
    assert library("CreateShelf", Token="once", Colour="red") == first
    assert refused(library, "CreateShelf", Token="once", Colour="blue") == "Reused"
    library("DeleteShelf", ShelfId=first["Shelf"]["ShelfId"])
    assert library("CreateShelf", Token="once", Colour="blue")["Shelf"]["Colour"] == "blue"


def test_pages_of_selected_resources(library):
    for at in range(450):  # more than are read at once
        library("CreateShelf", Name=f"s{at:03d}", Colour="red" if at % 150 == 149 else "blue")
    first = library("ListShelves", Colour="red", MaxResults=2)
    rest = library("ListShelves", Colour="red", MaxResults=2, NextToken=first["NextToken"])
    assert [shelf["ShelfId"] for shelf in (*first["Shelves"], *rest["Shelves"])] == ["s149", "s299", "s449"]
    assert "NextToken" not in rest and "Owner" not in rest["Shelves"][0]
    assert refused(library, "ListShelves", MaxResults=0) == "Wrong"
    assert refused(library, "ListShelves", NextToken="not one of ours") == "Wrong"


def test_tags(library):
    assert refused(library, "CreateShelf", Name="a", Tags=[{"Key": name, "Value": ""} for name in "abc"]) == "Wrong"
    library("CreateShelf", Name="a", Tags=[{"Key": "x", "Value": "1"}])
    library("TagShelf", ShelfId="a", Tags=[{"Key": "x", "Value": "2"}, {"Key": "y", "Value": "3"}])
    assert refused(library, "TagShelf", ShelfId="a", Tags=[{"Key": "z", "Value": ""}]) == "Wrong"
    first = library("ListShelfTags", ShelfId="a", MaxResults=1)
    assert first["Tags"] == [{"Key": "x", "Value": "2"}] and first["NextToken"]
    library("UntagShelf", ShelfId="a", TagKeys=["x"])
    assert library("ListShelfTags", ShelfId="a")["Tags"] == [{"Key": "y", "Value": "3"}]
