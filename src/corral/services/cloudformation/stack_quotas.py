"""The quotas of stacks: those of AWS, and a limit of Corral's own for the depth of nested stacks, which AWS does not limit.

They bound what a small template can create, because a nested stack can have a template with further nested stacks.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.model.stack import Stack
from corral.services.cloudformation.errors import LimitExceededException, ValidationError
from corral.store import Store

STACKS_MAX = 2_000  # in a region
NESTED_RESOURCES_MAX = 2_500  # that the nested stacks of a root stack get in one operation of the root stack
NESTING_MAX = 10  # levels of nested stacks below a root stack
ACCOUNT_LIMITS = {"StackLimit": STACKS_MAX, "StackOutputsLimit": 200, "ConcurrentResourcesLimit": NESTED_RESOURCES_MAX}


def require_room(tx: Tx[Store], region: str) -> None:
    if tx.store.stacks.count(region, STACKS_MAX) >= STACKS_MAX:
        raise LimitExceededException(
            f"Limit for stack has been exceeded: {region} has {STACKS_MAX} stacks. Delete stacks that you do not need, or use "
            "another region."
        )


def require_nesting(tx: Tx[Store], parent: Stack, template_text: str, values: dict[str, object]) -> None:
    """Refuse a nested stack that is nested too deeply, or that has the template and the parameters of a stack that contains it.

    Such a stack would contain itself again and again. With other parameters, conditions of the template can end the recursion.
    """
    above: Stack | None = parent
    for _ in range(NESTING_MAX):
        if above is None:
            return
        if above.version.values == values and tx.store.stacks.template(above.id, above.version.number)[0] == template_text:
            raise ValidationError(
                f"The nested stack has the same template and the same parameters as the stack {above.name}, which contains it, so "
                "the stack would contain itself. Change TemplateURL or the parameters."
            )
        above = tx.store.stacks.get(above.parent_id) if above.parent_id else None
    if above is not None:
        raise ValidationError(f"The stack is nested too deeply: at most {NESTING_MAX} levels of nested stacks are allowed.")


def count_nested_resources(tx: Tx[Store], nested: Stack, added: int) -> None:
    """Add the new resources of a nested stack to those of the present operation of its root stack. Refuse too many."""
    root = tx.store.stacks.get(nested.root_id)
    if root is None:
        return
    operation, before = root.nested_resources
    total = added + (before if operation == root.operation else 0)
    if total > NESTED_RESOURCES_MAX:
        raise LimitExceededException(
            f"The nested stacks of {root.name} have more than {NESTED_RESOURCES_MAX} new resources in one operation. Divide the "
            "stack into several stacks."
        )
    tx.store.stacks.put(root.but(nested_resources=(root.operation, total)))
