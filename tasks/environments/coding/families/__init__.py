"""All families of problems."""

from tasks.environments.coding.families import lists, numbers, recursion, simulation, strings

FAMILIES = {
    family.name: family for module in (lists, strings, numbers, recursion, simulation) for family in module.FAMILIES
}
